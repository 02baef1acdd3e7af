"""Layers: parameters and a thin forward over `lipspline.functional`."""

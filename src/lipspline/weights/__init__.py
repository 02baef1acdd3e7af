"""Shipped weights: safetensors files, read by `lipspline.priors`."""

"""Shipped weights: safetensors files, read by `lipspline.models.zoo`."""

"""The hot operations of the library as torch operators, each with several implementations."""

from lipspline.kernels.choice import active, using
from lipspline.kernels.piecewise_affine import piecewise_affine

__all__ = ["active", "piecewise_affine", "using"]

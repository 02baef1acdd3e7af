"""The hot operation of the library, `piecewise_affine`, as one torch operator with several implementations."""

from lipspline.kernels.piecewise_affine import piecewise_affine

__all__ = ["piecewise_affine"]

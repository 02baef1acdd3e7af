"""The hot operations of the library as torch operators, each with several implementations."""

from lipspline.kernels.choice import active, using
from lipspline.kernels.pairs import householder, sort_pairs
from lipspline.kernels.piecewise_affine import overwrite_piecewise_affine, piecewise_affine
from lipspline.kernels.scaled_spline import scaled_spline, scaled_tables
from lipspline.kernels.spline_tables import spline_tables

__all__ = [
    "active",
    "householder",
    "overwrite_piecewise_affine",
    "piecewise_affine",
    "scaled_spline",
    "scaled_tables",
    "sort_pairs",
    "spline_tables",
    "using",
]

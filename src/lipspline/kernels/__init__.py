"""The hot operations of the library: a table of kernels, each in plain torch and in C, one also in Triton."""

from lipspline.kernels import joseph, ridge, total_variation, wavelet, winograd
from lipspline.kernels.affine import overwrite_piecewise_affine, piecewise_affine
from lipspline.kernels.dispatch import TABLE, Kernel, active, decompositions, using
from lipspline.kernels.pairs import householder, sort_pairs
from lipspline.kernels.splines import scaled_spline, scaled_tables, spline_tables

__all__ = [
    "TABLE",
    "Kernel",
    "active",
    "decompositions",
    "householder",
    "joseph",
    "overwrite_piecewise_affine",
    "piecewise_affine",
    "ridge",
    "scaled_spline",
    "scaled_tables",
    "sort_pairs",
    "spline_tables",
    "total_variation",
    "using",
    "wavelet",
    "winograd",
]

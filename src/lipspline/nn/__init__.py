"""Layers: parameters and a thin forward over `lipspline.functional`."""

from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin
from lipspline.nn.combine import Averaged, Scaled
from lipspline.nn.complexity import EffectiveRegions, effective_regions, tv2
from lipspline.nn.folded_spline import FoldedSpline
from lipspline.nn.free_knot_spline import FreeKnotSpline
from lipspline.nn.layers import SampleUnshuffle, conv1d, conv2d, linear
from lipspline.nn.linear_spline import LinearSpline
from lipspline.nn.plot import plot_activations
from lipspline.nn.rewrite import preactivation_bound, rewrite
from lipspline.nn.sparsify import SparsifyReport, sparsify

__all__ = [
    "AbsoluteValue",
    "Averaged",
    "EffectiveRegions",
    "FoldedSpline",
    "FreeKnotSpline",
    "GroupSort",
    "Householder",
    "LinearSpline",
    "LipschitzPReLU",
    "MaxMin",
    "SampleUnshuffle",
    "Scaled",
    "SparsifyReport",
    "conv1d",
    "conv2d",
    "effective_regions",
    "linear",
    "plot_activations",
    "preactivation_bound",
    "rewrite",
    "sparsify",
    "tv2",
]

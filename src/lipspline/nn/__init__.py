"""Layers: parameters and a thin forward over `lipspline.functional`."""

from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin
from lipspline.nn.combine import Averaged, Scaled
from lipspline.nn.folded_spline import FoldedSpline
from lipspline.nn.free_knot_spline import FreeKnotSpline
from lipspline.nn.layers import SampleUnshuffle, conv1d, conv2d, linear
from lipspline.nn.linear_spline import LinearSpline

__all__ = [
    "AbsoluteValue",
    "Averaged",
    "FoldedSpline",
    "FreeKnotSpline",
    "GroupSort",
    "Householder",
    "LinearSpline",
    "LipschitzPReLU",
    "MaxMin",
    "SampleUnshuffle",
    "Scaled",
    "conv1d",
    "conv2d",
    "linear",
]

"""Layers: parameters and a thin forward over `lipspline.functional`."""

from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin
from lipspline.nn.combine import Averaged, Concatenated, Scaled, Sum
from lipspline.nn.convolutions import SampleUnshuffle, conv1d, conv2d
from lipspline.nn.inference import FoldedSpline, FreeKnotSpline
from lipspline.nn.matrices import linear
from lipspline.nn.spline import LinearSpline

__all__ = [
    "AbsoluteValue",
    "Averaged",
    "Concatenated",
    "FoldedSpline",
    "FreeKnotSpline",
    "GroupSort",
    "Householder",
    "LinearSpline",
    "LipschitzPReLU",
    "MaxMin",
    "SampleUnshuffle",
    "Scaled",
    "Sum",
    "conv1d",
    "conv2d",
    "linear",
]

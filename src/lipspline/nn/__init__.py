"""Layers: parameters and a thin forward over `lipspline.functional`.

`activations`, `spline`, `matrices` and `convolutions` are twins of the formulas of the same name. The others have no
formulas of their own: `combine` makes networks of networks, `fold` turns constrained layers into ordinary ones, and
`inference` holds the layers of finished networks.
"""

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

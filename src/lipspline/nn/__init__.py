"""Layers: parameters and a thin forward over `lipspline.functional`.

`activations`, `spline`, `matrices`, `convolutions` and `ridge` are twins of the formulas of the same name. The others
have no formulas of their own: `combine` makes networks of networks, `fold` turns constrained layers into ordinary ones,
and `inference` holds the layers of finished networks.
"""

from lipspline.nn import activations
from lipspline.nn.activations import *  # noqa: F403  a new activation names itself in its own file
from lipspline.nn.blocks import (
    Centering,
    ConvexPotential,
    InvertibleDownsampling,
    InvertibleUpsampling,
    L2NormPool2d,
)
from lipspline.nn.combine import Averaged, Concatenated, Scaled, Sum
from lipspline.nn.convolutions import SampleUnshuffle, conv1d, conv2d, conv3d, conv_transpose2d
from lipspline.nn.inference import FoldedSpline, FreeKnotSpline
from lipspline.nn.matrices import linear
from lipspline.nn.ridge import RidgeStep, UnrolledRidge
from lipspline.nn.spline import LinearSpline

__all__ = [
    "Averaged",
    "Centering",
    "Concatenated",
    "ConvexPotential",
    "FoldedSpline",
    "FreeKnotSpline",
    "InvertibleDownsampling",
    "InvertibleUpsampling",
    "L2NormPool2d",
    "LinearSpline",
    "RidgeStep",
    "SampleUnshuffle",
    "Scaled",
    "Sum",
    "UnrolledRidge",
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose2d",
    "linear",
]
__all__ += activations.__all__

"""Plug-and-play reconstruction with a checked theorem [sec:PnPReconstruction]."""

from lipspline.pnp.certificate import Certificate
from lipspline.pnp.fbs import Solution, fbs
from lipspline.pnp.iterate import ImageRun, Progress

__all__ = ["Certificate", "ImageRun", "Progress", "Solution", "fbs"]

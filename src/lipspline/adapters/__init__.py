"""Operators and denoisers of this library in scipy, sigpy and deepinv, and their operators here."""

from lipspline.adapters.deepinv import from_deepinv, to_deepinv, to_deepinv_denoiser
from lipspline.adapters.scipy import from_scipy, to_scipy
from lipspline.adapters.sigpy import from_sigpy, to_sigpy

__all__ = [
    "from_deepinv",
    "from_scipy",
    "from_sigpy",
    "to_deepinv",
    "to_deepinv_denoiser",
    "to_scipy",
    "to_sigpy",
]

"""Measurement operators H with their exact adjoint and bounds on their norm."""

from lipspline.operators.base import LinearOperator
from lipspline.operators.blur import Blur
from lipspline.operators.coils import MultiCoilMRI, compress_coils, simulated_maps
from lipspline.operators.ct import ParallelBeamCT
from lipspline.operators.espirit import espirit
from lipspline.operators.fbp import fbp
from lipspline.operators.matrix import Matrix
from lipspline.operators.mri import MRI, cartesian_mask
from lipspline.operators.pointwise import Identity, Inpainting
from lipspline.operators.space import Space

__all__ = [
    "MRI",
    "Blur",
    "Identity",
    "Inpainting",
    "LinearOperator",
    "Matrix",
    "MultiCoilMRI",
    "ParallelBeamCT",
    "Space",
    "cartesian_mask",
    "compress_coils",
    "espirit",
    "fbp",
    "simulated_maps",
]

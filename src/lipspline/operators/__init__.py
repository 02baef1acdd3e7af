"""Measurement operators H with their exact adjoint and bounds on their norm."""

from lipspline.operators._espirit import espirit, espirit_sets
from lipspline.operators._fbp import fbp
from lipspline.operators.base import LinearOperator, Space
from lipspline.operators.coils import MultiCoilMRI, SoftSenseMRI, compress_coils, simulated_maps
from lipspline.operators.ct import ParallelBeamCT, WeightedCT
from lipspline.operators.elementary import Blur, Identity, Inpainting, Matrix
from lipspline.operators.fan import FanBeamCT
from lipspline.operators.mri import MRI, cartesian_mask
from lipspline.operators.noncartesian import NonCartesianMRI, density_compensation, radial_trajectory

__all__ = [
    "MRI",
    "Blur",
    "FanBeamCT",
    "Identity",
    "Inpainting",
    "LinearOperator",
    "Matrix",
    "MultiCoilMRI",
    "NonCartesianMRI",
    "ParallelBeamCT",
    "SoftSenseMRI",
    "Space",
    "WeightedCT",
    "cartesian_mask",
    "compress_coils",
    "density_compensation",
    "espirit",
    "espirit_sets",
    "fbp",
    "radial_trajectory",
    "simulated_maps",
]

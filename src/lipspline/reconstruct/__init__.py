"""From files of a scanner to images with a certificate: what `lipspline reconstruct` does."""

from lipspline.reconstruct.ct import MeasuredCT, SimulatedCT
from lipspline.reconstruct.mri import MeasuredMRI, SimulatedMRI, Undersampling
from lipspline.reconstruct.problem import Problem, Scan
from lipspline.reconstruct.run import Reconstruction, reconstruct
from lipspline.reconstruct.solved import Iteration
from lipspline.reconstruct.strength import Strength, choose

__all__ = [
    "Iteration",
    "MeasuredCT",
    "MeasuredMRI",
    "Problem",
    "Reconstruction",
    "Scan",
    "SimulatedCT",
    "SimulatedMRI",
    "Strength",
    "Undersampling",
    "choose",
    "reconstruct",
]

"""From files of a scanner to images with a certificate: what `lipspline reconstruct` does."""

from lipspline.imaging.ct import MeasuredCT, SimulatedCT
from lipspline.imaging.mri import MeasuredMRI, SimulatedMRI, Undersampling
from lipspline.imaging.problem import Problem, Scan
from lipspline.imaging.run import Reconstruction, reconstruct
from lipspline.imaging.solved import Iteration
from lipspline.imaging.strength import Strength, choose

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

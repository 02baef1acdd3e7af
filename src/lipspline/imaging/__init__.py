"""From files of a scanner, or arrays, to images with a certificate: what `lipspline reconstruct` does."""

from lipspline.imaging.ct import MeasuredCT, SimulatedCT
from lipspline.imaging.mri import MeasuredMRI, SimulatedMRI, Undersampling
from lipspline.imaging.problem import Iteration, Problem, Scan, solve_problem
from lipspline.imaging.reconstruction import Reconstruction, reconstruct
from lipspline.imaging.request import Request
from lipspline.imaging.scanners import ScannerCT, ScannerMRI
from lipspline.imaging.simulation import add_kspace_noise, add_sinogram_noise
from lipspline.imaging.strength import Strength, choose
from lipspline.imaging.trajectories import RadialMRI, TrajectoryMRI

CartesianMRI = ScannerMRI
"""Its name before it knew trajectories."""

__all__ = [
    "CartesianMRI",
    "Iteration",
    "MeasuredCT",
    "MeasuredMRI",
    "Problem",
    "RadialMRI",
    "Reconstruction",
    "Request",
    "Scan",
    "ScannerCT",
    "ScannerMRI",
    "SimulatedCT",
    "SimulatedMRI",
    "Strength",
    "TrajectoryMRI",
    "Undersampling",
    "add_kspace_noise",
    "add_sinogram_noise",
    "choose",
    "reconstruct",
    "solve_problem",
]

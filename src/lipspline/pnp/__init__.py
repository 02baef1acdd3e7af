"""Plug-and-play reconstruction with a checked theorem [sec:PnPReconstruction]."""

from lipspline.pnp.anderson import Anderson
from lipspline.pnp.certificate import ReconstructionCertificate
from lipspline.pnp.fbs import Solution, fbs
from lipspline.pnp.guarantee import Tier, lipschitz_bound
from lipspline.pnp.iterate import ImageRun, Progress
from lipspline.pnp.minimize import minimize
from lipspline.pnp.shard import solve_all
from lipspline.pnp.stability import Evidence, stability
from lipspline.pnp.tune import Problem, Trial, Tuning, tune

__all__ = [
    "Anderson",
    "Evidence",
    "ImageRun",
    "Problem",
    "Progress",
    "ReconstructionCertificate",
    "Solution",
    "Tier",
    "Trial",
    "Tuning",
    "fbs",
    "lipschitz_bound",
    "minimize",
    "solve_all",
    "stability",
    "tune",
]

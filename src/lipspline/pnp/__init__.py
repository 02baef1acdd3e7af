"""Plug-and-play reconstruction with a checked theorem [sec:PnPReconstruction]."""

from lipspline._infra.ranks import solve_all
from lipspline.pnp._fbs import fbs
from lipspline.pnp._minimize import minimize, promise
from lipspline.pnp._stability import Evidence, stability
from lipspline.pnp._tune import Trial, Tuning, ValidationProblem, tune
from lipspline.pnp.batch import ImageRun, Progress, Status
from lipspline.pnp.certificate import ReconstructionCertificate, Solution
from lipspline.pnp.guarantee import Tier, lipschitz_bound
from lipspline.pnp.iterate import Anderson

__all__ = [
    "Anderson",
    "Evidence",
    "ImageRun",
    "Progress",
    "ReconstructionCertificate",
    "Solution",
    "Status",
    "Tier",
    "Trial",
    "Tuning",
    "ValidationProblem",
    "fbs",
    "lipschitz_bound",
    "minimize",
    "promise",
    "solve_all",
    "stability",
    "tune",
]

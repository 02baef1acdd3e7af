"""What is known about images before they are measured: denoisers and energies, found by name or file."""

from lipspline.priors.denoisers import DenoiserPrior, zoo
from lipspline.priors.energy import COMPLEX_RANGE, FOLDED_RANGE, UNIT_RANGE, Energy, Kind, Prior
from lipspline.priors.lookup import EnergyPrior, catalogue, resolve
from lipspline.priors.ridge import RidgeEnergy

__all__ = [
    "COMPLEX_RANGE",
    "FOLDED_RANGE",
    "UNIT_RANGE",
    "DenoiserPrior",
    "Energy",
    "EnergyPrior",
    "Kind",
    "Prior",
    "RidgeEnergy",
    "catalogue",
    "resolve",
    "zoo",
]

"""How far an image is from its measurements, and whether noise explains it: a rule measured in docs/guarantee.md."""

from dataclasses import dataclass
from enum import StrEnum

# What is left with the right geometry and the default strength, beyond 1.1 times the noise: 0.1 % in simulations
# and MRI, up to 0.9 % in measured CT, by rings, beam hardening, and pixels wider than detectors.
NOISE_FACTOR = 1.1
USUAL_ERROR = 0.005
"""Beyond noise, what a right model of a scanner is usually off by; more is doubtful."""
MODEL_ERROR = 0.01
"""Beyond noise, what a right model of a scanner may be off by; more is not explained."""
MOST_COMMON = 0.5
"""Of noise neighbours have nothing in common: where more than half of the misfit is common, it is doubtful, ..."""
FAINT_ERROR = 0.003
"""... unless it is smaller than this."""
IMPLAUSIBLE = 0.25
"""Noise that is estimated to be more than this part of the data is not believed: signal was taken for noise."""


class Agreement(StrEnum):
    """Whether noise explains how far an image is from its measurements."""

    EXPLAINED = "explained"
    DOUBTFUL = "doubtful"
    UNEXPLAINED = "not explained"


@dataclass(frozen=True)
class DataMisfit:
    """How far the data that an image predicts are from those that were measured, `‖Hx - y‖ / ‖y‖`.

    Args:
        value: the misfit.
        noise: what it would be if x were the truth: the norm of the noise over that of the data.
        estimated: whether the noise was estimated from the data themselves: then at most `IMPLAUSIBLE` is believed.
        common: of sinograms, the correlation of `Hx - y` at detectors and angles that are neighbours, the smaller one:
            the part of the squared misfit that is no noise. 0 for k-space, where it tells nothing.

    Example:
        >>> [str(DataMisfit(value, 0.0056).fit) for value in (0.009, 0.013, 0.02)]
        ['explained', 'doubtful', 'not explained']
        >>> str(DataMisfit(0.009, 0.0056, common=0.8).fit)
        'doubtful'
        >>> DataMisfit(0.35, 0.38).explained, DataMisfit(0.35, 0.38, estimated=True).explained
        (True, False)
    """

    value: float
    noise: float
    estimated: bool = False
    common: float = 0.0

    @property
    def implausible(self) -> bool:
        """Whether the noise is larger than an estimate can be believed."""
        return self.estimated and self.noise > IMPLAUSIBLE

    @property
    def fit(self) -> Agreement:
        """Whether noise, and small errors of the model of the scanner, account for it."""
        noise = NOISE_FACTOR * (IMPLAUSIBLE if self.implausible else self.noise)
        if self.value > noise + MODEL_ERROR:
            return Agreement.UNEXPLAINED
        if self.value > noise + USUAL_ERROR or self.structured:
            return Agreement.DOUBTFUL
        return Agreement.EXPLAINED

    @property
    def structured(self) -> bool:
        """Whether more than half of the misfit is no noise."""
        return self.common > MOST_COMMON and self.value > FAINT_ERROR

    @property
    def explained(self) -> bool:
        """Whether it may be explained, doubtful or not."""
        return self.fit is not Agreement.UNEXPLAINED

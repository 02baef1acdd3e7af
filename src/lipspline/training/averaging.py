"""An exponential moving average of the parameters, which often scores better than the parameters themselves."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from lipspline._infra import checks


class WeightAverage:
    r"""The running average :math:`\bar θ \leftarrow d\, \bar θ + (1 - d)\, θ` of unconstrained parameters.

    What is averaged are the parameters before their parametrization, so the averaged network meets the same
    constraints. The decay starts small, `d = min(decay, (1 + t) / (10 + t))` at step t, so that the initial values
    are forgotten.
    """

    def __init__(self, parameters: Sequence[Tensor], decay: float):
        self.parameters = list(parameters)
        self.decay = checks.within("average", decay, 0.0, 1.0, "Use 0.999, or None for no averaging.")
        self.values = [p.detach().clone() for p in self.parameters]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the parameters of step `step` into the average."""
        decay = min(self.decay, (1 + step) / (10 + step))
        for value, parameter in zip(self.values, self.parameters, strict=True):
            value.lerp_(parameter, 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Use the average in place of the parameters inside a `with` block."""
        kept = [p.detach().clone() for p in self.parameters]
        self.apply()
        try:
            yield
        finally:
            _assign(self.parameters, kept)

    def apply(self) -> None:
        """Replace the parameters by their average."""
        _assign(self.parameters, self.values)

    def load(self, values: Sequence[Tensor]) -> None:
        """Continue from saved values."""
        _assign(self.values, values)


@torch.no_grad()
def _assign(targets: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    for target, value in zip(targets, values, strict=True):
        target.copy_(value)

r"""Unrolled ridge denoisers: a fixed number of steps with energies of their own, 1-Lipschitz for every noise level.

.. math:: x_{k+1} = (1-\tau_k) x_k + \tau_k y - \tau_k \lambda_k \nabla R_k(x_k), \qquad x_0 = y, \quad
          \tau_k = \frac{2}{2 + \lambda_k}

Each :math:`R_k` is a convex ridge energy whose gradient is 1-Lipschitz; energies and strengths are functions of the
noise level, which is a parameter and no input. The proof is that of `lipspline.nn.UnrolledRidge`, and holds for any
strengths.

Filters have mean zero and splines are odd, so that away from the border, where zeros are around the image, offsets and
signs do not matter: no range of values is a special case.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save as to_bytes
from torch import nn

from lipspline._infra.files import write_whole
from lipspline.functional.ridge import hats
from lipspline.nn import FoldedSpline, RidgeStep, UnrolledRidge
from lipspline.priors.ridge import RidgeEnergy
from lipspline.priors.ridge_files import json_object, number_field, read_sealed, tensors_checksum, whole_field

FORMAT = "lipspline-unrolled/1"
MOST_STEPS = 1000


class UnrolledDenoiser(nn.Module):
    """Steps down convex ridge energies, for all noise levels.

    Args:
        energies: each convex, with a gradient that is 1-Lipschitz; `normalised` makes them so.
        repeats: how many steps are taken with each, one energy after the other.
        provenance: where it comes from, any JSON values.
    """

    def __init__(
        self, energies: Sequence[RidgeEnergy], repeats: Sequence[int], *, provenance: dict[str, Any] | None = None
    ):
        super().__init__()
        if not energies or len(energies) != len(repeats):
            raise ValueError(f"An unrolled denoiser needs a number of steps for each of {len(energies)} energies.")
        if min(repeats) < 1 or sum(repeats) > MOST_STEPS:
            raise ValueError(
                f"An unrolled denoiser takes at least one step with each energy, and at most {MOST_STEPS}."
            )
        for number, energy in enumerate(energies):
            if not (energy.convex and energy.upper <= 1):
                raise ValueError(
                    f"The steps of an unrolled denoiser need convex energies with a constant of at most 1, but number "
                    f"{number} has {energy.upper:.9g} and weak convexity {energy.weak:.3g}."
                )
        self.energies, self.repeats, self.provenance = nn.ModuleList(energies), tuple(repeats), provenance or {}

    @property
    def nodes(self) -> torch.Tensor:
        """The noise levels of the last energy."""
        return self.parts()[-1].nodes

    def parts(self) -> list[RidgeEnergy]:
        """The energies, in the order of the steps."""
        return list(self.energies)  # type: ignore[arg-type]

    def at(self, noise: float) -> UnrolledRidge:
        """The denoiser for noise with this standard deviation: `certify` proves that it is 1-Lipschitz."""
        steps = [ridge_step(energy, noise) for energy in self.parts()]
        return UnrolledRidge(
            *(step for step, times in zip(steps, self.repeats, strict=True) for _ in range(times))
        ).eval()

    def extra_repr(self) -> str:
        return f"{sum(self.repeats)} steps"


@torch.no_grad()
def ridge_step(energy: RidgeEnergy, noise: float) -> RidgeStep:
    """The step down an energy at a noise level, with its strength there."""
    level = hats(energy.nodes.new_tensor(float(noise)), energy.nodes)
    spline = FoldedSpline(len(energy.filters), regions=2 * energy.slopes.shape[1], radius=energy.radius)
    spline.slopes = torch.cat([energy.slopes.flip(1), energy.slopes], dim=1)
    spline.mean, spline.scale = (
        energy.slopes.new_zeros(len(energy.slopes)),
        torch.exp(level @ energy.log_scale.mT) / noise,
    )
    return RidgeStep.of(energy.filters, spline.refresh(), level @ energy.log_strength)


# Files

_PARTS = ("filters", "slopes", "log_scale", "log_strength", "nodes")


def save_unrolled(denoiser: UnrolledDenoiser, path: str | os.PathLike[str]) -> None:
    """Write a denoiser as safetensors, with its constants, provenance and a checksum of everything as metadata."""
    energies = denoiser.parts()
    tensors = {
        f"{number}.{name}": tensor.float().contiguous()
        for number, energy in enumerate(energies)
        for name, tensor in energy.named_buffers()
    }
    fields = [
        {"steps": times, "even": energy.even, "radius": energy.radius}
        for times, energy in zip(denoiser.repeats, energies, strict=True)
    ]
    metadata = {
        "format": FORMAT,
        "config": json.dumps({"energies": fields}),
        "certificate": json.dumps({"upper": 1.0, "energies": max(energy.upper for energy in energies)}),
        "provenance": json.dumps(denoiser.provenance),
    }
    metadata["sha256"] = tensors_checksum(tensors, metadata)
    write_whole(Path(path), to_bytes(tensors, metadata))


def load_unrolled(path: str | os.PathLike[str]) -> UnrolledDenoiser:
    """Read what `save_unrolled` wrote: all is checked, and the constants are proven again from the weights."""
    metadata, tensors = read_sealed(path, FORMAT, "unrolled denoiser")
    try:
        config, promised, provenance = (json_object(metadata, key) for key in ("config", "certificate", "provenance"))
        fields = config["energies"]
        if not isinstance(fields, list) or not all(isinstance(field, dict) for field in fields):
            raise ValueError("its config has no list of energies.")
        energies = [
            RidgeEnergy(
                *(tensors.pop(f"{number}.{part}") for part in _PARTS),
                even=whole_field(field, "even"),
                radius=number_field(field, "radius"),
            )
            for number, field in enumerate(fields)
        ]
        said = number_field(promised, "upper")
        denoiser = UnrolledDenoiser(energies, [whole_field(field, "steps") for field in fields], provenance=provenance)
    except KeyError as error:
        raise ValueError(f"{path} is damaged: it has no {error}.") from None
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from error
    if tensors:
        raise ValueError(f"{path} is no unrolled denoiser: it has the unknown tensors {sorted(tensors)}.")
    if said < 1:
        raise ValueError(f"{path} promises the constant {said:.9g}, but unrolled denoisers are only proven to have 1.")
    return denoiser

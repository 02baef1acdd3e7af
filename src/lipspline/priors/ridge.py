r"""Ridge energies: a bank of filters and one odd linear spline per filter, learned, with proven constants.

.. math:: R_s(x) = \sum_c \sum_p \frac{1}{a_c(s)^2}\, \psi_c\bigl(a_c(s)\, (w_c * x)_p\bigr), \qquad
          \nabla R_s(x) = W^T \sigma_s(W x), \quad \sigma_{s,c}(t) = \frac{1}{a_c(s)}\, \psi_c'(a_c(s)\, t)

s is the noise level. Each :math:`\psi_c'` is an odd linear spline, given by its slopes on the M regions of equal length
in [0, radius]; beyond, the last slope goes on. With slopes in [-ρ, 1] and :math:`\|W\|^2 \le 1`, the gradient is
1-Lipschitz and :math:`R_s + \tfrac\rho2\|x\|^2` is convex, for every s.

Filters have mean zero and splines are odd, so that away from the border, where zeros are around the image, offsets and
signs do not matter. A complex image is treated as two real ones.
"""

import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lipspline._infra.devices import remembered
from lipspline.functional.norm_bounds import OUTWARD
from lipspline.functional.ridge import Tables, bank_norm_upper, hats, odd_tables, potential_constants
from lipspline.kernels import piecewise_affine
from lipspline.kernels import ridge as kernel
from lipspline.priors.energy import Energy

LARGEST = 1e9
"""No weight or scale is larger, and no scale smaller than one over it: float32 must hold their products."""


class ProximalPoint(NamedTuple):
    """An approximate minimiser of ½‖x - y‖² + λ R(x)."""

    value: Tensor
    steps: int
    distance: float
    """Proven: the distance to the minimiser, as a root mean square over pixels, is at most this."""


class RidgeEnergy(nn.Module):
    """A learned ridge energy for all noise levels, with constants proven from its weights.

    Args:
        filters: (C, 1, k, k); the first `even` are even under reflection at the middle, the others odd.
        slopes: (C, M), of the splines on [0, radius].
        log_scale: (C, K), log(s a_c(s)) at the nodes.
        log_strength: (K,), log λ(s) at the nodes: the strength with which the energy denoises noise of level s.
        nodes: (K,) noise levels of constant ratio; between them, interpolation is linear in log s.
        even: how many filters are even.
        radius: the last knot of the splines.
        provenance: where it comes from, any JSON values.

    Its constants hold for every noise level and image size: `upper` is the Lipschitz constant of the gradient, and
    R + `weak`/2 ‖x‖² is convex.
    """

    filters: Tensor
    slopes: Tensor
    log_scale: Tensor
    log_strength: Tensor
    nodes: Tensor

    def __init__(
        self,
        filters: Tensor,
        slopes: Tensor,
        log_scale: Tensor,
        log_strength: Tensor,
        nodes: Tensor,
        *,
        even: int,
        radius: float,
        provenance: dict[str, Any] | None = None,
    ):
        super().__init__()
        tensors = {
            "filters": filters,
            "slopes": slopes,
            "log_scale": log_scale,
            "log_strength": log_strength,
            "nodes": nodes,
        }
        _check(tensors, even, radius)
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.detach().clone())
        self.even, self.radius, self.provenance = even, float(radius), provenance or {}

    @property
    def upper(self) -> float:
        """The gradient is Lipschitz with this constant: of the weights as they are now."""
        return _bank_norm(self.filters) * float(self.slopes.abs().max()) * OUTWARD

    @property
    def weak(self) -> float:
        """ρ, of the weights as they are now."""
        return _bank_norm(self.filters) * max(0.0, -float(self.slopes.min())) * OUTWARD

    @property
    def denoising_convexity(self) -> float:
        """1 - λρ for the largest λ, which is at a node; rounding of exp is allowed for."""
        return 1 - self.weak * float(self.log_strength.double().max().exp()) * (1 + 1e-5)

    @property
    def convex(self) -> bool:
        return self.weak == 0.0

    def strength(self, noise: float) -> float:
        """λ(s): the weight of the energy in the denoising problem at noise level s."""
        return float(torch.exp(hats(self._level(noise), self.nodes) @ self.log_strength))

    def at(self, noise: float) -> "RidgeAtNoise":
        """The energy for one noise level, as plain tables."""
        scale = torch.exp(hats(self._level(noise), self.nodes) @ self.log_scale.mT) / noise
        return RidgeAtNoise(self, odd_tables(self.slopes, self.radius, scale), float(noise))

    def energy(self, x: Tensor, noise: float) -> Tensor:
        """R_s(x) of each image of a batch (B, 1, H, W), real or complex: (B,)."""
        return self.at(noise)(x)

    def gradient(self, x: Tensor, noise: float) -> Tensor:
        """∇R_s(x) for images (B, 1, H, W), real or complex."""
        return self.at(noise).gradient(x)

    def denoise(self, y: Tensor, noise: float, *, tol: float = 1e-4, max_steps: int = 1000) -> ProximalPoint:
        """The minimiser of ½‖x - y‖² + λ(s) R_s(x): a firmly nonexpansive map of y if the energy is convex."""
        return self.at(noise).prox(y, self.strength(noise), tol=tol, max_steps=max_steps)

    def _level(self, noise: float) -> Tensor:
        if not (isinstance(noise, (int, float)) and 0 < noise < math.inf):
            raise ValueError(f"noise must be a positive number, the standard deviation of the noise, but is {noise!r}.")
        return self.nodes.new_tensor(float(noise))

    def extra_repr(self) -> str:
        kind = "convex" if self.convex else f"weakly convex, ρ = {self.weak:.3g}"
        return f"{len(self.filters)} filters {self.filters.shape[-1]}x{self.filters.shape[-1]}, {kind}"


class RidgeAtNoise(Energy):
    """A ridge energy at one noise level: fixed filters and tables. `RidgeEnergy.at` makes it."""

    filters: Tensor
    intercepts: Tensor
    slopes: Tensor
    scale: Tensor
    constants: Tensor

    def __init__(self, energy: RidgeEnergy, tables: Tables, noise: float):
        super().__init__()
        buffers = {
            "filters": energy.filters,
            "intercepts": tables.b,
            "slopes": tables.s,
            "scale": tables.scale,
            "constants": potential_constants(tables),
        }
        for name, tensor in buffers.items():
            self.register_buffer(name, tensor)
        self.offset, self.noise = tables.offset, noise
        self._upper, self._weak = energy.upper, energy.weak
        self._digest = self._of_values()
        self._prepared: tuple[kernel.PreparedBank, kernel.PreparedTables] | None = None
        if kernel.has_ridge(energy.filters) and energy.even % 4 == 0 and len(energy.filters) % 4 == 0:
            self._prepared = kernel.prepare_bank(energy.filters, energy.even), kernel.prepare_tables(*tables)

    @property
    def tables(self) -> Tables:
        """The splines, as `piecewise_affine` takes them."""
        return Tables(self.intercepts, self.slopes, self.scale, self.offset)

    @property
    def lipschitz(self) -> float:
        """Of the gradient, for every image size: proven from the weights."""
        self._check_unchanged()
        return self._upper

    @property
    def weak_convexity(self) -> float:
        """ρ, such that R + ρ/2 ‖x‖² is convex; 0 if the energy is convex."""
        self._check_unchanged()
        return self._weak

    def _of_values(self) -> str:
        """SHA-256 over all numbers, whatever their precision."""
        digest = hashlib.sha256(repr(float(self.offset)).encode())
        for _, tensor in sorted(self.named_buffers()):
            digest.update(tensor.detach().double().cpu().contiguous().numpy().tobytes())
        return digest.hexdigest()

    def _check_unchanged(self) -> None:
        """The constants were proven for the numbers that it was built with, and for no others."""
        if self._of_values() != self._digest:
            raise ValueError(
                "The filters or tables of this ridge energy were changed after it was built, so its constants are no "
                "longer proven. Make a RidgeEnergy of the new weights, and take it at the noise level again."
            )

    def responses(self, x: Tensor) -> Tensor:
        """W x, (B, C, H, W), of real images (B, 1, H, W)."""
        return F.conv2d(x, self.filters.to(x.dtype), padding=self.filters.shape[-1] // 2)

    def adjoint(self, z: Tensor) -> Tensor:
        """Wᵀ z, (B, 1, H, W)."""
        return F.conv_transpose2d(z, self.filters.to(z.dtype), padding=self.filters.shape[-1] // 2)

    def forward(self, x: Tensor) -> Tensor:
        """R(x) of each image: (B,)."""
        _check_images(x)
        if x.is_complex():
            return self(x.real) + self(x.imag)
        if prepared := self._for_c(x):
            return kernel.ridge_energy(x, *prepared, self.constants).to(x.dtype)
        return self.potentials(x).sum(dim=(1, 2, 3))

    def _for_c(self, x: Tensor) -> tuple[kernel.PreparedBank, kernel.PreparedTables] | None:
        """Filters and tables for the kernels in C, if they can be used for these images."""
        derived = torch.is_grad_enabled() and x.requires_grad
        return self._prepared if kernel.has_ridge(x) and not derived else None

    def potentials(self, x: Tensor) -> Tensor:
        """ψ_c((W x)_c) at each pixel of real images, (B, C, H, W)."""
        z = self.responses(x)
        b, s, scale, offset = self.tables
        constant = piecewise_affine(z, self.constants, torch.zeros_like(s), scale, offset)
        return constant + z * piecewise_affine(z, b, s / 2, scale, offset)

    def gradient(self, x: Tensor, weights: Tensor | None = None) -> Tensor:
        """∇R(x) = Wᵀσ(W x).

        Args:
            weights: (B, C, H, W), for real images; each response is multiplied by its weight after the spline.
        """
        _check_images(x)
        if x.is_complex():
            both = self.gradient(torch.cat([x.real, x.imag]), weights)
            return torch.complex(*both.chunk(2))
        if prepared := self._for_c(x):
            return kernel.ridge_gradient(x, *prepared, weights)
        values = piecewise_affine(self.responses(x), *self.tables)
        return self.adjoint(values if weights is None else weights * values)

    @torch.no_grad()
    def prox(self, y: Tensor, strength: float, *, tol: float = 1e-4, max_steps: int = 1000) -> ProximalPoint:
        """Minimise ½‖x - y‖² + strength R(x) by accelerated gradient steps with restarts (O'Donoghue and Candès 2015).

        The objective is strongly convex with constant μ = 1 - strength ρ, so that its gradient at any x proves
        ‖x - x*‖ <= ‖gradient‖ / μ: the steps end when that is at most `tol` as a root mean square over the pixels.

        Args:
            y: (B, 1, H, W), real or complex.
            strength: λ, with λρ < 1.
            tol: the distance aimed at.
            max_steps: the most steps; `distance` then says how far it came.
        """
        convexity = 1 - strength * self._weak
        if not (strength >= 0 and convexity > 0):
            raise ValueError(
                f"Denoising with strength {strength:g} needs strength·ρ < 1, but the energy is weakly convex with "
                f"ρ = {self._weak:.4g}. Use a strength below {1 / self._weak if self._weak else math.inf:.4g}."
            )
        step = 1 / (1 + strength * self._upper)
        return proximal_point(self.gradient, y, strength, step, convexity=convexity, tol=tol, max_steps=max_steps)


def proximal_point(
    gradient: Callable[[Tensor], Tensor],
    y: Tensor,
    strength: float,
    step: float,
    *,
    convexity: float = 1.0,
    start: Tensor | None = None,
    tol: float,
    max_steps: int,
) -> ProximalPoint:
    """Minimise ½‖x - y‖² + strength R(x) by accelerated gradient steps with restarts (O'Donoghue and Candès 2015).

    Args:
        gradient: of R.
        step: at most one over the Lipschitz constant of the gradient of the objective.
        convexity: the modulus of strong convexity of the objective, which bounds the distance to the minimiser.
        start: where to begin; y if not given.
    """
    x = v = y if start is None else start
    t, steps, distance = 1.0, 0, math.inf
    for steps in range(max_steps + 1):
        force = v - y + strength * gradient(v)
        distance = float(force.abs().square().mean(dim=(1, 2, 3)).max().sqrt()) / convexity
        if distance <= tol or steps == max_steps:
            break
        new = v - step * force
        if float((force.conj() * (new - x)).real.sum()) > 0:
            t, v = 1.0, new
        else:
            t_new = (1 + math.sqrt(1 + 4 * t * t)) / 2
            v = new + (t - 1) / t_new * (new - x)
            t = t_new
        x = new
    return ProximalPoint(v, steps, distance)


_bank_norm = remembered(bank_norm_upper)


def _check(tensors: dict[str, Tensor], even: int, radius: float) -> None:
    """Refuse weights that are no ridge energy."""
    axes = {"filters": 4, "slopes": 2, "log_scale": 2, "log_strength": 1, "nodes": 1}
    kinds = {tensor.dtype for tensor in tensors.values()}
    if len(kinds) > 1 or not kinds <= {torch.float32, torch.float64}:
        raise ValueError(
            f"A ridge energy needs tensors of one type, float32 or float64, but got "
            f"{', '.join(sorted(map(str, kinds)))}."
        )
    for name, ndim in axes.items():
        if tensors[name].ndim != ndim or not tensors[name].numel():
            raise ValueError(
                f"A ridge energy needs {name} with {ndim} axes, but its shape is {tuple(tensors[name].shape)}."
            )
    filters, slopes, nodes = tensors["filters"], tensors["slopes"], tensors["nodes"]
    channels, knots = len(filters), len(nodes)
    wanted = {
        "filters": (channels, 1, filters.shape[-1], filters.shape[-1]),
        "slopes": (channels, slopes.shape[-1]),
        "log_scale": (channels, knots),
        "log_strength": (knots,),
        "nodes": (knots,),
    }
    for name, shape in wanted.items():
        if tuple(tensors[name].shape) != shape:
            raise ValueError(f"A ridge energy needs {name} of shape {shape}, but got {tuple(tensors[name].shape)}.")
        if not tensors[name].isfinite().all():
            raise ValueError(f"A ridge energy needs finite {name}.")
    if filters.shape[-1] % 2 == 0 or knots < 2 or not 1 / LARGEST < radius < LARGEST:
        raise ValueError("A ridge energy needs filters of odd size, at least two nodes and a positive radius.")
    for name in ("filters", "slopes", "log_scale", "log_strength"):
        largest = math.log(LARGEST) if name.startswith("log") else LARGEST
        if float(tensors[name].abs().max()) > largest:
            raise ValueError(f"A ridge energy needs {name} of at most {largest:.3g}, but has larger ones.")
    ratios = nodes.double().log().diff()
    if not (nodes > 0).all() or not (ratios > 0).all() or float(ratios.max() - ratios.min()) > 1e-4 * float(ratios[0]):
        raise ValueError("The nodes of a ridge energy must be positive and rise by a constant ratio.")
    mirrored = filters.flip(2, 3)
    if not (0 <= even <= channels and filters[:even].equal(mirrored[:even]) and filters[even:].equal(-mirrored[even:])):
        raise ValueError(f"The first {even} filters of a ridge energy must be even, and the others odd, exactly.")


def _check_images(x: Tensor) -> None:
    if x.ndim != 4 or x.shape[1] != 1 or not (x.is_floating_point() or x.is_complex()):
        raise ValueError(
            f"A ridge energy takes images of shape (B, 1, H, W), real or complex, but got shape {tuple(x.shape)} of "
            f"{x.dtype}."
        )


@torch.no_grad()
def normalised(energy: RidgeEnergy) -> RidgeEnergy:
    r"""The same denoisers with :math:`\|W\|^2 \le 1` proven: filters over c, scales times c, strengths times c²."""
    norm = bank_norm_upper(energy.filters)
    filters = energy.filters
    divisor = math.sqrt(norm)
    while bank_norm_upper(filters) > 1:
        filters = (energy.filters.double() / divisor).to(energy.filters.dtype)
        divisor *= 1 + 1e-8
    return RidgeEnergy(
        filters,
        energy.slopes,
        energy.log_scale + math.log(divisor),
        energy.log_strength + 2 * math.log(divisor),
        energy.nodes,
        even=energy.even,
        radius=energy.radius,
        provenance=energy.provenance,
    )

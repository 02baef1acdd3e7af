"""Arguments for every kernel; random ones of `piecewise_affine`, and what it means that two implementations agree."""

import random
from dataclasses import dataclass

import torch
from torch import Tensor

from lipspline import kernels
from lipspline.kernels import affine, piecewise_affine
from lipspline.kernels.dispatch import Implementation

EXTREMES = (float("nan"), float("inf"), -float("inf"), 1e30, -1e30, 1e-40, 0.0, -0.0)
ROUND_OFF = {torch.float32: 4e-6, torch.float64: 1e-14}


@dataclass(frozen=True)
class Case:
    """Arguments of `piecewise_affine` and a gradient of its result."""

    x: Tensor
    b: Tensor
    s: Tensor
    scale: Tensor
    offset: float
    channel_dim: int
    g: Tensor

    def results(self) -> tuple[Tensor, ...]:
        """Value and gradients of x, b, s."""
        x, b, s = (t.detach().requires_grad_() for t in (self.x, self.b, self.s))
        y = piecewise_affine(x, b, s, self.scale, self.offset, self.channel_dim)
        return y.detach(), *torch.autograd.grad(y, (x, b, s), self.g)

    def results_of(self, implementation: Implementation) -> tuple[Tensor, ...]:
        with kernels.using(implementation):
            return self.results()

    def __str__(self) -> str:
        shapes = f"x {tuple(self.x.shape)} strides {self.x.stride()} {self.x.dtype}, tables {tuple(self.s.shape)}"
        return f"{shapes}, offset {self.offset}, channel_dim {self.channel_dim}"


def random_case(seed: int, largest: int = 9) -> Case:
    """A case of any rank, layout, dtype, grouping and number of regions; every third one has extreme values."""
    choose, generator = random.Random(seed), torch.Generator().manual_seed(seed)
    dtype = choose.choice((torch.float32, torch.float64))
    ndim = choose.randint(1, 6)
    shape = [choose.randint(1, largest if ndim < 5 else 4) for _ in range(ndim)]
    if choose.random() < 0.2:
        shape[choose.randrange(ndim)] = choose.randint(16, 80)
    grouped = ndim > 1 and choose.random() < 0.25
    channel_dim = choose.randrange(1 if grouped else 0, ndim)
    rows = (1 if choose.random() < 0.2 else shape[channel_dim],)
    if grouped:
        rows = (shape[0], *rows)
    regions = choose.choice((1, 2, 3, 10, 50, 130))

    def normal(*size: int) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    x = _laid_out(normal(*shape), choose)
    if seed % 3 == 0:
        for value in EXTREMES:
            x[tuple(choose.randrange(n) for n in shape)] = value
    scale = regions / 4 * (0.1 + torch.rand(rows, generator=generator, dtype=torch.float64)).to(dtype)
    offset = choose.choice((regions / 2, 1.0, choose.uniform(0, regions)))
    g = _laid_out(normal(*shape), choose)
    return Case(x, normal(*rows, regions), normal(*rows, regions), scale, offset, channel_dim, g)


def _laid_out(x: Tensor, choose: random.Random) -> Tensor:
    """The same values in another memory layout."""
    layout = choose.choice(("contiguous", "permuted", "strided", "channels last"))
    if layout == "permuted":
        order = choose.sample(range(x.ndim), x.ndim)
        inverse = sorted(range(x.ndim), key=order.__getitem__)
        return x.permute(order).contiguous().permute(inverse)
    if layout == "strided":
        return x.repeat_interleave(2, dim=-1)[..., ::2]
    if layout == "channels last" and x.ndim == 4:
        return x.contiguous(memory_format=torch.channels_last)
    return x


def disagreement(case: Case, got: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> str | None:
    """What differs, in words. Value and gradient of x must be equal, sums up to the round-off of their terms."""
    for name, a, b in zip(("value", "gradient of x"), got[:2], wanted[:2], strict=True):
        if not torch.allclose(a, b, rtol=0, atol=0, equal_nan=True):
            return f"{name} differs: {case}"
    for name, a, b, terms in zip(("gradient of b", "gradient of s"), got[2:], wanted[2:], _terms(case), strict=True):
        equal = torch.isclose(a, b, rtol=0, atol=0, equal_nan=True)
        if not (equal | ((a - b).abs() <= ROUND_OFF[case.x.dtype] * terms)).all():
            return f"{name} differs: {case}"
    return None


def _terms(case: Case) -> tuple[Tensor, Tensor]:
    """Per region the sums of |g| and of |g x|."""
    sizes = case.g.abs(), (case.g * case.x).abs().nan_to_num(0, 0, 0)
    rest = case.x, case.s, case.scale, case.offset, case.channel_dim
    first, second = (affine.backward_formula(size, *rest)[1] for size in sizes)
    return first, second


def samples(dtype: torch.dtype) -> dict[str, tuple]:
    """Arguments for every kernel."""
    torch.manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64).to(dtype)

    x, g, b, s = normal(2, 4, 5, 3), normal(2, 4, 5, 3), normal(4, 6), normal(4, 6)
    scale = normal(4).exp()
    c, spline = normal(4, 7), (0.7, -1.0, 1.0)
    lines = torch.rand(3, 5, dtype=torch.float64), torch.rand(3, 5, dtype=torch.float64) + 0.1
    images, half = normal(3, 1, 7, 9), normal(8, 3, 3)
    mirrored = half.flip(1, 2) * torch.tensor([1.0] * 4 + [-1.0] * 4, dtype=dtype).reshape(8, 1, 1)
    ridge = (half + mirrored).unsqueeze(1), normal(8, 6), normal(8, 6), normal(8).exp(), 3.0, 4
    one_each = (ridge[0], *(t.expand(3, *t.shape).contiguous() for t in ridge[1:4]), 3.0, 4)
    return {
        "ridge_gradient": (images, *ridge),
        "ridge_energy": (images, *ridge[:3], normal(8, 6), *ridge[3:]),
        "ridge_pairing": (images.flip(0), images, *one_each),
        "weighted_ridge_gradient": (images, *ridge[:4], normal(3, 8, 7, 9).exp(), *ridge[4:]),
        "weighted_ridge_pairing": (images.flip(0), images, *one_each[:4], normal(3, 8, 7, 9).exp(), *one_each[4:]),
        "piecewise_affine": (x, b, s, scale, 2.5, 1),
        "piecewise_affine_backward": (g, x, s, scale, 2.5, 1),
        "swap_pairs": (g, x, True, 1),
        "householder": (x, normal(2, 2), 1),
        "householder_backward": (g, x, normal(2, 2), 1),
        "spline_tables": (c, scale, *spline),
        "spline_tables_backward": (b, s, c, scale, *spline),
        "scaled_spline": (x, c, scale.log(), *spline, 1),
        "scaled_spline_backward": (g, x, c, scale.log(), *spline, 1),
        "line_sums": (normal(2, 5, 6, 4), *lines, 7),
        "line_spread": (normal(2, 3, 7, 4), *lines, 6),
        "ray_sums": (normal(2, 4, 6, 4), *lines, 5),
        "ray_spread": (normal(2, 3, 5, 4), *lines, 4, 6),
        "winograd": (x, normal(6, 4, 3, 3), normal(6)),
        "winograd_weights": (x, normal(2, 6, 5, 3)),
        "wavelet_split": (normal(2, 7, 9, 2), normal(2, 4), 2),
        "wavelet_merge": (normal(2, 7, 9, 2), normal(2, 3, 7, 9, 2), normal(2, 4), 2),
        "total_variation": (normal(3, 7), normal(3, 7).exp(), normal(3).exp()),
    }

r"""One scale of the undecimated wavelet transform of Daubechies with two vanishing moments, and its adjoint.

Images wrap around. Taps are `gap` pixels apart and divided by √2, so that the four bands have the energy of the image
and the adjoint is the inverse. C filters along the columns and then along each row; nothing is shifted in memory.
"""

import math

import torch
from torch import Tensor

from lipspline.kernels import native
from lipspline.kernels.dispatch import Kernel

_ROOT = math.sqrt(3.0)
LOW = tuple(c / 8 for c in (1 + _ROOT, 3 + _ROOT, 3 - _ROOT, 1 - _ROOT))
HIGH = (LOW[3], -LOW[2], LOW[1], -LOW[0])
"""The high-pass filter is the low-pass one reversed, with alternating signs. Both are divided by √2."""
REACH = len(LOW) - 1
"""How many gaps a filter reaches."""


def wavelet_split(x: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    """The coarse image `(N, H, W)` and the details `(N, 3, H, W)` of images `(N, H, W)`, real or complex.

    Details are low along the rows and high along the columns, high and low, high and high.

    Example:
        >>> low, details = wavelet_split(torch.ones(1, 8, 8), gap=2)
        >>> bool((low - 1).abs().max() < 1e-6), bool(details.abs().max() < 1e-6)
        (True, True)
    """
    _check(x, gap)
    pixels = _pixels(x)
    arguments = pixels, _taps(pixels)
    evaluate = _split.c if _fits(x, gap) and _split.in_c(*arguments) else _split.eager
    low, details = evaluate(*arguments, gap)
    return _like(low, x), _like(details, x)


def wavelet_merge(low: Tensor, details: Tensor, gap: int) -> Tensor:
    """The adjoint of `wavelet_split`, and its inverse."""
    _check(low, gap)
    if details.shape != (len(low), 3, *low.shape[1:]) or details.dtype != low.dtype:
        raise ValueError(
            f"Details must have the shape {(len(low), 3, *low.shape[1:])} and {low.dtype}, but have "
            f"{tuple(details.shape)} and {details.dtype}."
        )
    arguments = _pixels(low), _pixels(details), _taps(_pixels(low))
    evaluate = _merge.c if _fits(low, gap) and _merge.in_c(*arguments) else _merge.eager
    return _like(evaluate(*arguments, gap), low)


def _check(x: Tensor, gap: int) -> None:
    if x.ndim != 3 or gap < 1:
        raise ValueError(f"Images must be (N, H, W) and the gap at least 1, but are {tuple(x.shape)} and {gap}.")


def _fits(x: Tensor, gap: int) -> bool:
    """Whether filters wrap around at most once, as C wants it."""
    return REACH * gap <= min(x.shape[1:])


def _pixels(x: Tensor) -> Tensor:
    """Images with the one or two numbers of a pixel as the last dimension."""
    return torch.view_as_real(x) if x.is_complex() else x.unsqueeze(-1)


def _like(pixels: Tensor, x: Tensor) -> Tensor:
    return torch.view_as_complex(pixels) if x.is_complex() else pixels.squeeze(-1)


def _taps(pixels: Tensor) -> Tensor:
    return torch.tensor((LOW, HIGH), dtype=pixels.dtype, device=pixels.device)


def _split_formula(x: Tensor, taps: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    rows = [_correlate(x, t, gap, -2) for t in taps.tolist()]
    low, *details = (_correlate(row, t, gap, -3) for row in rows for t in taps.tolist())
    return low, torch.stack(details, dim=1)


def _merge_formula(low: Tensor, details: Tensor, taps: Tensor, gap: int) -> Tensor:
    bands, result = [low, *details.unbind(1)], torch.zeros_like(low)
    for i, along in enumerate(taps.tolist()):
        columns = [_correlate(bands[2 * i + j], t, -gap, -3) for j, t in enumerate(taps.tolist())]
        result = result + _correlate(columns[0] + columns[1], along, -gap, -2)
    return result


def _correlate(x: Tensor, taps: list[float], gap: int, dim: int) -> Tensor:
    """`Σ_k taps_k x[· + k gap]` along one axis, circularly."""
    result = x * taps[0]
    for k in range(1, len(taps)):
        result = result.add_(x.roll(-k * gap, dim), alpha=taps[k])
    return result


def _split_in_c(x: Tensor, taps: Tensor, gap: int) -> tuple[Tensor, Tensor]:
    x = x.contiguous()
    n, height, width, inner = x.shape
    low, details = torch.empty_like(x), x.new_empty(n, 3, height, width, inner)
    native.call("wavelet_split", (), (n, height, width, inner, gap), x, taps, low, details)
    return low, details


def _merge_in_c(low: Tensor, details: Tensor, taps: Tensor, gap: int) -> Tensor:
    low, details = low.contiguous(), details.contiguous()
    y = torch.empty_like(low)
    native.call("wavelet_merge", (), (*low.shape, gap), low, details, taps, y)
    return y


_split = Kernel(
    "wavelet_split(Tensor x, Tensor taps, int gap) -> (Tensor, Tensor)",
    eager=_split_formula,
    c=_split_in_c,
    c_function="wavelet_split",
    derivatives="none",
)
_merge = Kernel(
    "wavelet_merge(Tensor low, Tensor details, Tensor taps, int gap) -> Tensor",
    eager=_merge_formula,
    c=_merge_in_c,
    c_function="wavelet_merge",
    derivatives="none",
)

"""Single-coil Cartesian MRI: some columns of the orthonormal Fourier transform [sec:exp_pnp]."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import lru_cache
from math import floor, sqrt
from typing import Literal, final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators.base import Field, LinearOperator, Space

PLANE = (-2, -1)


def uncentred_fft(x: Tensor) -> Tensor:
    """Orthonormal Fourier transform of the last two dimensions, frequency zero first."""
    return torch.fft.fft2(x, norm="ortho")


def uncentred_ifft(y: Tensor) -> Tensor:
    """Inverse, and so the adjoint, of `uncentred_fft`."""
    return torch.fft.ifft2(y, norm="ortho")


def centred_fft(x: Tensor) -> Tensor:
    """Orthonormal Fourier transform of the last two dimensions, position and frequency zero in the middle."""
    return _centred(uncentred_fft, x)


def centred_ifft(y: Tensor) -> Tensor:
    """Inverse, and so the adjoint, of `centred_fft`."""
    return _centred(uncentred_ifft, y)


def _centred(transform: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Shifts by half of an even size are changes of signs in the other domain, which cost less than moving numbers."""
    height, width = x.shape[-2:]
    if height % 2 or width % 2:
        return torch.fft.fftshift(transform(torch.fft.ifftshift(x, dim=PLANE)), dim=PLANE)
    before, after = _signs(height, width, x.dtype.to_complex(), x.device)
    return transform(x * before) * after


@lru_cache(maxsize=8)
def _signs(height: int, width: int, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    """`(-1)^(i + j)`, and the same times `(-1)^((height + width) / 2)`."""
    places = torch.arange(height, device=device).unsqueeze(1) + torch.arange(width, device=device)
    signs = (1 - 2 * (places % 2)).to(dtype)
    return signs, signs * (-1) ** ((height + width) // 2)


@dataclass(frozen=True)
class Fourier:
    """How an image becomes k-space: the transform, whether zero comes first or in the middle, and what images are."""

    fft: Callable[[Tensor], Tensor]
    ifft: Callable[[Tensor], Tensor]
    zero_first: bool
    images: Field

    def from_centred(self, x: Tensor) -> Tensor:
        """Reorder the last two dimensions, given with zero in the middle, as this convention has them."""
        return torch.fft.ifftshift(x, dim=PLANE) if self.zero_first else x

    def to_centred(self, x: Tensor) -> Tensor:
        """The inverse of `from_centred`."""
        return torch.fft.fftshift(x, dim=PLANE) if self.zero_first else x

    def as_image(self, x: Tensor) -> Tensor:
        """The real part where images are real: the adjoint of reading a real image as a complex one."""
        return x.real if self.images == "real" else x

    def of(self, images: "Images | None") -> "Fourier":
        """The same for images of another field; as it is if None."""
        return self if images is None else replace(self, images=IMAGES[checks.one_of("images", images, IMAGES)])


Images = Literal["real", "complex"]
IMAGES: dict[str, Field] = {"real": "real", "complex": "complex"}
Convention = Literal["paper", "centred"]
CONVENTIONS: dict[str, Fourier] = {
    "paper": Fourier(uncentred_fft, uncentred_ifft, zero_first=True, images="real"),
    "centred": Fourier(centred_fft, centred_ifft, zero_first=False, images="complex"),
}


@final
class MRI(LinearOperator):
    """`y = M F x`: the Fourier transform of an image, kept where `mask` is true and zero elsewhere [sec:exp_pnp].

    Args:
        mask: bool `(W,)`, which columns of k-space are measured, or `(H, W)`; low frequencies in the middle. A mask
            `(W,)` serves images of any height.
        convention: "paper" for real images and k-space with frequency zero first (the adjoint takes the real part);
            "centred" for complex images and k-space with frequency zero in the middle, as scanners' files have it.
        images: "real" or "complex", if not as the convention has them; for real ones the adjoint takes the real part.

    `x` is `(B, 1, H, W)`; `y` is complex `(B, 1, H, W)`. Where nothing was measured the adjoint ignores `y`.

    Example:
        >>> import torch
        >>> H = MRI(cartesian_mask(64))
        >>> y = H.forward(torch.ones(1, 1, 48, 64))
        >>> y.shape, int((y.abs() > 1e-6).sum()), H.norm_bounds()
        (torch.Size([1, 1, 48, 64]), 1, (1.0, 1.0))
    """

    def __init__(self, mask: Tensor, *, convention: Convention = "paper", images: Images | None = None):
        self._fourier = CONVENTIONS[checks.one_of("convention", convention, CONVENTIONS)].of(images)
        self.mask = mask = check_mask(mask)
        self._kept = self._fourier.from_centred(torch.atleast_2d(mask))
        shape = (1, None if mask.ndim == 1 else mask.shape[0], mask.shape[-1])
        self.domain, self.codomain = Space(shape, self._fourier.images), Space(shape, "complex")

    def _apply(self, x: Tensor) -> Tensor:
        return self._fourier.fft(x) * self._kept

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        return self._fourier.as_image(self._fourier.ifft(torch.where(self._kept, y, 0)))

    def norm_bounds(self) -> tuple[float, float]:
        """The norm in closed form: 1 for complex images; see `sampling_extremes` for real ones."""
        norm = sampling_extremes(self.mask, self.domain.field)[1]
        return norm, norm

    def smallest_singular_value(self) -> float | None:
        """In closed form [eq:H_invert]; None if some frequency is not determined by the data."""
        return sampling_extremes(self.mask, self.domain.field)[0] or None


def sampling_extremes(mask: Tensor, images: Field) -> tuple[float, float]:
    """Smallest and largest singular value of M F on real or complex images, in closed form.

    On complex images M F has the singular values 0 and 1. A real image has |X(-k)| = |X(k)|, so that
    ‖M F x‖² = Σ_k (m(k) + m(-k))/2 |X(k)|²: a frequency measured on one side only counts sqrt(1/2).
    """
    weight = torch.fft.ifftshift(mask).double()
    if images == "real":
        dims = tuple(range(mask.ndim))
        weight = (weight + weight.flip(dims).roll([1] * mask.ndim, dims)) / 2
    return sqrt(float(weight.min())), sqrt(float(weight.max()))


def check_mask(mask: Tensor) -> Tensor:
    """Return `mask` as a tensor if it is a bool array `(W,)` or `(H, W)` that measures something."""
    mask = torch.as_tensor(mask)
    if mask.dtype != torch.bool:
        raise ValueError(
            f"The sampling mask must be a bool tensor, but has dtype {mask.dtype}. Convert with mask != 0."
        )
    if mask.ndim not in (1, 2):
        raise ValueError(f"The sampling mask must have shape (W,) or (H, W), but has shape {tuple(mask.shape)}.")
    if not mask.any():
        raise ValueError(f"The sampling mask {tuple(mask.shape)} is false everywhere: nothing would be measured.")
    return mask


def _decimal(number: float | Fraction) -> Fraction:
    """The number as it is written: 0.29 is 29/100, and not the nearest number in binary, which is less.

    Example:
        >>> floor(100 * 0.29), floor(100 * _decimal(0.29))
        (28, 29)
    """
    return number if isinstance(number, Fraction) else Fraction(repr(float(number)))


def cartesian_mask(width: int, acceleration: float = 4, center: float = 0.08, seed: int = 0) -> Tensor:
    """Random columns of k-space: ⌊width·center⌋ in the middle, ⌊width/acceleration⌋ in all [sec:exp_pnp].

    Returns:
        bool `(width,)`, low frequencies in the middle (frequency zero at width // 2); always the same for one seed.

    Example:
        >>> mask = cartesian_mask(320, acceleration=4, center=0.08)
        >>> int(mask.sum()), int(mask[148:173].sum())
        (80, 25)
    """
    checks.at_least("width", width, 1)
    checks.positive("acceleration", acceleration)
    if not 0 <= checks.number("center", center) <= 1:
        raise ValueError(f"center must lie between 0 and 1, but is {center:g}.")
    low, total = (floor(width * _decimal(part)) for part in (center, 1 / _decimal(acceleration)))
    if not 0 <= low <= total <= width or total == 0:
        raise ValueError(
            f"A mask of {width} columns with acceleration {acceleration:g} and center {center:g} would have "
            f"{low} columns in the middle of {total} in all. It needs acceleration >= 1 and center <= 1/acceleration."
        )
    start = width // 2 - low // 2
    mask = torch.zeros(width, dtype=torch.bool)
    mask[start : start + low] = True
    others = (~mask).nonzero().squeeze(1)
    chosen = torch.randperm(len(others), generator=torch.Generator().manual_seed(seed))[: total - low]
    mask[others[chosen]] = True
    return mask


def calibration_region(kspace: Tensor, limit: int, kernel: int) -> Tensor:
    """The largest fully sampled rectangle in the middle of `kspace (C, H, W)`, at most `limit` high and wide."""
    sampled = (kspace != 0).any(dim=0)
    sizes = range(limit, kernel - 1, -1)
    width = next((n for n in sizes if n <= sampled.shape[1] and central(sampled, kernel, n).all()), None)
    height = width and next((n for n in sizes if n <= sampled.shape[0] and central(sampled, n, width).all()), None)
    if width is None or height is None:
        raise ValueError(
            f"No window of {kernel}x{kernel} points in the middle of k-space {tuple(sampled.shape)} is fully sampled. "
            f"Measure more low frequencies, use a smaller kernel, or check the convention: 'centred' has frequency "
            f"zero in the middle, 'paper' has it first."
        )
    return central(kspace, height, width)


def central(x: Tensor, height: int, width: int) -> Tensor:
    """View of the middle `(height, width)` of the last two dimensions; index n // 2 is the middle of n."""
    top, left = x.shape[-2] // 2 - height // 2, x.shape[-1] // 2 - width // 2
    return x[..., top : top + height, left : left + width]

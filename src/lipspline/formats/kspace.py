"""Measured k-space in one convention, whatever file it came from."""

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from pathlib import Path

import torch
from torch import Tensor

from lipspline.formats.validation import FileError, affordable
from lipspline.formats.volume import Stack

AT_ONCE = 2**26
"""Numbers of k-space that are held in memory together; more are read piece by piece."""
SPARSEST = 256
"""Bytes of k-space for each byte that its file takes on the disk, at most: undersampling explains no more."""
LOW = 8  # the part of k-space that is looked at for its energy is one in so many, along each direction
CONCENTRATED = 4.0
"""Energy at low frequencies, at least, over what would lie there if it were spread evenly, and over that elsewhere."""
MOST_COILS = 128  # of a scanner
NARROWEST = 16  # columns of k-space, where there are more slices than this many coils


@dataclass(frozen=True)
class LazyKspace:
    """Cartesian k-space of a stack of slices: frequency zero in the middle, zero where nothing was measured.

    What is larger than memory should hold is read when it is asked for.
    """

    data: Tensor | Stack
    """Complex `(S, C, H, W)`; one coil is C = 1. Readout runs along H, phase encoding along W."""
    mask: Tensor
    """Bool, what was measured: `(W,)`, or `(H, W)` where columns are measured in part, if it is the same in all slices;
    `(S, 1, W)` or `(S, H, W)` if each slice has its own."""
    maps: Tensor | Stack | None = None
    """Coil sensitivities `(S, C, H, W)`, if the file has some."""
    reference: Tensor | None = None
    """Real images `(S, h, w)` that the file gives as the truth."""
    crop: tuple[int, int] | None = None
    """Size of the middle part of the images that matters: readouts are mostly measured over twice the field of view."""
    affine: Tensor | None = None
    """As in `Volume`, for the cropped images."""
    real: bool = False
    """Whether the images are known to be real."""
    noise: Tensor | None = None
    """Covariance `(C, C)` of the real parts of the noise of the coils, if the file holds a measurement of noise."""
    notes: tuple[str, ...] = ()
    """What was left out or put together on reading, each in a few words."""

    @property
    def coils(self) -> int:
        """C."""
        return self.data.shape[1]

    def mask_of(self, number: int) -> Tensor:
        """The mask of one slice, `(W,)` or `(H, W)`."""
        if self.mask.ndim < 3:
            return self.mask
        mask = self.mask[number]
        return mask[0] if (mask == mask[0]).all() else mask


@dataclass(frozen=True)
class Kspace(LazyKspace):
    """k-space that is all in memory."""

    data: Tensor
    maps: Tensor | None = None


def compact(points: Tensor) -> Tensor:
    """A mask in the fewest numbers: points `(S, H, W)` as `(W,)` or `(H, W)` if all slices share it, else by slice.

    Slices without any point do not count: whatever their mask, they hold nothing.

    Example:
        >>> compact(torch.tensor([[[True, False], [True, False]], [[False, False], [False, False]]]))
        tensor([ True, False])
    """
    columns = points.any(dim=1, keepdim=True)
    points = columns if (points == columns).all() else points
    filled = points[points.flatten(1).any(dim=1)]
    if not len(filled) or not (filled == filled[0]).all():
        return points
    return filled[0].squeeze(0)


def measured(data: Tensor) -> Tensor:
    """Which points of k-space `(S, C, H, W)` hold a number other than zero in any coil, in the form of `Kspace.mask`.

    Example:
        >>> measured(torch.tensor([[[[0j, 1j, 0j], [0j, 2j, 0j]]]]))
        tensor([False,  True, False])
    """
    return compact((data != 0).any(dim=1))


def with_mask(data: Tensor, mask: Tensor | None, source: object) -> tuple[Tensor, Tensor]:
    """k-space that is zero off the mask, and the mask of what was measured: claimed by `mask` and not zero.

    Args:
        data: `(S, C, H, W)`.
        mask: `(W,)` or `(H, W)` for all slices, `(S, 1, W)` or `(S, H, W)` for each; all that is not zero if None.
    """
    check_mask(data.shape, mask, source)
    _check_order(data.shape, source)
    found = (data != 0).any(dim=1)
    _refuse_nothing(bool(found.any()), source)
    if mask is not None:
        found = found & mask
        _refuse_nothing(bool(found.any()), source, " on its mask")
        data = data * found.unsqueeze(1)
    _check_coils(data, found, source)
    refuse_uncentred(data, source)
    return data, compact(found)


def _check_order(shape: tuple[int, ...], source: object) -> None:
    """Refuse k-space `(S, C, H, W)` whose coils seem to be its last axis, as in files of MATLAB."""
    slices, coils, height, width = shape
    if coils > MOST_COILS or (slices > MOST_COILS and width < NARROWEST):
        raise FileError(
            f"{source} would hold {slices} slices of {coils} coils with {height} x {width} points: its axes must be "
            f"slices, coils, readout and phase encoding, in this order. Move the coils to the second place."
        )


def large(shape: tuple[int, ...]) -> bool:
    """Whether k-space of this shape is too large to be held in memory."""
    return prod(shape) > AT_ONCE


def check_claim(source: Path, shape: tuple[int, ...]) -> None:
    """Refuse a file that claims more k-space `(S, C, H, W)` than it can hold, or slices too large for memory."""
    if 8 * prod(shape) > SPARSEST * 512 * source.stat().st_blocks:
        affordable(source, shape, 8, "k-space")
    affordable(source, shape[1:], 8, "k-space of a slice")


def in_pieces(
    shape: tuple[int, ...],
    load: Callable[[range], Tensor],
    source: Path,
    mask: Tensor | None = None,
    *,
    costly: bool = False,
    check: Callable[[Tensor], None] = lambda _: None,
) -> tuple[Stack, Tensor]:
    """What `with_mask` gives of k-space that is read some slices at a time, because it is too large for memory.

    All of it is read once to be checked, so that what is wrong with the last slice is said before the first is solved.

    Args:
        shape: of the whole, `(S, C, H, W)`.
        load: reads the slices of some numbers, `(n, C, H, W)`.
        source: the file that holds the numbers; one that claims much more than it can hold is refused.
        costly: whether reading a few slices takes as long as reading many; then more are read together.
        check: refuses what is no k-space by its energy `(H, W)`.
    """
    check_claim(source, shape)
    check_mask(shape, mask, source)
    _check_order(shape, source)
    count, (height, width) = shape[0], shape[-2:]
    few = max(1, AT_ONCE // ((1 if costly else 4) * prod(shape[1:])))

    def masked(numbers: range) -> Tensor:
        data = load(numbers)
        return data if mask is None else data * _part(mask, numbers).unsqueeze(-3)

    energy, kept = torch.zeros(height, width, dtype=torch.float64), list[Tensor]()
    for first in range(0, count, few):
        data = masked(range(first, min(first + few, count)))
        found = (data != 0).any(dim=1)
        _check_coils(data, found, source, first)
        energy += energy_of(data)
        columns = found.any(dim=1, keepdim=True)
        kept.append(columns if (found == columns).all() else found)
    _refuse_nothing(bool(energy.any()), source, "" if mask is None else " on its mask")
    _refuse_uncentred(energy, source)
    check(energy)
    tall = max(part.shape[1] for part in kept)
    points = compact(torch.cat([part.expand(-1, tall, -1) for part in kept]))
    return Stack(shape, masked, few), points


def check_mask(shape: tuple[int, ...], mask: Tensor | None, source: object) -> None:
    """Refuse a mask that does not fit k-space `(S, C, H, W)`."""
    slices, _, height, width = shape
    fitting = ((width,), (height, width), (slices, 1, width), (slices, height, width))
    if mask is not None and tuple(mask.shape) not in fitting:
        raise FileError(
            f"The mask {tuple(mask.shape)} does not fit the k-space in {source}: slices of {height} x {width}."
        )


def _part(mask: Tensor, numbers: range) -> Tensor:
    """The mask of some slices, `(n, 1 or H, W)`, or of all of them."""
    return mask[numbers.start : numbers.stop] if mask.ndim == 3 else torch.atleast_2d(mask)[None]


def _refuse_nothing(anything: bool, source: object, where: str = "") -> None:
    if not anything:
        measured = "" if where else ": nothing was measured"
        raise FileError(f"The k-space in {source} is zero everywhere{where}{measured}.")


def _check_coils(data: Tensor, points: Tensor, source: object, first: int = 0) -> None:
    """Refuse readouts that one coil lacks and others have: they would count as measured zeros.

    A coil that has nothing at all in a slice was switched off there, which does no harm.
    """
    columns, wanted = (data != 0).any(dim=2), points.any(dim=1).unsqueeze(1)
    lacking = (wanted & ~columns) & columns.any(dim=2, keepdim=True)
    if lacking.any():
        number, coil, _ = lacking.nonzero()[0].tolist()
        raise FileError(
            f"The k-space in {source} lacks {int(lacking[number, coil].sum())} column(s) in coil {coil} of slice "
            f"{first + number} that other coils have; all coils must measure the same points. Leave the coil out."
        )


def energy_of(data: Tensor) -> Tensor:
    """The energy `(H, W)` of k-space `(S, C, H, W)`, of all slices and coils together."""
    return data.abs().double().square().sum(dim=(0, 1))


def low_energy(energy: Tensor, first: tuple[int, ...] = ()) -> tuple[float, float] | None:
    """The share of the energy `(H, W)` of k-space that lies at low frequencies, and of points; None if too small.

    Args:
        first: dimensions along which frequency zero is taken to come first; in the middle along the others.
    """
    height, width = energy.shape
    h, w = (max(3, n // LOW) for n in (height, width))
    if h >= height or w >= width:
        return None
    energy = torch.fft.fftshift(energy, dim=first) if first else energy
    top, left = height // 2 - h // 2, width // 2 - w // 2
    return float(energy[top : top + h, left : left + w].sum() / energy.sum()), h * w / (height * width)


def refuse_uncentred(data: Tensor, source: object) -> None:
    """Refuse k-space whose energy lies in the first rows or columns: frequency zero is not in the middle there.

    Example:
        >>> refuse_uncentred(torch.fft.fft2(torch.ones(1, 1, 16, 16)), "scan.npy")
        Traceback (most recent call last):
        lipspline.formats.validation.FileError: The k-space in scan.npy has frequency zero first, not in the middle of
        its rows and columns: 100 % of its energy lies there. Shift it with numpy.fft.fftshift(kspace, axes=(-2, -1)),
        and its mask likewise.
    """
    _refuse_uncentred(energy_of(data), source)


def _refuse_uncentred(energy: Tensor, source: object) -> None:
    middle = low_energy(energy)
    if middle is None:
        return
    places = {(-2, -1): "rows and columns", (-2,): "rows", (-1,): "columns"}
    shares = {first: found[0] for first in places if (found := low_energy(energy, first)) is not None}
    first = max(shares, key=lambda dims: shares[dims])
    if shares[first] > CONCENTRATED * max(*middle):
        raise FileError(
            f"The k-space in {source} has frequency zero first, not in the middle of its {places[first]}: "
            f"{100 * shares[first]:.0f} % of its energy lies there. Shift it with "
            f"numpy.fft.fftshift(kspace, axes={first}), and its mask likewise."
        )


def transform_partitions(data: Tensor, source: object, points: Tensor | None = None) -> Tensor:
    """Slices `(S, C, H, W)` of a three-dimensional k-space `(partitions, C, H, W)` that is fully measured in depth.

    Args:
        points: which points `(partitions, H, W)` were measured; those that are not zero if not given.
    """
    points = (data != 0).any(dim=1) if points is None else points
    if not (points == points.any(dim=0)).all():
        raise FileError(f"The k-space in {source} is undersampled in depth too; only its columns may be.")
    shifted = torch.fft.ifftshift(data, dim=0)
    return torch.fft.fftshift(torch.fft.ifft(shifted, dim=0, norm="ortho"), dim=0)


def from_uncentred(data: Tensor) -> Tensor:
    """k-space with zero in the middle, of image and frequencies, from k-space with zero first, on `(..., H, W)`.

    Example:
        >>> spike = torch.zeros(4, 4)
        >>> spike[2, 2] = 1
        >>> from_uncentred(torch.fft.fft2(spike, norm="ortho")).real.unique()
        tensor([0.2500])
    """
    plane = (-2, -1)
    image = torch.fft.ifftshift(torch.fft.ifft2(data, norm="ortho"), dim=plane)
    return torch.fft.fftshift(torch.fft.fft2(image, norm="ortho"), dim=plane)

"""Measured k-space on radial lines, spirals and other trajectories, in one convention, whatever file it came from."""

from dataclasses import dataclass
from math import ceil
from pathlib import Path

import torch
from torch import Tensor

from lipspline.formats import arrays, bart
from lipspline.formats.validation import FileError, affordable

NORMALISED = 0.5 + 1e-3
"""A trajectory that reaches no farther is in cycles per pixel: in cycles per field of view it would be one pixel."""
SMALLEST = 8  # pixels along a side; what reaches no farther is in another unit
LARGEST = 4096


@dataclass(frozen=True)
class NonCartesianKspace:
    """k-space of a stack of slices on a trajectory."""

    data: Tensor
    """Complex `(S, C, L, M)`: L readouts of M samples."""
    trajectory: Tensor
    """Frequencies along rows and columns in cycles per field of view, `(L, M, 2)`, or `(S, L, M, 2)` if they differ."""
    shape: tuple[int, int]
    """Height and width of the images."""
    maps: Tensor | None = None
    """Coil sensitivities `(S, C, H, W)`, if the file has some."""
    reference: Tensor | None = None
    """Real images `(S, h, w)` that are the truth."""
    crop: tuple[int, int] | None = None
    """Size of the middle part of the images that matters."""
    affine: Tensor | None = None
    """As in `Volume`, for the cropped images."""
    noise: Tensor | None = None
    """Covariance `(C, C)` of the real parts of the noise of the coils, if the file holds a measurement of noise."""
    notes: tuple[str, ...] = ()
    """What was left out or put together on reading, each in a few words."""

    @property
    def coils(self) -> int:
        """C."""
        return self.data.shape[1]

    def trajectory_of(self, number: int) -> Tensor:
        """That of one slice, `(L, M, 2)`."""
        return self.trajectory if self.trajectory.ndim == 3 else self.trajectory[number]


def on_trajectory(
    data: Tensor, trajectory: Tensor, source: object, size: int | tuple[int, int] | None = None
) -> NonCartesianKspace:
    """k-space `(S, C, L, M)` on a trajectory `(L, M, 2)` or `(S, L, M, 2)`, in cycles per field of view or per pixel.

    Args:
        size: of the images; without it they are as large as the trajectory reaches.

    Example:
        >>> points = torch.stack([torch.linspace(-8, 7, 16), torch.zeros(16)], dim=-1)[None]
        >>> on_trajectory(torch.ones(1, 1, 1, 16, dtype=torch.complex64), points, "the array").shape
        (16, 16)
    """
    points = _two_columns(trajectory, source)
    if points.ndim == 4 and (len(points) == 1 or (points == points[:1]).all()):
        points = points[0]
    lines = tuple(data.shape[2:])
    if tuple(points.shape[:-1]) not in (lines, (len(data), *lines)):
        raise FileError(
            f"The trajectory of {source} has {' x '.join(map(str, points.shape[:-1]))} points, but k-space has "
            f"{' x '.join(map(str, lines))}: readouts x samples."
        )
    if not data.any():
        raise FileError(f"The k-space in {source} is zero everywhere: nothing was measured.")
    reach, notes = float(points.abs().max()), ()
    if reach <= NORMALISED:
        if size is None:
            raise FileError(
                f"The trajectory of {source} reaches {reach:.3g}, so it is in cycles per pixel; give the size of the "
                f"images."
            )
        shape = (size, size) if isinstance(size, int) else size
        points = points * torch.tensor(shape, dtype=torch.float64)
        notes = ("trajectory in cycles per pixel",)
    elif 2 * ceil(reach) <= SMALLEST:
        raise FileError(
            f"The trajectory of {source} reaches {reach:.3g}; it should be in cycles per field of view, up to half the "
            f"number of pixels, or in cycles per pixel, up to 0.5."
        )
    elif size is None:
        usual = float(points.abs().amax(dim=-1).flatten().kthvalue(ceil(0.99 * points[..., 0].numel())).values)
        if usual < reach / 3:
            raise FileError(
                f"The trajectory of {source} reaches {reach:.4g} cycles per field of view, but 99 % of its points lie "
                f"within {usual:.4g}. Check it, or give the size of the images."
            )
        side = 2 * ceil(reach - 1e-3)
        shape = (side, side)
    else:
        shape = (size, size) if isinstance(size, int) else size
    if max(shape) > LARGEST:
        raise FileError(f"{source} would give images of {shape[0]} x {shape[1]} pixels; at most {LARGEST} are made.")
    limits = torch.tensor(shape, dtype=torch.float64) / 2 + 0.5
    if (points.abs().reshape(-1, 2).amax(dim=0) > limits).any():
        raise FileError(
            f"The trajectory of {source} reaches {reach:.4g} cycles per field of view, beyond half of {shape[0]} x "
            f"{shape[1]} pixels; give a larger size, or leave it out."
        )
    return NonCartesianKspace(data, points, shape, notes=notes)


def read_trajectory(path: str | Path) -> Tensor:
    """A trajectory `(L, M, 2)` or `(S, L, M, 2)` from npy, npz (`trajectory` or `traj`) or BART's .cfl."""
    path = Path(path)
    if bart.pair(path) is not None:
        return bart.read_trajectory(path)
    with arrays.opened(path) as container:
        found = container.find_or_only("trajectory", "traj")
        if found is None:
            raise FileError(f"{path} holds several arrays and none is called 'trajectory' or 'traj'.")
        return found.whole()


def read_samples(
    path: str | Path, slices: slice = slice(None), trajectory: Tensor | None = None, size: int | None = None
) -> NonCartesianKspace:
    """k-space on a trajectory from npy, npz (`kspace`, `trajectory`, and `maps` if there are some) or BART's .cfl.

    k-space is (readouts, samples), (slices, readouts, samples) or (slices, coils, readouts, samples).
    """
    path = Path(path)
    if bart.pair(path) is not None:
        data = bart.read_samples(path, slices)
        assert trajectory is not None
        return on_trajectory(data, trajectory, path, size)
    with arrays.opened(path) as container:
        stored = container.find_or_only("kspace")
        if stored is None or stored.dtype.kind != "c":
            raise FileError(f"{path} does not hold complex k-space under the name 'kspace'.")
        stored = stored.as_stack(2)
        numbers = stored.stack({3: "(readouts, samples), (slices, readouts, samples)", 4: "with coils second"}, slices)
        data = stored.rows(numbers)
        data = data if data.ndim == 4 else data.unsqueeze(1)
        own = container.find("trajectory", "traj")
        if trajectory is None and own is not None:
            trajectory = own.whole()
        if trajectory is None:
            raise FileError(f"{path} holds no trajectory; give it with trajectory=FILE.")
        if trajectory.ndim == 4 and len(trajectory) == stored.shape[0] > 1:
            trajectory = trajectory[numbers.start : numbers.stop]
        sizes = container.find("size", "shape")
        if size is None and sizes is not None and sizes.shape == (2,):
            height, width = sizes.whole().int().tolist()
            return _with_maps(on_trajectory(data, trajectory, path, (height, width)), container, numbers)
        return _with_maps(on_trajectory(data, trajectory, path, size), container, numbers)


def _with_maps(found: NonCartesianKspace, container: arrays.Container, numbers: range) -> NonCartesianKspace:
    stored = container.find("sensitivity", "maps")
    if stored is None:
        return found
    stored = stored.as_stack(3)
    if stored.shape[1:] != (found.coils, *found.shape):
        raise FileError(f"{container.path}: {stored.name} has shape {stored.shape}, which does not fit the images.")
    maps = stored.rows(range(1) if stored.shape[0] == 1 else numbers).to(torch.complex64)
    return NonCartesianKspace(**{**vars(found), "maps": maps.expand(len(found.data), -1, -1, -1)})


def _two_columns(trajectory: Tensor, source: object) -> Tensor:
    """Points `(..., 2)` in float64; a third column must be zero."""
    if trajectory.is_complex() and trajectory.imag.any():
        raise FileError(f"The trajectory of {source} is complex; give its two directions as two columns.")
    points = trajectory.real if trajectory.is_complex() else trajectory
    if points.ndim not in (3, 4) or points.shape[-1] not in (2, 3):
        raise FileError(
            f"The trajectory of {source} has shape {tuple(trajectory.shape)}; it should be (readouts, samples, 2) or "
            f"(slices, readouts, samples, 2)."
        )
    affordable(Path(str(source)), points.shape, 8, "a trajectory")
    if not torch.isfinite(points).all():
        raise FileError(f"The trajectory of {source} has NaN or infinite values.")
    if points.shape[-1] == 3 and points[..., 2].any():
        raise FileError(f"The trajectory of {source} is three-dimensional; trajectories in planes are read.")
    return points[..., :2].double()

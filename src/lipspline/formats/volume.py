"""Images of a volume slice by slice, and where they lie in the patient."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

Unit = Literal["hounsfield", "per millimetre", "per pixel", "arbitrary"]
"""Of the values of images; attenuations are per length."""
LPS_TO_RAS = torch.diag(torch.tensor([-1.0, -1.0, 1.0, 1.0], dtype=torch.float64))
"""From the coordinates of DICOM and ISMRMRD to those of NIfTI, and back."""
FLATTEST = 1e-6
"""The least volume of a voxel, in units of that of the box with the same sides."""


class Stack:
    """Arrays `(S, ...)` that are read when they are asked for, some at a time.

    Args:
        shape: of all of them.
        load: reads those of some numbers, `(n, ...)`.
        at_once: how many are read together and kept.
    """

    def __init__(self, shape: Sequence[int], load: Callable[[range], Tensor], at_once: int = 1):
        self.shape, self._load, self._at_once = torch.Size(shape), load, max(1, at_once)
        self._kept: tuple[range, Tensor] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def numel(self) -> int:
        """How many numbers there are in all."""
        return self.shape.numel()

    def mapped(self, change: Callable[[Tensor], Tensor]) -> "Stack":
        """The same arrays, changed when they are read."""
        return Stack(self.shape, lambda numbers: change(self._load(numbers)), self._at_once)

    def __getitem__(self, i: int) -> Tensor:
        if not 0 <= i < len(self):
            raise IndexError(f"There are {len(self)} images, but number {i} is asked for.")
        if self._kept is None or i not in self._kept[0]:
            first = i - i % self._at_once
            numbers = range(first, min(first + self._at_once, len(self)))
            self._kept = None  # what is not needed any more goes before the next is read
            self._kept = numbers, self._load(numbers)
        numbers, values = self._kept
        return values[i - numbers.start]


@dataclass(frozen=True)
class LazyVolume:
    """A stack of images with their place in space; the images may be read when they are asked for.

    The affine maps `(column, row, slice, 1)` to millimetres in the coordinates of NIfTI: to the patient's right-hand
    side away (R is the positive end of the first axis), to the front (A), and to the head (S).
    """

    slices: Tensor | Stack
    """Real images `(S, H, W)` in float32."""
    affine: Tensor | None = None
    """`(4, 4)` in float64; None where the file says nothing."""
    unit: Unit = "arbitrary"
    identity: Mapping[str, str] = field(default_factory=dict)
    """Whose images they are, by DICOM keyword, where the file says so; copied, never invented."""

    @property
    def voxel(self) -> tuple[float, float, float]:
        """Millimetres from column to column, row to row, slice to slice; 1 where nothing is known."""
        return voxel_size(self.affine)


@dataclass(frozen=True)
class Volume(LazyVolume):
    """A volume whose images are all in memory."""

    slices: Tensor


def voxel_size(affine: Tensor | None) -> tuple[float, float, float]:
    """Lengths of the three steps of an affine map; 1 where it is None.

    Example:
        >>> voxel_size(torch.diag(torch.tensor([0.5, -0.5, 3.0, 1.0])))
        (0.5, 0.5, 3.0)
    """
    if affine is None:
        return 1.0, 1.0, 1.0
    column, row, depth = torch.linalg.vector_norm(affine[:3, :3], dim=0).tolist()
    return column, row, depth


def from_voxel_size(column: float, row: float, depth: float) -> Tensor:
    """The affine map of a volume whose place is unknown: sizes only, the first voxel at the origin.

    Its slices are taken for axial ones as DICOM has them, so that viewers show row 0 at the top and column 0 at the
    left.
    """
    return torch.diag(torch.tensor([-column, -row, depth, 1.0], dtype=torch.float64))


def invertible(affine: Tensor | None) -> Tensor | None:
    """The affine map, or None if it has no inverse: then it says nothing about where an image lies.

    Example:
        >>> print(invertible(torch.diag(torch.tensor([1.0, 0.0, 2.0, 1.0]))))
        None
    """
    if affine is None or not torch.isfinite(affine).all():
        return None
    box = math.prod(voxel_size(affine))
    regular = 0 < box < float("inf") and abs(float(torch.linalg.det(affine[:3, :3]))) > FLATTEST * box
    return affine if regular else None


def shifted(affine: Tensor | None, column: int = 0, row: int = 0, depth: int = 0) -> Tensor | None:
    """The affine map of a part of a volume that begins at this column, row and slice.

    Example:
        >>> shifted(from_voxel_size(1, 1, 2), depth=3)[:3, 3]
        tensor([0., 0., 6.], dtype=torch.float64)
    """
    if affine is None:
        return None
    moved = affine.clone()
    moved[:3, 3] += affine[:3, :3] @ torch.tensor([column, row, depth], dtype=affine.dtype)
    return moved


def resized(affine: Tensor | None, shape: Sequence[int], size: Sequence[int]) -> Tensor | None:
    """The affine map of images `shape` (rows, columns) that were made `size`, and cover the same part of space.

    Example:
        >>> resized(from_voxel_size(1, 1, 2), (8, 8), (4, 2)).diagonal()
        tensor([-4., -2.,  2.,  1.], dtype=torch.float64)
    """
    if affine is None:
        return None
    rows, columns = (old / new for old, new in zip(shape, size, strict=True))
    steps = torch.tensor([columns, rows, 1.0], dtype=affine.dtype)
    moved = affine.clone()
    moved[:3, :3] *= steps
    moved[:3, 3] += affine[:3, :3] @ ((steps - 1) / 2)
    return moved

"""What an operator accepts and returns: a shape, real or complex numbers, and how many images at once."""

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Field = Literal["real", "complex", "any"]
Shape = tuple[int | None, ...]


@dataclass(frozen=True)
class Space:
    """Tensors `(B, *shape)` with the real inner product Re<x, y>, on either side of a `LinearOperator`.

    Args:
        shape: sizes after the batch dimension; None where any size fits.
        field: "real" refuses complex tensors, "complex" takes real ones as complex ones with imaginary part zero,
            "any" stands for an operator that treats real and imaginary part alike and keeps the dtype.
        batch: the batch size, where the operator holds data of its own for each image; None where any fits.
    """

    shape: Shape
    field: Field = "real"
    batch: int | None = None

    def check(self, owner: str, x: Tensor) -> Tensor:
        """Return `x` if it lies in this space, whatever its precision."""
        wanted = self._describe()
        if not isinstance(x, Tensor):
            raise ValueError(
                f"{owner} needs a torch tensor of shape {wanted}, but got a {type(x).__name__}. Convert with "
                f"torch.as_tensor, and put a list of images of one size together with torch.stack."
            )
        if not (x.is_floating_point() or x.is_complex()):
            raise ValueError(
                f"{owner} needs floating-point or complex numbers, but got {x.dtype}. Convert with .float()."
            )
        if x.ndim == len(self.shape) and _fits(tuple(x.shape), self.shape):
            raise ValueError(
                f"{owner} needs shape {wanted}, but got {tuple(x.shape)}. Add the batch dimension with .unsqueeze(0)."
            )
        if not _fits(tuple(x.shape), (self.batch, *self.shape)):
            raise ValueError(f"{owner} needs shape {wanted}, but got {tuple(x.shape)}.")
        if len(x) == 0:
            raise ValueError(f"{owner} needs at least one image, but the batch is empty (shape {tuple(x.shape)}).")
        if self.field == "real" and x.is_complex():
            raise ValueError(
                f"{owner} needs real numbers, but got {x.dtype}. Take x.real, if the imaginary part is noise."
            )
        return x

    def fits_into(self, other: "Space") -> bool:
        """Whether every tensor of this space is one of `other`."""
        if self.field == "complex" and other.field == "real":
            return False
        return len(self.shape) == len(other.shape) and all(
            b is None or a == b for a, b in zip((self.batch, *self.shape), (other.batch, *other.shape), strict=True)
        )

    def meet(self, other: "Space") -> "Space | None":
        """The tensors that lie in both spaces, or None if the two do not agree."""
        if not _compatible(self, other):
            return None
        shape = tuple(b if a is None else a for a, b in zip(self.shape, other.shape, strict=True))
        field = other.field if self.field == "any" else self.field
        return Space(shape, field, other.batch if self.batch is None else self.batch)

    def sample(self, seed: int = 0, dtype: torch.dtype = torch.float64, device: torch.device | None = None) -> Tensor:
        """Standard normal numbers in this space; an open size is taken as 1."""
        generator = torch.Generator().manual_seed(seed)
        size = [self.batch or 1, *(n or 1 for n in self.shape)]
        kind = dtype.to_complex() if self.field == "complex" else dtype
        return torch.randn(size, generator=generator, dtype=kind).to(device)

    def _describe(self) -> str:
        batch = "B" if self.batch is None else str(self.batch)
        return f"({', '.join([batch, *('any' if n is None else str(n) for n in self.shape)])})"


def _fits(actual: tuple[int, ...], wanted: Shape) -> bool:
    return len(actual) == len(wanted) and all(w is None or a == w for a, w in zip(actual, wanted, strict=True))


def _compatible(one: Space, other: Space) -> bool:
    sizes = zip((one.batch, *one.shape), (other.batch, *other.shape), strict=False)
    return (
        len(one.shape) == len(other.shape)
        and {one.field, other.field} != {"real", "complex"}
        and all(a is None or b is None or a == b for a, b in sizes)
    )

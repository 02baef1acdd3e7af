"""The two sides of one of our operators with every size known, as libraries need them that know no batches."""

from dataclasses import dataclass

import torch

from lipspline.operators.base import LinearOperator


@dataclass(frozen=True)
class Side:
    """Images or data of an operator: their shape without batch, and whether they are complex."""

    shape: tuple[int, ...]
    complex: bool


def sides(H: LinearOperator, input_shape: tuple[int, ...] | None, *, complex: bool = False) -> tuple[Side, Side]:
    """Images and data of an operator.

    Args:
        H: ours.
        input_shape: sizes of an image, needed where H leaves one open.
        complex: what images are, where H takes both real and complex ones.

    Example:
        >>> from lipspline.operators import MRI, cartesian_mask
        >>> sides(MRI(cartesian_mask(8)), (1, 6, 8))
        (Side(shape=(1, 6, 8), complex=False), Side(shape=(1, 6, 8), complex=True))
    """
    if H.domain.batch not in (None, 1):
        raise ValueError(f"{H!r} holds data for {H.domain.batch} images, but only one image at a time can be taken.")
    shape = _closed(H, input_shape)
    kind = torch.complex64 if _is_complex(H, complex) else torch.float32
    y = H.forward(torch.zeros(1, *shape, dtype=kind))
    return Side(shape, kind.is_complex), Side(tuple(y.shape[1:]), y.is_complex())


def _closed(H: LinearOperator, given: tuple[int, ...] | None) -> tuple[int, ...]:
    shape = H.input_shape if given is None else tuple(given)
    known = tuple(size for size in shape if size is not None)
    if len(known) < len(shape):
        raise ValueError(f"{H!r} takes images of several sizes. Say which with input_shape=(...), without batch.")
    return known


def _is_complex(H: LinearOperator, wanted: bool) -> bool:
    if wanted and H.domain.field == "real":
        raise ValueError(f"{H!r} takes real images only, so it cannot have a complex dtype.")
    return wanted or H.domain.field == "complex"

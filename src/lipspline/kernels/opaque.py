"""Functions that torch calls but does not look into, so that they may decide by the values of tensors.

An iteration to a tolerance cannot be traced by `torch.compile` or vectorised by `torch.func.vmap`. As an operator it
is called with ordinary tensors whatever surrounds it. (`torch.library.custom_op` would do, but its first call imports
the compiler, which takes seconds.)
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

_library = torch.library.Library("lipspline", "FRAGMENT")


def opaque(schema: str, fake: Callable[..., Tensor]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Make a function of tensors with any leading batch dimensions an operator without derivatives.

    Args:
        schema: as torch.library spells it, e.g. `"double(Tensor x) -> Tensor"`.
        fake: makes an empty tensor of the shape, strides and dtype of the result.
    """

    def register(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
        name = schema.partition("(")[0]
        if hasattr(torch.ops.lipspline, name):  # its module is imported once more, as reloading does
            return getattr(torch.ops.lipspline, name).default
        _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        operator = getattr(torch.ops.lipspline, name).default

        def batched(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
            return operator(*map(_lead, arguments, in_dims, [info.batch_size] * len(arguments))), 0

        _library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"lipspline::{name}", fake, lib=_library)
        torch.library.register_vmap(f"lipspline::{name}", batched, lib=_library)
        return operator

    return register


def _lead(argument: Any, dim: int | None, size: int) -> Any:
    """Bring the dimension over which vmap maps to the front, and add it where a tensor lacks it."""
    if not isinstance(argument, Tensor):
        return argument
    return argument.expand(size, *argument.shape) if dim is None else argument.movedim(dim, 0)

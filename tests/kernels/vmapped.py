"""What it means that vmap of an operator is right: values and gradients are those of a loop."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def assert_vmap_is_a_loop(
    function: Callable[..., Tensor],
    members: Sequence[Tensor],
    in_dims: tuple[int | None, ...],
    learned: tuple[int, ...],
) -> None:
    """Compare vmap with a loop.

    Args:
        members: the arguments of `function`, with the member as dimension 0.
        in_dims: where vmap finds the member; None takes the first member's argument for all.
        learned: numbers of the arguments whose gradients are compared.
    """
    arguments = [t[0] if dim is None else t.movedim(0, dim) for t, dim in zip(members, in_dims, strict=True)]
    gradient = torch.func.grad(lambda *a: function(*a).pow(2).sum(), argnums=learned)
    together = torch.func.vmap(function, in_dims)(*arguments)
    gradients = torch.func.vmap(gradient, in_dims)(*arguments)
    for i in range(len(members[0])):
        one = [t if dim is None else t.select(dim, i) for t, dim in zip(arguments, in_dims, strict=True)]
        assert torch.equal(together[i], function(*one))
        for batch, single in zip(gradients, gradient(*one), strict=True):
            torch.testing.assert_close(batch[i], single)

"""Makes a function of tensors a torch operator: one that autograd, vmap, fake tensors, compile and export know.

`torch.library.custom_op` would do the same in fewer words, at 30 microseconds a call before any work is done and
without forward-mode derivatives. Here an operator is a schema, a kernel and a `torch.autograd.Function` that holds its
derivatives, and ordinary tensors take a way past the dispatcher.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch._functorch.utils import enable_single_level_autograd_function  # type: ignore[attr-defined]
from torch.autograd import forward_ad
from torch.compiler import is_compiling

functorch_is_active = torch._C._are_functorch_transforms_active
_library = torch.library.Library("lipspline", "FRAGMENT")


def _keys(t: Tensor) -> int:
    return torch._C._dispatch_keys(t).raw_repr()


def _ordinary_keys() -> frozenset[int]:
    with torch.inference_mode():
        inference = torch.empty(0)
    return frozenset({_keys(torch.empty(0)), _keys(inference)})


_ORDINARY = _ordinary_keys()  # dense CPU tensors that no subclass, transform or view of bits wraps


def is_traced() -> bool:
    """Whether a compiler or a mode (of fake tensors, say) looks at what is called."""
    return is_compiling() or torch._C._len_torch_dispatch_stack() > 0


def is_ordinary(*tensors: Tensor) -> bool:
    """Whether these are dense CPU tensors outside every mode and transform, so that a kernel may read their memory."""
    if is_traced():
        return False
    for t in tensors:  # noqa: SIM110 (`all` would cost as much again as the loop)
        if _keys(t) not in _ORDINARY:
            return False
    return True


class Operator:
    """A torch operator, called like a function.

    Args:
        schema: as torch.library spells it, e.g. `"double(Tensor x) -> Tensor"`; tensors come first.
        kernel: computes the result on real tensors, without regard to derivatives.
        fake: makes empty tensors of the shapes, strides and dtypes of the results.
        batched: the rule of vmap, `(info, in_dims, *arguments) -> (results, out_dims)`.
    """

    def __init__(self, schema: str, *, kernel: Callable, fake: Callable, batched: Callable):
        name = _library.define(schema, tags=(torch.Tag.pt2_compliant_tag,))
        self.kernel = kernel
        self.overload = getattr(torch.ops.lipspline, name).default
        self._tensors = schema.count("Tensor ")
        _library.impl(name, kernel, "CompositeExplicitAutograd")
        torch.library.register_fake(f"lipspline::{name}", fake, lib=_library)
        torch.library.register_vmap(f"lipspline::{name}", batched, lib=_library)
        _library.impl(name, self._differentiably, "Autograd")

    def derivatives(self, function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
        """Class decorator: the autograd function whose `forward` calls `self.evaluate`."""
        # Not `function.apply`: that is a layer above for functorch, whose levels the dispatcher has seen to already.
        self._apply = super(torch.autograd.Function, function).apply  # type: ignore[attr-defined]
        if "jvp" in vars(function):
            function.jvp = staticmethod(_with_outer_tangents(function.jvp))
        return function

    def __call__(self, *arguments: Any) -> Any:
        # The compiler and functorch must see an operator. Everything else may call autograd directly: the way through
        # the dispatcher and back costs more than a small input does.
        if is_compiling() or functorch_is_active():
            return self.overload(*arguments)
        if torch.is_grad_enabled() or forward_ad._current_level >= 0:
            return self._apply(*arguments)
        return self.evaluate(*arguments)

    def evaluate(self, *arguments: Any) -> Any:
        """The result without derivatives at this level: by the kernel for ordinary tensors, else by the dispatcher."""
        if is_ordinary(*arguments[: self._tensors]):
            return self.kernel(*arguments)
        with torch._C._AutoDispatchBelowAutograd():
            if not functorch_is_active():
                return self.overload(*arguments)
            # `forward` of an autograd function runs without gradients, but the levels below may want theirs.
            with torch.enable_grad(), forward_ad._set_fwd_grad_enabled(True):
                return self.overload(*arguments)

    def _differentiably(self, *arguments: Any) -> Any:
        if not functorch_is_active():
            return self._apply(*arguments)
        with enable_single_level_autograd_function():
            return self._apply(*arguments)


class _AtPrimals:
    """The context of an autograd function whose saved tensors have no tangents at the innermost level."""

    def __init__(self, ctx: Any):
        self._ctx = ctx

    def __getattr__(self, name: str) -> Any:
        return getattr(self._ctx, name)

    @property
    def saved_tensors(self) -> tuple[Tensor, ...]:
        return tuple(forward_ad.unpack_dual(t).primal for t in self._ctx.saved_tensors)


def _with_outer_tangents(jvp: Callable) -> Callable:
    """torch calls `jvp` with forward derivatives switched off, and those of an outer level would be lost."""

    def call(ctx: Any, *tangents: Any) -> Any:
        with forward_ad._set_fwd_grad_enabled(True):
            return jvp(_AtPrimals(ctx), *tangents)

    return call


def in_front(t: Tensor, dim: int | None, size: int) -> Tensor:
    """`t` with its batch dimension in front, made by repetition if it has none: for the rules of vmap."""
    if dim is None:
        return t.expand(size, *t.shape)
    return t.movedim(dim, 0) if dim else t

"""A kernel as one entry of a table: its schema, its formula in plain torch, its C function, and when that may run.

An entry whose results torch must be able to differentiate, vectorise and compile is made a torch operator.
`torch.library.custom_op` would do the same in fewer words, at 30 microseconds a call before any work is done and
without forward-mode derivatives. Here an operator is a schema, a kernel and a `torch.autograd.Function` that holds its
derivatives, and ordinary tensors take a way past the dispatcher.

That way uses private names of torch. Where one of them is missing, every kernel is its formula in plain torch.
"""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from typing import Any, Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from lipspline._infra import checks
from lipspline.kernels import native

try:
    from torch._functorch.utils import enable_single_level_autograd_function  # type: ignore[attr-defined]

    _SingleLevel: Any = torch.autograd.function._SingleLevelFunction
    functorch_is_active = torch._C._are_functorch_transforms_active
    _dispatch_keys, _count_modes = torch._C._dispatch_keys, torch._C._len_torch_dispatch_stack
    _below_autograd, _with_tangents = torch._C._AutoDispatchBelowAutograd, forward_ad._set_fwd_grad_enabled
    _library = torch.library.Library("lipspline", "FRAGMENT")
    _register = torch.library.register_fake, torch.library.register_vmap, torch.Tag.pt2_compliant_tag
    HAS_HOOKS = forward_ad._current_level < 0 and hasattr(_dispatch_keys(torch.empty(0)), "raw_repr")
except (ImportError, AttributeError):
    HAS_HOOKS = False

    def functorch_is_active() -> bool:
        """Nobody can tell."""
        return True


Implementation = Literal["eager", "c", "triton"]
IMPLEMENTATIONS = ("eager", "c", "triton")
Derivatives = Literal["all", "backward", "none"]

TABLE: dict[str, "Kernel"] = {}
"""Every kernel by its name."""

_C_IS_THERE = HAS_HOOKS and native.library is not None
_forced = threading.local()


# Which implementation runs


def implementation(x: Tensor) -> str:
    """The implementation for tensors like `x`: C on the CPU if it was built, Triton on CUDA, plain torch elsewhere."""
    forced = getattr(_forced, "name", None)
    if forced is not None:
        return forced
    if x.is_cuda:
        return "triton" if _has_triton() else "eager"
    return "c" if _C_IS_THERE and x.is_cpu else "eager"


@cache
def _has_triton() -> bool:
    return find_spec("triton") is not None


@contextmanager
def using(name: Implementation) -> Iterator[None]:
    """Run every kernel called by this thread with one implementation, whatever the device.

    Autograd runs the backward of CPU tensors on the thread that asked for it, so this holds for backward too.

    Example:
        >>> from lipspline import kernels
        >>> with kernels.using("eager"):
        ...     kernels.active()
        'plain torch'
    """
    checks.one_of("name", name, IMPLEMENTATIONS)
    if name == "c" and not _C_IS_THERE:
        raise RuntimeError(
            "The C kernels are not built, so they cannot be used. Install lipspline on a machine with a C compiler."
            if HAS_HOOKS
            else f"The C kernels do not know torch {torch.__version__}, so they cannot be used."
        )
    before = getattr(_forced, "name", None)
    _forced.name = name
    try:
        yield
    finally:
        _forced.name = before


def active() -> str:
    """What CPU tensors run on at present, in words."""
    name = implementation(torch.empty(0))
    if name == "c":
        return native.description()
    if name == "triton":
        return "Triton"
    if not HAS_HOOKS:
        return f"plain torch (the C kernels do not know torch {torch.__version__})"
    return "plain torch" if native.library is not None else "plain torch (the C kernels are not built)"


# When C may run


def _keys(t: Tensor) -> int:
    return _dispatch_keys(t).raw_repr()


def _ordinary_keys() -> frozenset[int]:
    with torch.inference_mode():
        inference = torch.empty(0)
    return frozenset({_keys(torch.empty(0)), _keys(inference)})


_ORDINARY = _ordinary_keys() if HAS_HOOKS else frozenset()  # dense CPU tensors without subclass, transform or bit view


def is_traced() -> bool:
    """Whether a compiler or a mode (of fake tensors, say) looks at what is called."""
    return not HAS_HOOKS or is_compiling() or _count_modes() > 0


def is_ordinary(*tensors: Tensor) -> bool:
    """Whether these are dense CPU tensors outside every mode and transform, so that a kernel may read their memory."""
    if is_traced():
        return False
    for t in tensors:  # noqa: SIM110 (`all` would cost as much again as the loop)
        if _keys(t) not in _ORDINARY:
            return False
    return True


def is_transformed() -> bool:
    """Whether a transform of functorch or a forward-mode derivative wants more than values and a backward."""
    return functorch_is_active() or forward_ad._current_level >= 0


def wants_only_values(*tensors: Tensor) -> bool:
    """Whether these are ordinary tensors of which nobody wants a derivative."""
    if not is_ordinary(*tensors) or is_transformed():
        return False
    return not (torch.is_grad_enabled() and any(t.requires_grad for t in tensors))


class Kernel:
    """One entry of the table.

    Args:
        schema: as torch.library spells it, e.g. `"double(Tensor x) -> Tensor"`; tensors come first.
        eager: the formula in plain torch: for every device, and the oracle of the tests.
        c: the same by a C function, on tensors of which `in_c` is true. `lipspline.kernels.native` checks sizes again.
        c_function: its name, in `native.FUNCTIONS`.
        check: raises a ValueError for arguments that fit no implementation.
        derivatives: what the C function serves. "all": the entry is a torch operator, and all derivatives are made of
            operators. "backward": there is a backward beside it, and forward-mode derivatives and transforms get the
            formula. "none": the values only.
        casts: for each result the tensor argument whose dtype it has. All tensors are then brought to one dtype,
            float32 or float64, before anything is computed. None leaves the dtypes alone.
        alike: whether the C function wants all tensors of one dtype. Else the first one counts.
        triton: the same in Triton.
        fake: makes empty tensors of the shapes, strides and dtypes of the results. Makes the entry a torch operator.
        batched: the rule of vmap, `(info, in_dims, *arguments) -> (results, out_dims)`.
    """

    def __init__(
        self,
        schema: str,
        *,
        eager: Callable,
        c: Callable,
        c_function: str,
        check: Callable[..., None] | None = None,
        derivatives: Derivatives = "all",
        casts: tuple[int, ...] | None = None,
        alike: bool = True,
        triton: Callable | None = None,
        fake: Callable | None = None,
        batched: Callable | None = None,
    ):
        self.name, self.schema = schema.partition("(")[0], schema
        self.c_function, self.derivatives = c_function, derivatives
        self.eager, self.c, self.triton, self.check, self.fake = eager, c, triton, check, fake
        self.tensors = schema.partition("->")[0].count("Tensor ")
        self._casts, self._alike = casts, alike
        self._is_built = HAS_HOOKS and c_function in native.pointers
        self._numbers = native.FUNCTIONS[c_function].numbers
        if fake is not None and HAS_HOOKS:
            self._make_operator(batched)
        TABLE[self.name] = self

    def _make_operator(self, batched: Callable | None) -> None:
        register_fake, register_vmap, tag = _register
        _library.define(self.schema, tags=(tag,))
        self.overload = getattr(torch.ops.lipspline, self.name).default
        _library.impl(self.name, self.run, "CompositeExplicitAutograd")
        register_fake(f"lipspline::{self.name}", self.fake, lib=_library)
        register_vmap(f"lipspline::{self.name}", batched, lib=_library)
        _library.impl(self.name, self._differentiably, "Autograd")

    def gradients(self, function: type[torch.autograd.Function]) -> type[torch.autograd.Function]:
        """Class decorator: the autograd function whose `forward` calls `self.evaluate`."""
        self._apply = function.apply
        if HAS_HOOKS:
            if "jvp" in vars(function):
                function.jvp = staticmethod(_with_outer_tangents(function.jvp))
            # `function.apply` is a layer above for functorch, whose levels the dispatcher has seen to already.
            members = {k: v for k, v in vars(function).items() if k not in ("__dict__", "__weakref__")}
            self._apply = type(_SingleLevel)(function.__name__, (_SingleLevel,), members).apply  # pyright: ignore[reportPossiblyUnboundVariable]
        return function

    def in_c(self, *tensors: Tensor) -> bool:
        """Whether the C function computes from these tensors: the one place where that is decided.

        It does if C is the implementation, if all tensors are dense CPU memory that nothing wraps, of one dtype that
        the function has a version for, the first one not empty, and if nobody wants derivatives that it does not serve.
        """
        forced = getattr(_forced, "name", None)
        if not self._is_built or (forced is not None and forced != "c") or is_traced():
            return False
        dtype, alike = tensors[0].dtype, self._alike
        if dtype not in self._numbers or not tensors[0].numel():
            return False
        for t in tensors:
            if _dispatch_keys(t).raw_repr() not in _ORDINARY or (alike and t.dtype is not dtype):
                return False
        if self.derivatives == "all":
            return True
        return wants_only_values(*tensors) if self.derivatives == "none" else not is_transformed()

    def __call__(self, *arguments: Any) -> Any:
        # The compiler and functorch must see an operator. Everything else may call autograd directly: the way through
        # the dispatcher and back costs more than a small input does.
        if not HAS_HOOKS:
            return self.run(*arguments)
        if is_compiling() or functorch_is_active():
            return self.overload(*arguments)
        if torch.is_grad_enabled() or forward_ad._current_level >= 0:
            return self._apply(*arguments)
        return self.evaluate(*arguments)

    def evaluate(self, *arguments: Any) -> Any:
        """The result without derivatives at this level: at once for ordinary tensors, else by the dispatcher."""
        tensors = arguments[: self.tensors]
        if self.in_c(*tensors):
            if self.check is not None:
                self.check(*arguments)
            return self.c(*arguments)
        if is_ordinary(*tensors):
            return self.run(*arguments)
        with _below_autograd():
            if not functorch_is_active():
                return self.overload(*arguments)
            # `forward` of an autograd function runs without gradients, but the levels below may want theirs.
            with torch.enable_grad(), _with_tangents(True):
                return self.overload(*arguments)

    def run(self, *arguments: Any) -> Any:
        """The result on real tensors, without regard to derivatives, by the implementation for them."""
        tensors = arguments[: self.tensors]
        if self._casts is not None and (dtype := native.working_dtype(*tensors)):
            results = self.run(*(t.to(dtype) for t in tensors), *arguments[self.tensors :])
            if isinstance(results, Tensor):
                return results.to(tensors[self._casts[0]].dtype)
            return tuple(t.to(tensors[i].dtype) for t, i in zip(results, self._casts, strict=True))
        if self.check is not None:
            self.check(*arguments)
        if self.in_c(*tensors):
            return self.c(*arguments)
        if self.triton is not None and implementation(tensors[0]) == "triton" and tensors[0].numel():
            return self.triton(*arguments)
        return self._by_formula(*arguments)

    def _by_formula(self, *arguments: Any) -> Any:
        """The formula, its results laid out in memory as the fakes promise."""
        assert self.fake is not None
        results, layouts = self.eager(*arguments), self.fake(*arguments)
        if isinstance(results, Tensor):
            return native.like(results, layouts)
        return tuple(map(native.like, results, layouts))

    def _differentiably(self, *arguments: Any) -> Any:
        if not functorch_is_active():
            return self._apply(*arguments)
        with enable_single_level_autograd_function():  # pyright: ignore[reportPossiblyUnboundVariable]
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
        with _with_tangents(True):
            return jvp(_AtPrimals(ctx), *tangents)

    return call


def in_front(t: Tensor, dim: int | None, size: int) -> Tensor:
    """`t` with its batch dimension in front, made by repetition if it has none: for the rules of vmap."""
    if dim is None:
        return t.expand(size, *t.shape)
    return t.movedim(dim, 0) if dim else t


def decompositions() -> dict[Any, Callable]:
    """What `run_decompositions` of an exported program needs to leave only torch's own operators in it."""
    return {kernel.overload: kernel.eager for kernel in TABLE.values() if hasattr(kernel, "overload")}


def opaque(schema: str, fake: Callable[..., Tensor]) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Make a function of tensors with any leading batch dimensions an operator that torch does not look into.

    It may then decide by the values of tensors: an iteration to a tolerance cannot be traced by `torch.compile` or
    vectorised by `torch.func.vmap`. It has no derivatives. (`torch.library.custom_op` would do, but its first call
    imports the compiler, which takes seconds.)

    Args:
        schema: as torch.library spells it, e.g. `"double(Tensor x) -> Tensor"`.
        fake: makes an empty tensor of the shape, strides and dtype of the result.
    """

    def register(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
        name = schema.partition("(")[0]
        if not HAS_HOOKS:
            return function
        if hasattr(torch.ops.lipspline, name):  # its module is imported once more, as reloading does
            return getattr(torch.ops.lipspline, name).default
        register_fake, register_vmap, tag = _register
        _library.define(schema, tags=(tag,))
        operator = getattr(torch.ops.lipspline, name).default

        def batched(info: Any, in_dims: tuple[int | None, ...], *arguments: Any) -> tuple[Tensor, int]:
            pairs = zip(arguments, in_dims, strict=True)
            return operator(*(in_front(a, d, info.batch_size) if isinstance(a, Tensor) else a for a, d in pairs)), 0

        _library.impl(name, function, "CompositeExplicitAutograd")
        register_fake(f"lipspline::{name}", fake, lib=_library)
        register_vmap(f"lipspline::{name}", batched, lib=_library)
        return operator

    return register

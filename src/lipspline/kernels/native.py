"""The C library, if it was built: what each of its functions expects, and the only place that hands memory to them.

The library has no OpenMP runtime of its own: two of them in one process wait for work by spinning on the same cores.
`GOMP_parallel` is looked up among the libraries that torch is linked with (GNU's runtime has it, LLVM's and Intel's
offer it for compatibility) and handed over. Where it is missing the library computes on the calling thread.
"""

import ctypes
import os
from collections.abc import Callable
from ctypes import c_double, c_int, c_int64, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from math import prod
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

INSTRUCTION_SETS = ("baseline", "AVX2", "AVX-512")
SINGLE, DOUBLE = (torch.float32,), (torch.float64,)
NUMBERS = SINGLE + DOUBLE
LANES, PANEL = 8, 16
"""Input and output channels that Winograd's algorithm takes at a time."""


class CFunction(NamedTuple):
    """The arguments of a C function: [bits,] tensors, doubles, sizes, further tensors, threads."""

    before: int
    doubles: int
    sizes: int
    after: int
    elements: Callable[..., tuple[int, ...]]
    """How many numbers each of the tensors has, by the sizes."""
    float64: tuple[int, ...] = ()
    """Which of the tensors are float64 whatever the others are."""
    numbers: tuple[torch.dtype, ...] = NUMBERS
    """The types that there are versions for; of several it is told the bits."""

    @property
    def has_bits(self) -> bool:
        """Whether its first argument says which version is meant."""
        return len(self.numbers) > 1

    @property
    def reads(self) -> range:
        """The tensors that it only reads: those before the sizes, but for a result that is among them."""
        return range(self.before if self.after else self.before - 1)


def _scaled_spline_backward(g: int, o: int, c: int, i: int, r: int) -> tuple[int, ...]:
    n, rows = g * o * c * i, g * c
    coefficients, tables = rows * (r + 1), rows * (2 * r + 1)
    return n, n, coefficients, rows, tables, n, coefficients, rows


def _ridge_gradient(b: int, g: int, h: int, w: int, stride: int, c: int, even: int, r: int, k: int, rows: int):
    taps = (k * k + 1) // 2
    parts = b * -(-h // rows) * (rows + k - 1) * stride
    return b * (h + k - 1) * stride, c * taps, c * (taps + -taps % 4), 2 * g * c * r, g * c, parts, b * h * w


def _weighted_ridge_gradient(b: int, g: int, h: int, w: int, stride: int, c: int, even: int, r: int, k: int, rows: int):
    *before, parts, y = _ridge_gradient(b, g, h, w, stride, c, even, r, k, rows)
    return *before, b * c * h * w, parts, y


def _ridge_energy(b: int, g: int, h: int, w: int, stride: int, c: int, even: int, r: int, k: int, rows: int):
    padded, taps = b * (h + k - 1) * stride, (k * k + 1) // 2
    return padded, c * taps, 2 * g * c * r, g * c * r, g * c, b * -(-h // rows)


def _ridge_pairing(b: int, g: int, h: int, w: int, stride: int, c: int, even: int, r: int, k: int):
    padded, taps = b * (h + k - 1) * stride, (k * k + 1) // 2
    return padded, padded, c * taps, 2 * g * c * r, g * c, 8 * b * c * taps, 2 * b * c * r


def _weighted_ridge_pairing(b: int, g: int, h: int, w: int, stride: int, c: int, even: int, r: int, k: int):
    *before, products, sums = _ridge_pairing(b, g, h, w, stride, c, even, r, k)
    return *before, (weights := b * c * h * w), products, sums, weights


FUNCTIONS = {
    # groups, outer, channels, inner; regions
    "piecewise_affine": CFunction(
        4, 1, 5, 1, lambda g, o, c, i, r: ((n := g * o * c * i), (table := g * c * r), table, g * c, n)
    ),
    "piecewise_affine_backward": CFunction(
        4, 1, 5, 3, lambda g, o, c, i, r: ((n := g * o * c * i), n, (table := g * c * r), g * c, n, table, table)
    ),
    "scaled_spline": CFunction(
        3, 3, 5, 2, lambda g, o, c, i, r: ((n := g * o * c * i), (k := g * c) * (r + 1), k, k * (2 * r + 1), n)
    ),
    "scaled_spline_backward": CFunction(4, 3, 5, 4, _scaled_spline_backward),
    "spline_tables": CFunction(2, 3, 2, 2, lambda n, r: (n * (r + 1), n, n * r, n * r)),
    "spline_tables_backward": CFunction(4, 3, 2, 2, lambda n, r: (n * r, n * r, n * (r + 1), n, n * (r + 1), n)),
    "swap_pairs": CFunction(2, 0, 4, 1, lambda o, p, i, _: (2 * o * p * i,) * 3),
    "householder": CFunction(2, 0, 3, 1, lambda o, p, i: (2 * o * p * i, 2 * p, 2 * o * p * i)),
    "householder_backward": CFunction(
        3, 0, 3, 2, lambda o, p, i: (2 * o * p * i, 2 * o * p * i, 2 * p, 2 * o * p * i, 2 * p)
    ),
    "line_sums": CFunction(4, 0, 5, 0, lambda b, i, j, k, n: (4 * b * k * n, i * k, i * k, 4 * b * i * j), (1, 2)),
    "line_spread": CFunction(4, 0, 5, 0, lambda b, i, j, k, n: (4 * b * i * j, i * k, i * k, 4 * b * k * n), (1, 2)),
    "ray_sums": CFunction(4, 0, 5, 0, lambda b, i, j, k, n: (4 * b * k * n, i * j, i * j, 4 * b * i * j), (1, 2)),
    "ray_spread": CFunction(4, 0, 5, 0, lambda b, i, j, k, n: (4 * b * i * j, i * j, i * j, 4 * b * k * n), (1, 2)),
    "winograd": CFunction(
        3, 0, 5, 1, lambda n, h, w, i, o: (n * h * w * i, 36 * i * (o + -o % PANEL), o, n * h * w * o), numbers=SINGLE
    ),
    # images, height, width, in, out; parts
    "winograd_weights": CFunction(
        2,
        0,
        6,
        1,
        lambda n, h, w, i, o, p: (n * h * w * i, n * h * w * o, 9 * p * (i + -i % LANES) * (o + -o % PANEL)),
        numbers=SINGLE,
    ),
    "ridge_gradient": CFunction(5, 1, 10, 2, _ridge_gradient, numbers=SINGLE),
    "ridge_energy": CFunction(5, 1, 10, 1, _ridge_energy, float64=(5,), numbers=SINGLE),
    "ridge_pairing": CFunction(5, 1, 9, 2, _ridge_pairing, numbers=SINGLE),
    "weighted_ridge_gradient": CFunction(6, 1, 10, 2, _weighted_ridge_gradient, numbers=SINGLE),
    "weighted_ridge_pairing": CFunction(6, 1, 9, 3, _weighted_ridge_pairing, numbers=SINGLE),
    # images, height, width, inner; gap
    "wavelet_split": CFunction(2, 0, 5, 2, lambda n, h, w, i, _: ((x := n * h * w * i), 8, x, 3 * x)),
    "wavelet_merge": CFunction(3, 0, 5, 1, lambda n, h, w, i, _: ((x := n * h * w * i), 3 * x, 8, x)),
    "total_variation": CFunction(3, 0, 2, 1, lambda rows, n: (rows * n, rows * n, rows, rows * n), numbers=DOUBLE),
}
"""Every function that is given memory. A new one is described here, or `call` does not know it."""

_forked = False


def threads() -> int:
    """How many threads a call may use: torch's number, and one in a forked child.

    A fork copies the state of the thread pool but not its threads; waiting for them would never end.
    """
    return 1 if _forked else torch.get_num_threads()


def _load() -> ctypes.CDLL | None:
    for suffix in EXTENSION_SUFFIXES:
        path = Path(__file__).with_name(f"_native{suffix}")
        if path.exists():
            try:
                return _declare(ctypes.CDLL(str(path)))
            except (OSError, AttributeError):  # built for another machine, or by another version of the package
                return None
    return None


def _declare(library: ctypes.CDLL) -> ctypes.CDLL:
    """Tell ctypes the arguments of every function; an AttributeError says the library is not ours."""
    arguments: dict[str, list[Any]] = {
        "has_winograd": [],
        "has_ridge": [],
        "use_pool": [c_void_p],
        "instruction_set": [],
        "limit_instruction_set": [c_int],
    }
    for name, function in FUNCTIONS.items():
        sizes = [c_int64] * function.sizes
        if name == "swap_pairs":  # its last is a flag
            sizes[-1] = c_int  # type: ignore[call-overload]
        before, after = [c_void_p] * function.before, [c_void_p] * function.after
        arguments[name] = [c_int] * function.has_bits + before + [c_double] * function.doubles + sizes + after + [c_int]
    for name, types in arguments.items():
        function = getattr(library, f"lipspline_{name}")
        function.argtypes = types
        function.restype = c_int
    return library


def _torch_pool() -> int | None:
    """Address of `GOMP_parallel` in the OpenMP runtime of torch, or None."""
    folder = Path(torch.__file__).parent / "lib"
    for name in ("libtorch_cpu.so", "libtorch_cpu.dylib"):
        try:  # a lookup in a loaded library also searches what that library is linked with
            return ctypes.cast(ctypes.CDLL(str(folder / name)).GOMP_parallel, c_void_p).value
        except (OSError, AttributeError):
            continue
    return None


def _after_fork() -> None:
    global _forked
    _forked = True


library = _load()
pool = _torch_pool() if library is not None else None
pointers = {} if library is None else {name: getattr(library, f"lipspline_{name}") for name in FUNCTIONS}
if library is not None:
    library.lipspline_use_pool(pool)
    os.register_at_fork(after_in_child=_after_fork)


def call(name: str, doubles: tuple[float, ...], sizes: tuple[int, ...], *tensors: Tensor) -> None:
    """Call a C function, after checking that it can read and write its tensors: the only way into the library.

    Raises:
        ValueError: a tensor is not dense CPU memory of the right type and size.
        MemoryError: the function could not allocate its scratch memory.
    """
    function = FUNCTIONS[name]
    dtype, size = tensors[0].dtype, tensors[0].itemsize
    arguments: list[float] = []
    plain = dtype in function.numbers and min(sizes) >= 0
    plain = plain and not function.float64  # all of one type, or looked at one by one
    for tensor, count in zip(tensors, function.elements(*sizes), strict=True):
        pointer = tensor.data_ptr()  # 0 if there is no memory
        arguments.append(pointer)
        if tensor.dtype is not dtype or tensor.numel() != count or not pointer or pointer % size:
            plain = False
        if not tensor.is_cpu or not (tensor.is_contiguous() or is_dense(tensor)):
            plain = False
    if not plain:
        tensors = _checked(name, sizes, tensors)
        arguments = [tensor.data_ptr() for tensor in tensors]
    arguments[function.before : function.before] = (*doubles, *sizes)
    if function.has_bits:
        arguments.insert(0, 8 * size)
    if pointers[name](*arguments, threads()):
        raise MemoryError(f"{name} could not allocate its scratch memory.")


def _checked(name: str, sizes: tuple[int, ...], tensors: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """Refuse what a C function would misread, and copy what it reads at an odd address."""
    function = FUNCTIONS[name]
    dtype = tensors[0].dtype
    problem = None
    if min(sizes) < 0:
        problem = f"the sizes {sizes}"
    elif dtype not in function.numbers:
        problem = f"numbers of type {dtype}"
    checked = []
    for i, (tensor, count) in enumerate(zip(tensors, function.elements(*sizes), strict=True)):
        wanted = torch.float64 if i in function.float64 else dtype
        if tensor.dtype is not wanted:
            problem = f"{tensor.dtype} instead of {wanted} as tensor {i}"
        elif tensor.numel() != count or not count:
            problem = f"{tensor.numel()} numbers instead of {max(count, 1)} as tensor {i}"
        elif not is_dense(tensor):
            problem = f"a tensor {i} on {tensor.device} of shape {tuple(tensor.shape)}, strides {tensor.stride()}"
        elif tensor.data_ptr() % tensor.itemsize:
            if i not in function.reads:
                problem = f"a tensor {i} to write to that does not begin at a multiple of {tensor.itemsize} bytes"
            tensor = tensor.clone()
        checked.append(tensor)
    if problem is not None:
        raise ValueError(f"The C function {name} was given {problem}.")
    return tuple(checked)


def description() -> str:
    """What the library runs on, in words."""
    assert library is not None
    level = INSTRUCTION_SETS[library.lipspline_instruction_set()]
    return f"C, {level}, {'the threads of torch' if pool else 'one thread'}"


# How C sees tensors: dense memory as (groups, outer, channels, inner), numbers as float32 or float64

Sizes = tuple[int, int, int, int]


def is_dense(x: Tensor) -> bool:
    """Whether the elements of `x` fill a block of CPU memory, in any order of its dimensions."""
    return x.is_cpu and (x.is_contiguous() or _inner_size(x, 0) is not None)


def densely(x: Tensor, channel_dim: int, *, grouped: bool = False) -> tuple[Tensor, Sizes]:
    """`x` without gaps in memory, copied only if it must be, and its sizes (groups, outer, channels, inner).

    Any order of the dimensions in memory will do (contiguous, channels last, a transposed matrix): those outside the
    channel dimension make up `outer`, those inside it `inner`.

    Args:
        channel_dim: not negative.
        grouped: whether dimension 0 numbers groups with tables of their own; x is then made contiguous.

    Example:
        >>> x = torch.zeros(2, 3, 4, 5)
        >>> densely(x, 1)[1], densely(x.to(memory_format=torch.channels_last), 1)[1]
        ((1, 2, 3, 20), (1, 40, 3, 1))
    """
    if grouped:
        x = x.contiguous()
    if x.is_contiguous():
        shape = x.shape
        inner = prod(shape[channel_dim + 1 :])
        if grouped:
            return x, (shape[0], prod(shape[1:channel_dim]), shape[channel_dim], inner)
        return x, (1, prod(shape[:channel_dim]), shape[channel_dim], inner)
    inner = _inner_size(x, channel_dim)
    if inner is None:
        x = torch.empty_like(x).copy_(x)
        return densely(x, channel_dim)
    channels = x.shape[channel_dim]
    return x, (1, x.numel() // (channels * inner), channels, inner)


def like(g: Tensor, x: Tensor) -> Tensor:
    """`g` in the memory layout of `x` (of a copy without gaps, if x has some), copied only if it has another."""
    if g.stride() == x.stride() or (g.is_contiguous() and x.is_contiguous()):
        return g
    laid_out = torch.empty_like(x, dtype=g.dtype)
    return g if g.stride() == laid_out.stride() else laid_out.copy_(g)


def working_dtype(x: Tensor, *others: Tensor) -> torch.dtype | None:
    """The dtype to compute in: float64 if `x` has it, else float32. None if all tensors have it already."""
    dtype = x.dtype if x.dtype == torch.float64 else torch.float32
    return None if x.dtype == dtype and all(t.dtype == dtype for t in others) else dtype


def _inner_size(x: Tensor, channel_dim: int) -> int | None:
    """Number of elements between neighbours along `channel_dim`, or None if memory has gaps or overlaps."""
    if x.numel() == 0:
        return None
    size, inner = 1, 1
    for stride, dim in sorted((x.stride(dim), dim) for dim in range(x.ndim) if x.shape[dim] > 1):
        if stride != size:
            return None
        if dim == channel_dim:
            inner = size
        size *= x.shape[dim]
    return inner

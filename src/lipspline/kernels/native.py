"""Loads the C library, if it was built, and runs it on the threads torch already has.

The library has no OpenMP runtime of its own: two of them in one process wait for work by spinning on the same cores.
`GOMP_parallel` is looked up among the libraries that torch is linked with (GNU's runtime has it, LLVM's and Intel's
offer it for compatibility) and handed over. Where it is missing the library computes on the calling thread.
"""

import ctypes
import os
from ctypes import c_double, c_int, c_int64, c_void_p
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch

INSTRUCTION_SETS = ("baseline", "AVX2", "AVX-512")

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
    sizes = [c_int64] * 5
    arguments = {
        "lipspline_piecewise_affine": [c_int, *[c_void_p] * 4, c_double, *sizes, c_void_p, c_int],
        "lipspline_piecewise_affine_backward": [c_int, *[c_void_p] * 4, c_double, *sizes, *[c_void_p] * 3, c_int],
        "lipspline_line_sums": [c_int, *[c_void_p] * 4, *sizes, c_int],
        "lipspline_line_spread": [c_int, *[c_void_p] * 4, *sizes, c_int],
        "lipspline_swap_pairs": [c_int, *[c_void_p] * 2, *[c_int64] * 3, c_int, c_void_p, c_int],
        "lipspline_householder": [c_int, *[c_void_p] * 2, *[c_int64] * 3, c_void_p, c_int],
        "lipspline_householder_backward": [c_int, *[c_void_p] * 3, *[c_int64] * 3, *[c_void_p] * 2, c_int],
        "lipspline_spline_tables": [c_int, *[c_void_p] * 2, *[c_double] * 3, *[c_int64] * 2, *[c_void_p] * 2, c_int],
        "lipspline_spline_tables_backward": [
            c_int,
            *[c_void_p] * 4,
            *[c_double] * 3,
            *[c_int64] * 2,
            *[c_void_p] * 2,
            c_int,
        ],
        "lipspline_scaled_spline": [c_int, *[c_void_p] * 3, *[c_double] * 3, *sizes, *[c_void_p] * 2, c_int],
        "lipspline_scaled_spline_backward": [c_int, *[c_void_p] * 4, *[c_double] * 3, *sizes, *[c_void_p] * 4, c_int],
        "lipspline_winograd": [*[c_void_p] * 3, *sizes, c_void_p, c_int],
        "lipspline_has_winograd": [],
        "lipspline_use_pool": [c_void_p],
        "lipspline_instruction_set": [],
        "lipspline_limit_instruction_set": [c_int],
    }
    for name, types in arguments.items():
        function = getattr(library, name)
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
if library is not None:
    library.lipspline_use_pool(pool)
    os.register_at_fork(after_in_child=_after_fork)


def run(name: str, *arguments: object) -> None:
    """Call a function of the library that returns whether it failed."""
    if getattr(library, name)(*arguments):
        raise MemoryError(f"{name} could not allocate its scratch memory.")


def description() -> str:
    """What the library runs on, in words."""
    assert library is not None
    level = INSTRUCTION_SETS[library.lipspline_instruction_set()]
    return f"C, {level}, {'the threads of torch' if pool else 'one thread'}"

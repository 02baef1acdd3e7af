"""The C library: what it may be given, threads, forks, and life without it."""

import multiprocessing
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import Tensor

from lipspline import kernels
from lipspline.kernels import native
from lipspline.kernels.native import densely, like, working_dtype

needs_c = pytest.mark.skipif(native.library is None, reason="the C kernels are not built")
ROOT = Path(__file__).parents[2]


@pytest.fixture
def threads():
    """Restores the number of threads."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def inputs(seed: int, shape: tuple[int, ...] = (4, 16, 40, 40), channels_last: bool = False) -> list[Tensor]:
    """x and a gradient large enough for several threads, tables, scale and vectors."""
    generator = torch.Generator().manual_seed(seed)
    x, g = torch.randn(2, *shape, generator=generator)
    if channels_last:
        x, g = (t.to(memory_format=torch.channels_last) for t in (x, g))
    b, s = torch.randn(2, shape[1], 50, generator=generator)
    return [x, g, b, s, torch.full((shape[1],), 10.0), torch.randn(shape[1] // 2, 2, generator=generator)]


def compute(x: Tensor, g: Tensor, b: Tensor, s: Tensor, scale: Tensor, v: Tensor) -> list[Tensor]:
    """Values and gradients of all kernels."""
    y = kernels.piecewise_affine(x, b, s, scale, 25.0)
    backward = torch.ops.lipspline.piecewise_affine_backward(g, x, s, scale, 25.0, 1)
    reflected = torch.ops.lipspline.householder_backward(g, x, v, 1)
    return [y, *backward, kernels.sort_pairs(x), kernels.householder(x, v), *reflected]


def work(seed: int, shape: tuple[int, ...] = (4, 16, 40, 40), channels_last: bool = False) -> list[Tensor]:
    return compute(*inputs(seed, shape, channels_last))


def same(a: list[Tensor], b: list[Tensor]) -> bool:
    return all(torch.equal(s, t) for s, t in zip(a, b, strict=True))


# What C may be given

SIZES = {
    **dict.fromkeys(("piecewise_affine", "piecewise_affine_backward"), (1, 2, 3, 4, 5)),
    **dict.fromkeys(("scaled_spline", "scaled_spline_backward"), (2, 1, 3, 4, 5)),
    **dict.fromkeys(("spline_tables", "spline_tables_backward"), (3, 5)),
    "swap_pairs": (2, 3, 4, 1),
    **dict.fromkeys(("householder", "householder_backward"), (2, 3, 4)),
    **dict.fromkeys(("line_sums", "line_spread", "ray_sums", "ray_spread"), (2, 3, 4, 5, 6)),
    "winograd": (1, 4, 5, 3, 7),
    "winograd_weights": (1, 4, 5, 3, 7, 1),
    "ridge_gradient": (2, 1, 5, 6, 26, 8, 4, 6, 3, 16),
    "ridge_energy": (2, 1, 5, 6, 26, 8, 4, 6, 3, 16),
    "ridge_pairing": (2, 2, 5, 6, 26, 8, 4, 6, 3),
    "weighted_ridge_gradient": (2, 1, 5, 6, 26, 8, 4, 6, 3, 16),
    "weighted_ridge_pairing": (2, 2, 5, 6, 26, 8, 4, 6, 3),
    **dict.fromkeys(("wavelet_split", "wavelet_merge"), (2, 7, 9, 2, 2)),
    "total_variation": (2, 3),
}


def valid(name: str, dtype: torch.dtype | None = None) -> list[Tensor]:
    """Ones, as many as a function wants of each tensor."""
    function = native.FUNCTIONS[name]
    dtype = function.numbers[0] if dtype is None else dtype
    return [
        torch.ones(count, dtype=torch.float64 if i in function.float64 else dtype)
        for i, count in enumerate(function.elements(*SIZES[name]))
    ]


def call(name: str, tensors: list[Tensor], sizes: tuple[int, ...] | None = None) -> None:
    native.call(name, (1.0, -1.0, 1.0)[: native.FUNCTIONS[name].doubles], sizes or SIZES[name], *tensors)


@needs_c
@pytest.mark.parametrize("name", native.FUNCTIONS)
def test_every_function_of_the_library_takes_what_its_contract_says(name):
    for dtype in native.FUNCTIONS[name].numbers:
        call(name, valid(name, dtype))


def misaligned(t: Tensor) -> Tensor:
    """The same numbers from an odd address on."""
    memory = torch.empty(t.nbytes + 1, dtype=torch.uint8)
    return torch.frombuffer(memory.numpy(), dtype=t.dtype, offset=1)


BROKEN = {
    "one number too few": (lambda t: t[1:], r"\d+ numbers instead of \d+ as tensor"),
    "one number too many": (lambda t: torch.cat([t, t[:1]]), r"\d+ numbers instead of \d+ as tensor"),
    "nothing": (lambda t: t[:0], r"0 numbers instead of \d+ as tensor"),
    "every other number": (lambda t: t.repeat_interleave(2)[::2], r"a tensor \d on cpu of shape .*, strides \(2,\)"),
    "one number repeated": (lambda t: t[:1].expand(len(t)), r"a tensor \d on cpu of shape .*, strides \(0,\)"),
    "half precision": (lambda t: t.half(), r"torch.float16"),
    "integers": (lambda t: t.int(), r"torch.int32"),
    "the other precision": (lambda t: t.to(torch.float32 if t.dtype == torch.float64 else torch.float64), r"float"),
    "another device": (lambda t: t.to("meta"), r"a tensor \d on meta"),
}


@needs_c
@pytest.mark.parametrize("name", native.FUNCTIONS)
@pytest.mark.parametrize("how", BROKEN)
def test_no_function_is_given_memory_that_it_would_misread(name, how, monkeypatch):
    """Whichever of its tensors it is; and C is not called at all."""
    called: list[object] = []
    monkeypatch.setitem(native.pointers, name, lambda *arguments: called.append(arguments))
    breaks, message = BROKEN[how]
    for i, tensor in enumerate(valid(name)):
        if tensor.numel() == 1 and how in ("every other number", "one number repeated"):
            continue
        tensors = valid(name)
        tensors[i] = breaks(tensor)
        with pytest.raises(ValueError, match=f"^The C function {name} was given .*({message})"):
            call(name, tensors)
    assert called == []


@needs_c
def test_sizes_that_only_multiply_to_the_right_number_are_refused():
    with pytest.raises(ValueError, match=r"was given the sizes \(-2, 3, -4\)"):
        call("householder", valid("householder"), (-2, 3, -4))
    with pytest.raises(ValueError, match="is"):
        native.call("householder", (), SIZES["householder"], *valid("householder")[:2])


@needs_c
@pytest.mark.parametrize("name", native.FUNCTIONS)
def test_numbers_at_odd_addresses_are_copied_to_be_read_and_never_written(name, monkeypatch):
    called: list[tuple] = []
    monkeypatch.setitem(native.pointers, name, lambda *arguments: called.append(arguments))
    for i in range(len(valid(name))):
        tensors = valid(name)
        tensors[i] = misaligned(tensors[i])
        if i in native.FUNCTIONS[name].reads:
            call(name, tensors)
            assert tensors[i].data_ptr() not in called.pop()
        else:
            with pytest.raises(ValueError, match=f"a tensor {i} to write to that does not begin at a multiple of"):
                call(name, tensors)
    assert called == []


@needs_c
def test_results_for_numbers_at_odd_addresses_are_right():
    x = misaligned(torch.zeros(24)).copy_(torch.randn(24)).reshape(2, 3, 4)
    b, s, scale = torch.randn(3, 5), torch.randn(3, 5), torch.ones(3)
    wanted = kernels.piecewise_affine(x.clone(), b, s, scale, 2.5)
    assert torch.equal(kernels.piecewise_affine(x, b, s, scale, 2.5), wanted)
    with torch.no_grad():
        assert torch.equal(kernels.overwrite_piecewise_affine(x, b, s, scale, 2.5), wanted)


# Threads


@needs_c
@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("shape", [(4, 16, 40, 40), (3, 2, 200, 200), (64, 70, 7, 7)])
def test_results_are_the_same_bits_for_every_number_of_threads(threads, shape, channels_last):
    torch.set_num_threads(1)
    alone = work(0, shape, channels_last)
    for count in (2, 3, 8):
        torch.set_num_threads(count)
        for _ in range(3):
            assert same(work(0, shape, channels_last), alone)


@needs_c
def test_the_library_runs_on_the_threads_of_torch():
    """One OpenMP runtime in the process, torch's: no second one came with the library."""
    if not sys.platform.startswith("linux"):
        pytest.skip("reads /proc")
    assert native.pool is not None
    program = (  # in a process of its own: other packages of the tests bring runtimes too
        "import torch; from lipspline.nn import LinearSpline; LinearSpline(4)(torch.randn(64, 4, 32, 32)).sum();"
        "print(open('/proc/self/maps').read())"
    )
    maps = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    runtimes = {line.split()[-1] for line in maps.splitlines() if "gomp" in line or "iomp" in line or "libomp" in line}
    assert len(runtimes) == 1


@needs_c
def test_the_library_asks_torch_for_the_number_of_threads(threads):
    torch.set_num_threads(3)
    assert native.threads() == 3


@needs_c
def test_eight_threads_at_once_get_the_results_of_one(threads):
    torch.set_num_threads(1)
    wanted = [work(seed) for seed in range(8)]
    torch.set_num_threads(2)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            assert all(same(a, b) for a, b in zip(pool.map(work, range(8)), wanted, strict=True))


def _in_child(queue, arguments: list[Tensor]) -> None:
    queue.put((native.threads(), [t.numpy().tobytes() for t in compute(*arguments)]))


@needs_c
@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="this system cannot fork")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_child_computes_with_one_thread_and_does_not_hang(threads):
    """The parent's thread pool has been used, and does not exist in the child.

    Only our kernels run in the child: those of torch itself hang there with more than one thread.
    """
    torch.set_num_threads(2)
    arguments = inputs(5)
    wanted = [t.numpy().tobytes() for t in compute(*arguments)]
    context = multiprocessing.get_context("fork")
    queue = context.Queue()
    child = context.Process(target=_in_child, args=(queue, arguments), daemon=True)
    child.start()
    count, found = queue.get(timeout=60)
    child.join(60)
    assert child.exitcode == 0
    assert count == 1
    assert found == wanted
    assert native.threads() == 2


class _Activated(torch.utils.data.Dataset):
    def __len__(self) -> int:
        return 4

    def __getitem__(self, i: int) -> Tensor:
        return work(i)[0]


@needs_c
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_workers_of_a_data_loader_may_call_the_kernels(threads):
    torch.set_num_threads(2)
    wanted = [work(i)[0] for i in range(4)]
    loader = torch.utils.data.DataLoader(_Activated(), batch_size=None, num_workers=2, timeout=60)
    assert same(list(loader), wanted)


def test_the_active_implementation_is_told_in_words():
    assert kernels.active() == (
        "plain torch (the C kernels are not built)" if native.library is None else native.description()
    )
    with kernels.using("eager"):
        assert kernels.active().startswith("plain torch")


def test_an_unknown_implementation_is_refused():
    with pytest.raises(ValueError, match=r"name must be one of .*, but is .fortran."), kernels.using("fortran"):  # type: ignore[arg-type]
        pass


def test_the_choice_of_one_thread_does_not_touch_others():
    with kernels.using("eager"), ThreadPoolExecutor(1) as pool:
        assert pool.submit(kernels.active).result() == kernels.active() or native.library is not None
        assert native.library is None or pool.submit(kernels.active).result().startswith("C, ")


WITHOUT = """
import sys
from importlib import machinery
machinery.EXTENSION_SUFFIXES.clear()
import torch
from lipspline import kernels
x = torch.randn(2, 3, 4, requires_grad=True)
kernels.piecewise_affine(x, torch.zeros(3, 5), torch.ones(3, 5), torch.ones(3), 2.5).sum().backward()
assert torch.equal(x.grad, torch.ones_like(x))
try:
    with kernels.using("c"):
        pass
except RuntimeError as error:
    print(error)
print(kernels.active())
"""


def test_without_the_library_everything_runs_in_torch_and_says_so():
    done = subprocess.run([sys.executable, "-c", WITHOUT], capture_output=True, text=True, check=True)
    refusal, active = done.stdout.splitlines()
    assert refusal.startswith("The C kernels are not built")
    assert active == "plain torch (the C kernels are not built)"


@pytest.mark.slow
@pytest.mark.parametrize("compiler", ["cc", "false"])
def test_the_package_builds_with_and_without_a_compiler(tmp_path, compiler):
    """`pip install .` succeeds either way; only with a compiler is there a library in the wheel."""
    if not shutil.which(compiler):
        pytest.skip(f"no {compiler}")
    source = tmp_path / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".git", ".venv", "build", "*.so", "weights", "results"))
    script = "import setuptools.build_meta as build, sys; print(build.build_wheel(sys.argv[1]))"
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        cwd=source, env=os.environ | {"CC": compiler}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (wheel,) = tmp_path.glob("*.whl")
    names = subprocess.run(
        [sys.executable, "-m", "zipfile", "-l", str(wheel)], capture_output=True, text=True, check=True
    )
    assert ("kernels/_native" in names.stdout) == (compiler != "false")
    assert "kernels/affine.py" in names.stdout


@pytest.mark.parametrize(
    ("x", "channel_dim", "sizes"),
    [
        (torch.zeros(2, 3, 4, 5), 1, (1, 2, 3, 20)),
        (torch.zeros(2, 3, 4, 5), 3, (1, 24, 5, 1)),
        (torch.zeros(7), 0, (1, 1, 7, 1)),
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), 1, (1, 40, 3, 1)),
        (torch.zeros(4, 6).t(), 1, (1, 1, 4, 6)),
        (torch.zeros(4, 6).t(), 0, (1, 4, 6, 1)),
        (torch.zeros(5, 1, 6).transpose(0, 2), 1, (1, 30, 1, 1)),
    ],
)
def test_dense_tensors_are_taken_as_they_are(x, channel_dim, sizes):
    dense, found = densely(x, channel_dim)
    assert dense is x
    assert found == sizes


@pytest.mark.parametrize(
    "x", [torch.randn(2, 3, 8)[..., ::2], torch.randn(2, 1, 4).expand(2, 3, 4), torch.randn(6, 3, 4)[::2]]
)
def test_tensors_with_gaps_are_copied(x):
    dense, (groups, outer, channels, inner) = densely(x, 1)
    assert torch.equal(dense, x)
    assert groups * outer * channels * inner == x.numel()
    assert dense.stride() == torch.empty_like(x).stride()


def test_groups_are_the_first_dimension():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    dense, sizes = densely(x, 2, grouped=True)
    assert dense.is_contiguous()
    assert sizes == (2, 3, 4, 5)


def test_like_copies_only_what_lies_otherwise():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    g = torch.randn(2, 3, 4, 5)
    assert like(g, x).stride() == x.stride()
    assert torch.equal(like(g, x), g)
    assert like(x, x) is x
    assert like(g, g[..., :]) is g


def test_work_is_done_in_single_or_double_precision():
    single, double, half = (torch.zeros(1, dtype=d) for d in (torch.float32, torch.float64, torch.float16))
    assert working_dtype(single, single) is None
    assert working_dtype(double, double) is None
    assert working_dtype(half, half) == working_dtype(half, single) == working_dtype(single, half) == torch.float32
    assert working_dtype(double, single) == torch.float64

"""The C library: threads, forks, and life without it."""

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
    assert "kernels/piecewise_affine.py" in names.stdout

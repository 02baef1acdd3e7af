"""The Triton kernels, interpreted on the CPU, and compiled for a GPU without running there."""

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from lipspline.kernels import native

pytestmark = pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")


def run(*arguments: str, **environment: str) -> str:
    """What a script beside this file prints; it must succeed."""
    command = [sys.executable, *arguments]
    folder = Path(__file__).parent
    done = subprocess.run(
        command, cwd=folder, env=os.environ | environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.skipif(native.library is None, reason="the C kernels are not built")
def test_triton_c_and_eager_agree_on_random_cases_and_pass_gradcheck():
    assert run("interpreted.py", "0", "8", "gradcheck", TRITON_INTERPRET="1") == ""


@pytest.mark.slow
@pytest.mark.skipif(native.library is None, reason="the C kernels are not built")
@pytest.mark.parametrize("first", range(8, 1008, 250))
def test_triton_c_and_eager_agree_on_a_thousand_more_random_cases(first: int):
    assert run("interpreted.py", str(first), "250", TRITON_INTERPRET="1") == ""


COMPILE = """
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from lipspline.kernels import triton_kernels as kernels

def compiled(kernel, number, **constants):
    signature = {n: "*" + number if n.endswith("_ptr") else "i64" for n in kernel.arg_names}
    signature |= dict.fromkeys(constants, "constexpr")
    source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
    return triton.compile(source, target=GPUTarget("cuda", 80, 32), options=kernels.SEPARATELY).asm["ptx"]

for number in ("fp32", "fp64"):
    forward = compiled(kernels._forward, number, OFFSET=25.0, BLOCK=1024)
    backward = compiled(kernels._backward, number, OFFSET=25.0, WIDTH=512, BLOCK=16, PIECE=kernels.PIECE)
    print("fma" in forward, "atom" in backward or "red." in backward)
"""


@pytest.mark.slow
def test_triton_kernels_compile_for_a_gpu_without_atomics_and_without_fused_rounding():
    try:
        from triton.backends.nvidia.compiler import get_ptxas  # noqa: F401
    except ImportError:
        pytest.skip("this triton has no compiler for CUDA")
    assert run("-c", COMPILE, TRITON_INTERPRET="0") == "False False\nFalse False\n"

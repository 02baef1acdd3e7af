"""The table of kernels, the one question when C may run, opaque functions, and torch without its private names."""

import importlib
import subprocess
import sys

import pytest
import torch
from kernel_cases import samples
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode

from lipspline import kernels
from lipspline.functional import matrices
from lipspline.functional.matrices import _solve_lyapunov
from lipspline.kernels import TABLE, Kernel, native
from lipspline.kernels.dispatch import opaque

needs_c = pytest.mark.skipif(native.library is None, reason="the C kernels are not built")


@opaque("halve_until_small_for_test(Tensor x, float limit) -> Tensor", fake=lambda x, limit: x.new_empty(x.shape))
def halve_until_small(x, limit):
    x = x.clone(memory_format=torch.contiguous_format)
    while float(x.abs().max()) > limit:
        x /= 2
    return x


def test_an_opaque_function_may_decide_by_values_under_vmap_and_compile():
    x = torch.tensor([[1.0, 8.0], [3.0, 4.0]])
    torch.testing.assert_close(halve_until_small(x, 1.0), x / 8)
    torch.testing.assert_close(torch.func.vmap(lambda x: halve_until_small(x, 1.0))(x), x / 8)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: halve_until_small(x, 1.0) + 1, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x), x / 8 + 1)


def test_vmap_expands_tensors_it_does_not_map_over():
    h, b = torch.eye(2).expand(3, 2, 2) * torch.tensor([1.0, 2.0, 4.0]).reshape(3, 1, 1), torch.ones(2, 2)
    y = torch.func.vmap(_solve_lyapunov, in_dims=(0, None))(h, b)
    torch.testing.assert_close(y, torch.ones(3, 2, 2) / torch.tensor([2.0, 4.0, 8.0]).reshape(3, 1, 1))


def test_the_rules_of_torch_are_obeyed():
    torch.library.opcheck(halve_until_small, (torch.randn(3, 2), 0.5))


def test_a_module_with_opaque_functions_can_be_reloaded():
    importlib.reload(matrices)
    assert matrices.spectral_norms_upper(torch.eye(2)).dtype == torch.float64


# The table


def tensors_of(kernel: Kernel, arguments: tuple) -> tuple[Tensor, ...]:
    return arguments[: kernel.tensors]


def test_every_function_of_the_library_is_that_of_one_kernel():
    assert sorted(kernel.c_function for kernel in TABLE.values()) == sorted(native.FUNCTIONS)
    assert sorted(TABLE) == sorted(samples(torch.float32))


@needs_c
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("name", TABLE)
def test_every_kernel_computes_its_formula_in_c(name, dtype):
    kernel, arguments = TABLE[name], samples(dtype)[name]
    numbers = native.FUNCTIONS[name].numbers
    assert kernel.in_c(*tensors_of(kernel, arguments)) == (dtype in numbers)
    if dtype not in numbers or (numbers == native.SINGLE and not kernels.winograd.has_winograd()):
        pytest.skip("it has no such version, or needs AVX2")
    with kernels.using("eager"):
        wanted = kernel.eager(*arguments)
    torch.testing.assert_close(kernel.c(*arguments), wanted, rtol=1e-5, atol=1e-5)


STRANGE = {
    "half precision": lambda t: t.half(),
    "integers": lambda t: t.int(),
    "complex numbers": lambda t: t.to(torch.complex64),
    "another device": lambda t: t.to("meta"),
    "sparse": lambda t: t.to_sparse(),
    "a negative view": torch._neg_view,
}


@needs_c
@pytest.mark.parametrize("how", STRANGE)
@pytest.mark.parametrize("name", TABLE)
def test_c_does_not_read_strange_tensors_whichever_it_is(name, how):
    kernel, arguments = TABLE[name], samples(native.FUNCTIONS[name].numbers[0])[name]
    for i in range(kernel.tensors if kernel._alike else 1):
        tensors = list(tensors_of(kernel, arguments))
        tensors[i] = STRANGE[how](tensors[i])
        assert not kernel.in_c(*tensors), i


@needs_c
@pytest.mark.parametrize("name", TABLE)
def test_c_runs_where_it_serves_what_is_wanted_and_nowhere_else(name):
    kernel, arguments = TABLE[name], samples(native.FUNCTIONS[name].numbers[0])[name]
    tensors = tensors_of(kernel, arguments)
    assert kernel.in_c(*tensors)
    with torch.inference_mode():
        assert kernel.in_c(*(t.clone() for t in tensors))
    assert not kernel.in_c(tensors[0][:0], *tensors[1:])
    with kernels.using("eager"):
        assert not kernel.in_c(*tensors)
    with FakeTensorMode(allow_non_fake_inputs=True):
        assert not kernel.in_c(*tensors)
    learned = (tensors[0].clone().requires_grad_(), *tensors[1:])
    assert kernel.in_c(*learned) == (kernel.derivatives != "none")
    with torch.no_grad():
        assert kernel.in_c(*learned)
    with torch.autograd.forward_ad.dual_level():
        assert kernel.in_c(*tensors) == (kernel.derivatives == "all")
    seen: list[bool] = []

    def look(x: Tensor) -> Tensor:
        seen.append(kernel.in_c(x, *tensors[1:]))
        seen.append(kernel.in_c(*tensors))
        return x

    torch.func.vmap(look)(torch.stack([tensors[0]] * 2))
    assert seen == [False, kernel.derivatives == "all"]


def test_half_precision_is_computed_in_single_and_has_the_same_layout():
    x = torch.randn(2, 4, 5, 3).to(memory_format=torch.channels_last)
    b, s, scale = torch.randn(4, 6), torch.randn(4, 6), torch.ones(4)
    for implementation in ("eager", "c") if native.library is not None else ("eager",):
        with kernels.using(implementation):
            y = kernels.piecewise_affine(x.half(), b, s, scale, 2.5)
            assert torch.equal(y, kernels.piecewise_affine(x.half().float(), b, s, scale, 2.5).half())
            assert y.stride() == x.stride()


# A torch without the private names that the operators use

WITHOUT = """
import sys, torch
owner, _, name = sys.argv[1].rpartition(".")
holder = torch
for step in owner.split(".")[1:]:
    holder = getattr(holder, step)
kept = getattr(holder, name)
delattr(holder, name)
import lipspline
from lipspline import kernels
setattr(holder, name, kept)  # torch itself needs it
torch.manual_seed(0)
layer = lipspline.nn.LinearSpline(4, regions=6)
torch.nn.init.normal_(layer.coefficients)
x = torch.randn(3, 4, requires_grad=True)
y = layer(x) + kernels.sort_pairs(x) + kernels.householder(x, torch.eye(2))
y.pow(2).sum().backward()
model = lipspline.models.denoiser(channels=4, depth=3)
assert lipspline.certify(lipspline.plain(model)).upper <= 1
H = lipspline.operators.ParallelBeamCT(8, 5, 12)
image = torch.rand(1, 1, 8, 8)
torch.testing.assert_close((H.forward(image) ** 2).sum(), (image * H.adjoint(H.forward(image))).sum())
print(kernels.active())
print(*(f"{float(t.double().sum()):.5f}" for t in (y, x.grad, layer.coefficients.grad, layer.log_scale.grad)))
"""
PRIVATE = [
    "torch._C._are_functorch_transforms_active",
    "torch._C._dispatch_keys",
    "torch._C._len_torch_dispatch_stack",
    "torch._C._AutoDispatchBelowAutograd",
    "torch.autograd.forward_ad._current_level",
    "torch.autograd.forward_ad._set_fwd_grad_enabled",
    "torch._functorch.utils.enable_single_level_autograd_function",
    "torch.library.register_vmap",
]


def numbers_without(name: str) -> tuple[str, str]:
    done = subprocess.run([sys.executable, "-c", WITHOUT, name], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    active, numbers = done.stdout.splitlines()
    return active, numbers


@pytest.mark.parametrize(
    "name", [PRIVATE[1], *(pytest.param(name, marks=pytest.mark.slow) for name in (PRIVATE[0], *PRIVATE[2:]))]
)
def test_a_torch_without_a_private_name_gets_the_formulas_in_plain_torch(name):
    active, numbers = numbers_without(name)
    assert active == f"plain torch (the C kernels do not know torch {torch.__version__})"
    _, usual = numbers_without("torch.fft")  # which nothing needs here
    assert [float(n) for n in numbers.split()] == pytest.approx([float(n) for n in usual.split()], abs=2e-5)

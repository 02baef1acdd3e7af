"""Functions that decide by the values of tensors, called by tracers that must not look into them."""

import importlib

import torch

from lipspline.functional import matrices
from lipspline.functional.matrices import _solve_lyapunov
from lipspline.kernels.opaque import opaque


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

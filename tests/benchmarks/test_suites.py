"""The suites measure what their titles say, and the yardsticks compute the same as the library."""

import pytest
import torch
from torch import Tensor, nn

from lipspline.benchmarks import suites, textbook
from lipspline.benchmarks.timing import Stopwatch
from lipspline.functional.matrices import orthonormalize
from lipspline.nn.activations import GroupSort, Householder
from lipspline.nn.spline import LinearSpline


def gradients(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    x = x.detach().requires_grad_()
    y = layer(x)
    return y.detach(), torch.autograd.grad(y, x, y.detach().cos())[0]


@torch.no_grad()
def pairs() -> dict[str, tuple[nn.Module, nn.Module]]:
    """Textbook and library, with the same parameters."""
    torch.manual_seed(0)
    spline, learned = textbook.TextbookSpline(4), LinearSpline(4)
    spline.coefficients.add_(0.02 * torch.randn(4, 51))
    spline.scale.copy_(0.5 + torch.rand(4))
    learned.coefficients.copy_(spline.coefficients)
    learned.log_scale.copy_(spline.scale.log())
    reflection, householder = textbook.TextbookHouseholder(4), Householder(4)
    (parameter,) = householder.parameters()
    angle = parameter.reshape(-1)
    if parameter.shape == reflection.v.shape:
        reflection.v.copy_(parameter)
    else:
        reflection.v.copy_(torch.stack([angle.cos(), angle.sin()], dim=-1))
    return {
        "spline": (spline, learned),
        "GroupSort": (textbook.TextbookGroupSort(2), GroupSort(2)),
        "Householder": (reflection, householder),
    }


@pytest.mark.parametrize("name", ["spline", "GroupSort", "Householder"])
def test_the_textbook_activations_agree_with_the_library(name):
    torch.manual_seed(1)
    x = 0.1 * torch.randn(3, 4, 9, 9)
    for got, want in zip(*(gradients(layer, x) for layer in pairs()[name]), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


def test_the_textbook_orthonormalisation_agrees_with_the_library():
    w = torch.linalg.qr(torch.randn(8, 8, dtype=torch.float64))[0] + 0.05 * torch.randn(8, 8, dtype=torch.float64)
    torch.testing.assert_close(textbook.bjorck(w), orthonormalize(w, method="bjorck"), rtol=1e-6, atol=1e-6)


def test_the_textbook_convolution_is_orthogonal():
    torch.manual_seed(0)
    raw = torch.linalg.qr(torch.randn(5, 4, 4, dtype=torch.float64))[0] + 0.02
    kernel = textbook.bcop_kernel(raw, 3)
    x = torch.nn.functional.pad(torch.randn(1, 4, 6, 6, dtype=torch.float64), (2, 2, 2, 2))
    y = torch.nn.functional.conv2d(x, kernel, padding=1)
    assert y.norm().item() == pytest.approx(x.norm().item(), rel=1e-6)


def test_every_activation_is_timed_in_a_network_of_the_denoisers_shape():
    for make in suites.ACTIVATIONS.values():
        network = suites._network(make, depth=3)
        assert sum(isinstance(layer, Stopwatch) for layer in network) == 2
        assert network(torch.zeros(1, 1, 6, 6)).shape == (1, 1, 6, 6)


def test_networks_at_once_and_one_after_another_minimise_the_same():
    ((_, at_once),) = suites._fitting_at_once(3).updates(5)
    alone = [loss for seed in range(3) for _, loss in suites._fitting_alone(seed).updates(5)]
    torch.testing.assert_close(at_once, torch.stack(alone).sum())


def test_a_timed_step_trains():
    task = suites._fitting_alone(0)
    assert suites._task_step(task)() > 0
    start = suites._fitting_network(0)
    assert all((p != start.get_parameter(name)).any() for name, p in task.model.named_parameters())


def test_warm_buffers_come_last_because_they_change_the_process():
    assert list(suites.SUITES)[-1] == "warm"

"""What inherits from a layer and computes something else is not taken for it; what is no network is refused."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import lipspline
from lipspline.nn import LinearSpline, MaxMin


class Residual(nn.Sequential):
    """A row of layers, and the input added."""

    def forward(self, x: Tensor) -> Tensor:
        """Not the row alone."""
        return x + super().forward(x)


class TwiceLinear(nn.Linear):
    """Twice what it inherits."""

    def forward(self, x: Tensor) -> Tensor:
        """Twice."""
        return 2 * super().forward(x)


class TwiceSpline(LinearSpline):
    """Twice what it inherits."""

    def forward(self, x: Tensor) -> Tensor:
        """Twice."""
        return 2 * super().forward(x)


@pytest.mark.parametrize(
    "network",
    [
        Residual(nn.Linear(4, 4), MaxMin(), nn.Linear(4, 4)),
        nn.Sequential(nn.Linear(4, 4), Residual(nn.Linear(4, 4), MaxMin())),
        nn.Sequential(TwiceLinear(4, 4), MaxMin()),
    ],
)
def test_rewrite_refuses_layers_with_a_forward_of_their_own(network: nn.Sequential):
    """Their parts alone would be another function."""
    with pytest.raises(ValueError, match=r"^rewrite works on dense networks made of .* is a (Residual|TwiceLinear)\."):
        lipspline.rewrite(network, to="abs", bound=100.0)


def test_rewrite_opens_rows_within_rows():
    """Those of torch itself are the same function."""
    network = nn.Sequential(nn.Sequential(nn.Linear(4, 4), MaxMin()), nn.Linear(4, 2))
    x = torch.randn(8, 4)
    assert torch.allclose(lipspline.rewrite(network, to="abs", bound=100.0)(x), network(x), atol=1e-4)


@pytest.mark.parametrize("options", [{"tol": 0.01}, {}])
def test_sparsify_keeps_what_a_spline_layer_does_besides(options: dict[str, float]):
    """A forward of its own, or a hook, is not lost with the knots."""
    hooked = LinearSpline(4, init="abs")
    hooked.register_forward_hook(lambda layer, inputs, output: 3 * output)
    model = nn.Sequential(nn.Linear(4, 4), TwiceSpline(4, init="abs"), hooked)
    x = torch.randn(8, 4)
    assert torch.allclose(lipspline.sparsify(model, inputs=x, **options)[0](x), model(x), atol=1e-5)


TOOLS: dict[str, Callable[[Any], Any]] = {
    "plain": lipspline.plain,
    "tv2": lipspline.tv2,
    "effective_regions": lipspline.effective_regions,
    "sparsify": lipspline.sparsify,
    "activation_curves": lipspline.plot_activations,
    "rewrite": lambda model: lipspline.rewrite(model, to="abs", bound=1.0),
    "param_groups": lambda model: lipspline.param_groups(model, lr=1e-3),
    "rotating": lipspline.optim.rotating,
}


@pytest.mark.parametrize("name", TOOLS)
def test_what_is_no_network_is_refused_in_a_sentence(name: str):
    """Parameters, classes and functions are taken for networks now and then."""
    given = {"a generator": nn.Linear(2, 2).parameters(), "a function": torch.relu, "the class Linear": nn.Linear}
    for word, value in given.items():
        word = "a builtin_function_or_method" if word == "a function" else word
        with pytest.raises(ValueError, match=f"^{name} needs a network, an nn.Module, but got {word}\\.$"):
            TOOLS[name](value)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda m: lipspline.effective_regions(m, -1.0), r"threshold must be a difference of slopes, at least 0, but"),
        (lambda m: lipspline.effective_regions(m, "few"), r"threshold must be a number, but is 'few'"),
        (lambda m: lipspline.sparsify(m, inputs=[1.0]), r"inputs must be a tensor, a batch of .*, but got a list"),
        (lambda m: lipspline.sparsify(m, inputs=torch.ones(0, 4)), r"inputs must be a .* got the shape \(0, 4\)"),
    ],
)
def test_arguments_that_make_no_sense_are_refused(call: Callable[[nn.Module], Any], sentence: str):
    """In a sentence about the argument."""
    with pytest.raises(ValueError, match=f"^{sentence}"):
        call(LinearSpline(4))

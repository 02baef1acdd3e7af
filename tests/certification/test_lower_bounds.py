"""Lower bounds: ratios that were really met."""

from collections.abc import Callable

import pytest
import torch
from layer_norms import learned
from torch import nn

from lipspline.certification.proof import certify
from lipspline.nn.convolutions import conv2d
from lipspline.nn.matrices import linear


def test_lower_is_the_largest_singular_value_of_a_linear_layer():
    """Power iteration converges, and the ratio is really seen."""
    layer = nn.Linear(20, 10)
    certificate = certify(layer, steps=300)
    exact = float(torch.linalg.matrix_norm(layer.weight.double(), ord=2))
    assert certificate.lower == pytest.approx(exact, rel=1e-5)
    assert certificate.lower <= exact


def test_lower_is_found_at_the_inputs_given():
    """Leaky ReLU: slope 1/2 on one side only."""
    layer = nn.LeakyReLU(0.5)
    assert certify(layer, inputs=-torch.ones(3, 4)).lower == pytest.approx(0.5)
    assert certify(layer, inputs=torch.cat([-torch.ones(3, 4), torch.ones(1, 4)])).lower == pytest.approx(1.0)


def test_lower_is_none_where_the_input_shape_is_unknown_or_not_asked_for():
    """A ReLU takes any shape."""
    assert certify(nn.ReLU()).lower is None
    assert certify(nn.ReLU(), input_shape=(3,)).lower == pytest.approx(1.0)
    assert certify(nn.Linear(2, 2), steps=0).lower is None


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Linear(3, 2), (3,)), (nn.Conv2d(2, 1, 3), (2, 8, 8)), (nn.Conv1d(2, 1, 3), (2, 9))]
)
def test_lower_guesses_the_input_from_the_first_layer(layer: nn.Module, shape: tuple[int, ...]):
    """Dense layers and convolutions know their channels."""
    for model in (layer, nn.Sequential(layer, nn.ReLU())):
        assert certify(model).lower is not None
        assert certify(model, input_shape=shape).lower is not None


@pytest.mark.parametrize("bias", [0.0, 1e3, 1e8, 1e12])
def test_rounding_does_not_lift_lower_above_upper(bias: float):
    """Large biases lose digits of differences."""
    layer = linear(4, 4)
    with torch.no_grad():
        layer.bias.fill_(bias)
    certificate = certify(layer)
    assert certificate.lower is not None
    assert certificate.lower <= certificate.upper


def test_a_model_in_float64_is_measured_in_float64():
    """Rounding its weights to float32 first would show ratios it does not have."""
    for seed in range(10):
        torch.manual_seed(seed)
        certificate = certify(nn.Sequential(linear(6, 6).double(), nn.ReLU(), linear(6, 6).double()), steps=5)
        assert certificate.upper == pytest.approx(1.0, abs=1e-9)
        assert certificate.lower is not None
        assert certificate.lower <= certificate.upper
    assert certify(linear(6, 6).double()).lower == pytest.approx(1.0, abs=2e-9)


@pytest.mark.parametrize("radius", [0.1, 10.0, 1e4])
def test_rounded_tables_do_not_lift_lower_above_upper(radius: float):
    """The knots of a spline in float32 must not look like steep pieces in float64."""
    torch.manual_seed(1)
    model = nn.Sequential(linear(8, 8), learned(8, regions=400, radius=radius, size=0.1), linear(8, 8))
    certificate = certify(model, inputs=radius * torch.randn(20, 8))
    assert certificate.lower is not None
    assert 0.3 < certificate.lower <= certificate.upper


SINGLE_LAYERS = {
    "dense": lambda: nn.Linear(30, 20),
    "wide dense": lambda: nn.Linear(100, 3),
    "orthonormal": lambda: linear(8, 8),
    "conv2d": lambda: nn.Conv2d(3, 4, 3, padding=1, padding_mode="circular"),
    "conv2d zeros": lambda: nn.Conv2d(3, 4, 3, padding=1),
    "conv2d 5x5": lambda: nn.Conv2d(2, 2, 5, padding=2, padding_mode="circular"),
    "conv1d": lambda: nn.Conv1d(3, 4, 5, padding=2),
    "strided": lambda: nn.Conv2d(2, 4, 4, stride=2),
    "grouped": lambda: nn.Conv2d(4, 4, 3, groups=2, padding=1),
    "orthogonal": lambda: conv2d(4, 6, 3),
    "spectral": lambda: conv2d(4, 6, 3, constraint="spectral"),
}


@pytest.mark.parametrize("make", SINGLE_LAYERS.values(), ids=SINGLE_LAYERS.keys())
@pytest.mark.parametrize("seed", range(3))
def test_single_layers_are_certified_within_five_percent(make: Callable[[], nn.Module], seed: int):
    """`upper / lower <= 1.05`: the bound is tight, and power iteration shows it."""
    torch.manual_seed(seed)
    certificate = certify(make(), steps=100)
    assert certificate.lower is not None
    assert certificate.lower <= certificate.upper <= 1.05 * certificate.lower

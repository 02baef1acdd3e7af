"""The search from below: ratios that were really met."""

from collections.abc import Callable

import pytest
import torch
from layer_norms import ill_conditioned, learned
from torch import nn

from lipspline.certification import certify, estimate_lower
from lipspline.nn import conv2d, linear


def test_lower_is_the_largest_singular_value_of_a_linear_layer():
    """Power iteration converges, and the ratio is really seen."""
    layer = nn.Linear(20, 10)
    lower = estimate_lower(layer, steps=300)
    exact = float(torch.linalg.matrix_norm(layer.weight.double(), ord=2))
    assert lower == pytest.approx(exact, rel=1e-5)
    assert lower <= exact


def test_lower_is_found_at_the_inputs_given():
    """Leaky ReLU: slope 1/2 on one side only."""
    layer = nn.LeakyReLU(0.5)
    assert estimate_lower(layer, inputs=-torch.ones(3, 4)) == pytest.approx(0.5)
    assert estimate_lower(layer, inputs=torch.cat([-torch.ones(3, 4), torch.ones(1, 4)])) == pytest.approx(1.0)


def test_a_first_layer_that_works_in_place_is_measured_all_the_same():
    """The inputs are read again after the model has run."""
    x = torch.cat([-torch.ones(3, 4), torch.ones(1, 4)])
    assert estimate_lower(nn.LeakyReLU(3.0, inplace=True), inputs=x) == pytest.approx(3.0)
    assert float(x.min()) == -1.0


def test_certify_looks_from_below_only_where_a_shape_is_given():
    """certify means the proof."""
    assert certify(nn.Linear(2, 2)).lower is None
    assert certify(nn.ReLU(), input_shape=(3,)).lower == pytest.approx(1.0)


def test_an_unknown_input_shape_must_be_given():
    """A ReLU takes any shape."""
    with pytest.raises(ValueError, match=r"^The first layer does not say what inputs it takes\. Give input_shape"):
        estimate_lower(nn.ReLU())


@pytest.mark.parametrize(
    ("layer", "shape"), [(nn.Linear(3, 2), (3,)), (nn.Conv2d(2, 1, 3), (2, 32, 32)), (nn.Conv1d(2, 1, 3), (2, 64))]
)
def test_lower_guesses_the_input_from_the_first_layer(layer: nn.Module, shape: tuple[int, ...]):
    """Dense layers and convolutions know their channels."""
    for model in (layer, nn.Sequential(layer, nn.LeakyReLU())):  # a ReLU may pass nothing on
        assert estimate_lower(model) == estimate_lower(model, input_shape=shape) > 0


def test_the_input_shape_may_come_with_a_batch():
    """One dimension more than the first layer asks for."""
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Conv2d(3, 1, 3))
    assert certify(model, (2, 9, 9)).lower == certify(model, (5, 2, 9, 9)).lower


def test_an_input_shape_that_does_not_fit_is_refused():
    """With what to do."""
    with pytest.raises(ValueError, match=r"does not take inputs of shape \(4, 4\).*Give input_shape"):
        certify(nn.Linear(3, 2), (4,))


@pytest.mark.parametrize("bias", [0.0, 1e3, 1e8, 1e12])
def test_rounding_does_not_lift_lower_above_upper(bias: float):
    """Large biases lose digits of differences."""
    layer = linear(4, 4)
    with torch.no_grad():
        layer.bias.fill_(bias)
    assert estimate_lower(layer) <= certify(layer).upper


def test_a_model_in_float64_is_measured_in_float64():
    """Rounding its weights to float32 first would show ratios it does not have."""
    for seed in range(10):
        torch.manual_seed(seed)
        model = nn.Sequential(linear(6, 6).double(), nn.ReLU(), linear(6, 6).double())
        assert certify(model).upper == pytest.approx(1.0, abs=1e-9)
        assert estimate_lower(model, steps=5) <= certify(model).upper
    assert estimate_lower(linear(6, 6).double()) == pytest.approx(1.0, abs=2e-9)


def test_lower_is_that_of_the_weights_that_run():
    """Not of what the constraint would give in float64: 1.177 and not 1."""
    layer = ill_conditioned()
    exact = float(torch.linalg.matrix_norm(layer.weight.detach().double(), ord=2))
    assert exact > 1.01
    assert estimate_lower(layer, steps=200) == pytest.approx(exact, rel=1e-4)


@pytest.mark.parametrize("radius", [0.1, 10.0, 1e4])
def test_rounded_tables_do_not_lift_lower_above_upper(radius: float):
    """The knots of a spline in float32 must not look like steep pieces in float64."""
    torch.manual_seed(1)
    model = nn.Sequential(linear(8, 8), learned(8, regions=400, radius=radius, size=0.1), linear(8, 8))
    assert 0.3 < estimate_lower(model, inputs=radius * torch.randn(20, 8)) <= certify(model).upper


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
    layer = make()
    lower = estimate_lower(layer, steps=100)
    assert lower <= certify(layer).upper <= 1.05 * lower

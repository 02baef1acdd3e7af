"""Modules whose output for one input of a batch depends on the others, and outputs that are arranged in other ways."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

import lipspline
from lipspline import certify

MIXED = r"^The module mixes the inputs of a batch: what it returns for one of them depends on the others"


class Function(nn.Module):
    """A function as a module."""

    def __init__(self, function: Callable[[Tensor], Tensor]):
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        """Apply it."""
        return self.function(x)


MIXING = {
    "loose bound": lambda x: x.relu() - x + 0.3 * x.sum(0, keepdim=True),  # 2.3 for one input, 4.4 and more for eight
    "mean": lambda x: x - x.mean(0, keepdim=True),
    "flip": lambda x: x - x.flip(0),
    "maximum": lambda x: x - x.amax(0, keepdim=True),
    "sorted": lambda x: x.sort(0).values,
    "size": lambda x: x * x.shape[0],
    "branch": lambda x: x * (2 if x.shape[0] > 1 else 1),
    "little": lambda x: x + 1e-5 * x.sum(0, keepdim=True),
    "one number": lambda x: x.sum(),
}


@pytest.mark.parametrize("given", [(6,), torch.randn(1, 6), torch.randn(8, 6)], ids=["shape", "one", "eight"])
@pytest.mark.parametrize("name", MIXING)
def test_what_mixes_the_inputs_of_a_batch_is_refused(name: str, given):
    """A bound for a batch of one says nothing about larger ones."""
    if isinstance(given, Tensor) and len(given) > 1 and name in ("size", "branch"):
        pytest.skip("the size of the batch is that of the example")
    with pytest.raises(ValueError, match=MIXED):
        certify(Function(MIXING[name]), given)


def test_the_bound_of_one_input_is_not_that_of_a_batch():
    """Why: eight inputs that move together move the outputs further than the bound of one."""
    function = MIXING["loose bound"]
    x, step = torch.ones(12, 6), 0.5 * torch.ones(12, 6)
    assert float((function(x + step) - function(x)).norm() / step.norm()) > 3.5


@pytest.mark.parametrize(
    ("function", "upper"),
    [
        (lambda x: 2 * x.T, 2.0),
        (lambda x: 3 * x.reshape(-1), 3.0),
        (lambda x: torch.stack([x, x]), 2**0.5),
        (lambda x: 2 * x.unsqueeze(0), 2.0),
    ],
)
def test_a_batch_may_be_anywhere_in_the_output(function: Callable[[Tensor], Tensor], upper: float):
    """Only who depends on whom counts."""
    assert certify(Function(function), (6,)).upper == pytest.approx(upper, rel=1e-12)


def test_a_module_for_one_input_only_is_no_mixture():
    """It does not run with two."""
    assert certify(Function(lambda x: 2 * x.view(1, 6)), (6,)).upper == pytest.approx(2.0)


def test_outputs_that_do_not_depend_on_the_input_are_none():
    """A constant beside the output, or alone."""
    assert certify(Function(lambda x: torch.ones(3)), (6,)).upper == 0
    assert certify(Function(lambda x: (x, torch.ones(3))), (6,)).upper == pytest.approx(1.0)


def test_a_batch_that_disappears_in_a_layer_is_told():
    """The bound holds; ratios of single inputs cannot be seen."""
    assert certify(nn.Flatten(0)).upper == 1
    with pytest.raises(ValueError, match=r"^The model returns shape \(16,\) for 4 inputs: .* Leave input_shape out"):
        certify(nn.Flatten(0), (4,))


@pytest.mark.parametrize("example", [torch.zeros(0, 6), torch.tensor(1.0)])
def test_an_example_without_inputs_is_refused(example: Tensor):
    """Nothing to look at."""
    with pytest.raises(ValueError, match=r"^The example must be a batch of at least one input, .* but has the shape"):
        certify(nn.ReLU(), example)


class Normalised(nn.Module):
    """Computes its weight when it runs."""

    def __init__(self):
        super().__init__()
        self.raw = nn.Parameter(torch.randn(3, 200))

    def forward(self, x: Tensor) -> Tensor:
        """A projection onto three directions of one length."""
        return x @ (self.raw / self.raw.norm(dim=1, keepdim=True)).T


@pytest.mark.parametrize("seed", range(6))
def test_weights_that_are_computed_on_the_way_refute_nothing(seed: int):
    """In float64 they come out otherwise in the last bits of float32: the bound is about those that run."""
    torch.manual_seed(seed)
    layer = torch.nn.utils.spectral_norm(nn.Linear(4, 4))
    for model, size in ((Normalised(), 200), (layer.eval(), 4)):
        certificate = certify(model, (size,))
        assert certificate.lower is not None
        assert certificate.lower <= certificate.upper


class InFloat32(nn.Module):
    """Does not run in float64."""

    def __init__(self, factor: float):
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        """Twice the input, perhaps with the other inputs."""
        return torch.cat([x, x @ torch.eye(6, dtype=torch.float32)], 1) + self.factor * x.sum(0, keepdim=True).repeat(
            1, 2
        )


def test_a_module_that_runs_in_one_type_only_is_looked_at_in_that():
    """Types that are written down do not hide what is mixed."""
    assert certify(InFloat32(0.0), (6,)).upper == pytest.approx(2**0.5)
    with pytest.raises(ValueError, match=MIXED):
        certify(InFloat32(0.3), (6,))


def test_numbers_are_vectors_of_length_one():
    """One number an input, in or out."""
    certificate = certify(Function(lambda x: x.sum(1)), (6,))
    assert certificate.lower == pytest.approx(6**0.5)
    assert certify(nn.LeakyReLU(0.5), -torch.ones(6)).lower == pytest.approx(0.5)
    with pytest.raises(ValueError, match=r"^The model returns shape \(3,\) for 6 inputs"):
        certify(nn.Linear(6, 3), torch.ones(6))


def test_numbers_that_are_none_are_refused_where_operations_are_traced_too():
    """A bias of NaN moves nothing, and leaves nothing."""
    layer = nn.Linear(4, 4)
    with torch.no_grad():
        layer.bias[0] = torch.nan
    for model in (layer, Function(lambda x: x * 1e300 * 1e10)):
        with pytest.raises(ValueError, match=r"^The model returns NaN or infinity for the example"):
            certify(model, (4,))


def test_a_network_without_a_batch_is_certified_in_a_module_around_it():
    """As the refusal advises: the rows of the matrix are no inputs of their own."""
    certificate = certify(Function(lambda x: x[0] - x[0].mean(0, keepdim=True)), (4, 6))
    assert 1 <= certificate.upper <= 2.000001


@pytest.mark.parametrize("kinds", [(), (int,), (nn.Linear(2, 2),)])
def test_rules_are_for_classes_of_layers(kinds: tuple[type, ...]):
    """Not for layers, and not for nothing."""
    with pytest.raises(ValueError, match=r"^register_rule needs classes of layers, subclasses of nn\.Module, but got"):
        lipspline.register_rule(*kinds)(lambda layer: (1.0, ""))


def test_as_many_rows_as_inputs_may_be_others():
    """Four inputs with the batch at the end of an output with four rows: no ratio of single inputs is seen."""
    certificate = certify(Function(lambda x: x.permute(3, 2, 1, 0)), (4, 4, 4))
    assert certificate.upper == pytest.approx(1.0)
    assert certificate.lower is None

"""Folding: ordinary layers, the same outputs, and nothing lost on the way."""

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

import lipspline
from lipspline.nn import FoldedSpline, LinearSpline
from lipspline.nn.fold import fold, freeze


class Thirds(nn.Module):
    """A constraint whose value depends on the precision it is evaluated in."""

    def forward(self, weight: Tensor) -> Tensor:
        return weight / 3 + 1 / 7


class Doubled(LinearSpline):
    """A user's layer that is not the spline it inherits from."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def learned(channels: int, **options) -> LinearSpline:
    spline = LinearSpline(channels, **options)
    with torch.no_grad():
        spline.coefficients.add_(spline.radius * torch.randn_like(spline.coefficients))
        spline.log_scale.add_(0.5 * torch.randn_like(spline.log_scale))
    return spline


def network() -> nn.Module:
    orthogonal = parametrizations.orthogonal(nn.Linear(5, 5))
    normed = parametrizations.weight_norm(nn.Conv1d(5, 4, 1))
    return nn.Sequential(
        orthogonal, learned(5, radius=1.0), nn.Sequential(nn.Unflatten(1, (5, 1)), normed), learned(4, shared=True)
    )


def test_outputs_stay_and_layers_become_ordinary():
    """The same function without a parametrization or a learned spline."""
    model = network()
    x = torch.randn(7, 5)
    folded = fold(model)
    torch.testing.assert_close(folded(x), model(x), atol=2e-6, rtol=2e-6)  # the original still works, too
    kinds = [type(module) for module in folded.modules()]
    assert kinds.count(FoldedSpline) == 2
    assert LinearSpline not in kinds
    assert type(folded[0]) is nn.Linear
    assert type(folded[2][1]) is nn.Conv1d
    assert not any(parametrize.is_parametrized(module) for module in folded.modules())
    assert set(folded.state_dict()) == {
        *("0.weight", "0.bias", "2.1.weight", "2.1.bias"),
        *(f"{i}.{name}" for i in (1, 3) for name in ("slopes", "mean", "scale")),
    }


def test_the_original_is_left_alone_and_the_copy_is_for_inference():
    """A copy, in eval mode, with nothing to train."""
    model = network().train()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    folded = fold(model)
    assert all(module.training for module in model.modules())
    assert not any(module.training for module in folded.modules())
    assert not any(parameter.requires_grad for parameter in folded.parameters())
    assert any(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    with torch.no_grad():
        folded[0].weight.zero_()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


def test_constraints_are_evaluated_in_double_and_rounded_once():
    """Not the float32 value of the constraint, but the float64 value to the nearest float32."""
    layer = nn.Linear(20, 20)
    parametrize.register_parametrization(layer, "weight", Thirds())
    exact = layer.parametrizations.weight.original.detach().double() / 3 + 1 / 7
    folded = fold(layer)
    assert folded.weight.dtype == torch.float32
    assert torch.equal(folded.weight, exact.float())
    assert not torch.equal(layer.weight, exact.float())


def test_a_spline_alone_is_folded():
    """The model itself may be the spline."""
    spline = learned(3)
    x = torch.randn(4, 3)
    assert isinstance(fold(spline), FoldedSpline)
    torch.testing.assert_close(fold(spline)(x), spline(x), atol=1e-6, rtol=1e-6)


def test_a_parametrized_spline_is_folded_with_its_parametrization():
    """Constraints of constraints."""
    spline = learned(3)
    parametrize.register_parametrization(spline, "coefficients", Thirds(), unsafe=True)
    x = torch.randn(4, 3)
    torch.testing.assert_close(fold(spline)(x), spline(x), atol=1e-6, rtol=1e-6)


def test_folding_twice_changes_nothing():
    """Ordinary layers stay as they are."""
    folded = fold(network())
    x = torch.randn(7, 5)
    assert torch.equal(fold(folded)(x), folded(x))


def test_a_spline_used_in_two_places_is_folded_in_both():
    """[sec:deepspline]: activations can be shared, also between layers."""
    spline = learned(3)
    model = nn.Sequential(spline, nn.Linear(3, 3), spline)
    folded = fold(model)
    assert [type(layer) for layer in folded] == [FoldedSpline, nn.Linear, FoldedSpline]
    x = torch.randn(4, 3)
    torch.testing.assert_close(folded(x), model(x), atol=1e-6, rtol=1e-6)


def test_a_subclass_with_another_forward_is_not_taken_for_a_spline():
    """What fold does not know it must leave alone."""
    model = nn.Sequential(Doubled(3))
    x = torch.randn(4, 3)
    torch.testing.assert_close(fold(model)(x), model(x), atol=1e-6, rtol=1e-6)


def test_hooks_of_a_spline_are_not_lost():
    """A hook can change the output, so it must survive (and certify then refuses it)."""
    model = nn.Sequential(learned(3))
    model[0].register_forward_hook(lambda module, inputs, output: 2 * output)
    x = torch.randn(4, 3)
    torch.testing.assert_close(fold(model)(x), model(x), atol=1e-6, rtol=1e-6)


def test_a_forward_set_on_the_instance_is_not_lost():
    """Monkeypatching is no reason to compute something else."""
    model = nn.Sequential(learned(3))
    model[0].forward = torch.zeros_like
    x = torch.randn(4, 3)
    assert torch.equal(fold(model)(x), torch.zeros_like(x))


class Keeping(nn.Module):
    """Keeps what it has computed, as feature extractors do."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.kept: dict[str, list[Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        """Keep the result."""
        self.kept["last"] = [self.layer(x)]
        return self.kept["last"][0]


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("first", [Keeping, lambda: nn.utils.weight_norm(nn.Linear(4, 4))], ids=["kept", "weight_norm"])
def test_a_module_is_copied_with_what_it_has_kept_of_the_last_call(first):
    """Tensors that belong to a graph of autograd are not copied by Python; here they are, without the graph."""
    model = nn.Sequential(first(), LinearSpline(4))
    x = torch.randn(2, 4)
    output = model(x)
    assert torch.equal(freeze(model)(x), output)
    assert torch.allclose(lipspline.plain(model)(x), output, atol=1e-6)
    assert lipspline.certify(model, (4,)).upper > 0
    assert torch.allclose(lipspline.sparsify(model, inputs=x)[0](x), output, atol=1e-5)
    output.sum().backward()  # the graph of the original is as it was

"""Certificates of networks: products, branches, refusals, rules of your own."""

import math
import re

import pytest
import torch
from layer_norms import learned, norm, upper
from torch import Tensor, nn

from lipspline.certification import Certificate, LayerBound, certify, declare, register_rule
from lipspline.nn import (
    Averaged,
    FoldedSpline,
    LinearSpline,
    Scaled,
)
from lipspline.nn.matrices import linear


def test_layers_in_a_row_multiply():
    """[eq:architecture]: nested rows are flattened, with the names they have in the model."""
    model = nn.Sequential(Scaled(2.0), nn.Sequential(Scaled(3.0), nn.ReLU()), Scaled(0.25))
    certificate = certify(model)
    assert certificate.upper == pytest.approx(1.5, rel=1e-14)
    assert certificate.upper >= 1.5
    assert [bound.name for bound in certificate.layers] == ["0", "1.0", "1.1", "2"]
    assert [bound.upper for bound in certificate.layers] == [2.0, 3.0, 1.0, 0.25]
    assert [bound.kind for bound in certificate.layers] == ["Scaled", "Scaled", "ReLU", "Scaled"]


def test_a_layer_that_stands_twice_counts_twice():
    """The same module in two places acts two times."""
    double = Scaled(2.0)
    assert upper(nn.Sequential(double, nn.ReLU(), double)) == pytest.approx(4.0)
    spline = learned(3, constraint="none")
    steepest = float(spline.slopes().abs().max())
    assert upper(nn.Sequential(spline, spline)) == pytest.approx(steepest**2)


def test_an_empty_row_is_the_identity():
    """Lipschitz constant one."""
    assert certify(nn.Sequential()) == Certificate(1.0, ())


@pytest.mark.parametrize("beta", [0.1, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("inner", [0.5, 1.0, 3.0])
def test_averages_with_the_identity_have_the_average_bound(beta: float, inner: float):
    """β L + (1 - β) [sec:PnPReconstruction], reached where R = L Id."""
    model = Averaged(Scaled(inner), beta)
    exact = beta * inner + (1 - beta)
    assert exact * (1 - 1e-15) <= upper(model) <= exact * (1 + 1e-14)
    assert norm(model, 3) == pytest.approx(exact)
    assert upper(Averaged(nn.Sequential(Scaled(inner), nn.ReLU()), beta)) == pytest.approx(exact)


def test_the_average_of_a_one_lipschitz_network_is_exactly_one():
    """No rounding where none is needed [sec:PnPReconstruction]."""
    assert upper(Averaged(nn.ReLU(), 0.3)) == 1.0


def test_declared_bounds_are_repeated_with_their_reason():
    """On the user's word, in the user's words."""
    model = nn.Sequential(declare(torch.sin, upper=1.0, reason="|cos| <= 1"), Scaled(2.0))
    certificate = certify(model, input_shape=(3,))
    assert certificate.upper == 2.0
    assert certificate.layers[0] == LayerBound("0", "Declared", "declared: |cos| <= 1", 1.0)
    torch.testing.assert_close(model(torch.ones(1, 3)), 2 * torch.ones(1, 3).sin())


@pytest.mark.parametrize("bound", [0, -1.0, math.nan, math.inf])
def test_a_declared_bound_must_be_a_positive_number(bound: float):
    """A bound of infinity says nothing."""
    wanted = f"upper must be a positive finite number, but is {bound!r}."
    with pytest.raises(ValueError, match="^" + re.escape(wanted) + "$"):
        declare(torch.sin, bound, "none")


class Unknown(nn.Module):
    """A layer without a rule."""

    def forward(self, x: Tensor) -> Tensor:
        return 7 * x


class MyLinear(nn.Linear):
    """A user's layer that is not the one it inherits from."""

    def forward(self, x: Tensor) -> Tensor:
        return 7 * super().forward(x)


class MySpline(LinearSpline):
    """A user's layer that is not the one it inherits from."""

    def forward(self, x: Tensor) -> Tensor:
        return 7 * super().forward(x)


class MySequential(nn.Sequential):
    """A row with a skip connection."""

    def forward(self, x: Tensor) -> Tensor:
        return x + super().forward(x)


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (Unknown(), "Unknown"),
        (MyLinear(2, 2), "MyLinear"),
        (MySpline(2), "MySpline"),
        (MySequential(nn.ReLU()), "MySequential"),
        (nn.ModuleList([nn.ReLU()]), "ModuleList"),
    ],
)
def test_an_unknown_layer_is_an_error_that_says_how_to_register_it(layer: nn.Module, kind: str):
    """Never a silent 1, also for classes that inherit from known ones."""
    wanted = (
        f"certify has no rule for {kind} (layer '1'), and will not guess one. "
        f"Give input_shape, or an example input, so that its operations are traced and bounded one by one. "
        f"Register one with lipspline.register_rule({kind}), or vouch for a bound with lipspline.declare."
    )
    with pytest.raises(ValueError, match="^" + re.escape(wanted) + "$"):
        certify(nn.Sequential(nn.ReLU(), layer))
    with pytest.raises(ValueError, match="^" + re.escape(wanted.replace("'1'", "'itself'"))):
        certify(layer)
    with pytest.raises(ValueError, match=re.escape(f"certify has no rule for {kind}")):
        certify(Averaged(layer, 0.5))


def test_a_registered_rule_is_used():
    """The way the error message shows."""

    class Sevenfold(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return 7 * x

    register_rule(Sevenfold)(lambda layer: (7.0, "by hand"))
    assert certify(Sevenfold(), input_shape=(2,)).layers == (LayerBound("", "Sevenfold", "by hand", 7.0),)
    assert certify(Sevenfold(), input_shape=(2,)).lower == pytest.approx(7.0)


def test_a_slope_that_is_no_number_is_refused():
    """max(1, NaN) is 1 in some orders."""
    with pytest.raises(ValueError, match=r"^negative_slope must be a finite number, but is nan\.$"):
        certify(nn.LeakyReLU(math.nan))


@pytest.mark.parametrize("bound", [math.nan, -1.0])
def test_a_rule_that_gives_no_bound_is_refused(bound: float):
    """A certificate of NaN compares false with everything."""

    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x

    register_rule(Broken)(lambda layer: (bound, "by mistake"))
    wanted = f"The rule for Broken (layer 'itself') gave {bound!r}, which bounds nothing."
    with pytest.raises(ValueError, match="^" + re.escape(wanted) + "$"):
        certify(Broken())


@pytest.mark.parametrize("register", ["register_forward_hook", "register_forward_pre_hook"])
@pytest.mark.parametrize("place", ["", "1", "1.0", "2", "3.inner"])
def test_hooks_are_refused_wherever_they_are(register: str, place: str):
    """They can change the function: on rows, layers, splines and inside averages."""
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Tanh()), LinearSpline(2), Averaged(nn.ReLU(), 0.5))
    getattr(model.get_submodule(place), register)(lambda *arguments: None)
    with pytest.raises(ValueError, match=r"has forward hooks, and certify cannot see what they do\. Remove them\."):
        certify(model)


def test_a_forward_set_on_an_instance_is_refused():
    """Neither the class nor its rule says what it does."""
    model = nn.Sequential(nn.ReLU())
    model[0].forward = lambda x: 7 * x
    wanted = (
        "Layer '0' has a forward that was set on the instance, and certify knows only that of its class ReLU. "
        "Make it a class and register a rule for it."
    )
    with pytest.raises(ValueError, match="^" + re.escape(wanted) + "$"):
        certify(model)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(
    ("layer", "name"),
    [
        (nn.Linear(2, 2), "weight"),
        (nn.Linear(2, 2), "bias"),
        (nn.Conv2d(1, 1, 3), "weight"),
        (nn.PReLU(), "weight"),
        (nn.BatchNorm1d(2), "running_var"),
        (FoldedSpline(2, regions=4, radius=1.0), "slopes"),
        (FoldedSpline(2, regions=4, radius=1.0), "mean"),
    ],
)
def test_parameters_that_are_not_finite_are_refused(layer: nn.Module, name: str, bad: float):
    """The error names the tensor."""
    with torch.no_grad():
        getattr(layer, name).view(-1)[0] = bad
    with pytest.raises(
        ValueError, match=rf"^Layer '0' \(\w+\): Parameter '{name}' has 1 NaN or infinite value\(s\) of \d+\. A network"
    ):
        certify(nn.Sequential(layer))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_spline_coefficients_that_are_not_finite_are_refused(bad: float):
    """Folding must not turn NaN into a slope of one."""
    spline = LinearSpline(2)
    with torch.no_grad():
        spline.coefficients[0, 3] = bad
    with pytest.raises(ValueError, match=r"NaN or infinite value"):
        certify(spline)


def test_certifying_leaves_the_model_alone():
    """Same outputs, same mode, same dtype, same parameters that require gradients; and it can be done again."""
    model = nn.Sequential(linear(3, 3), LinearSpline(3), linear(3, 2, constraint="spectral")).train()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    first, second = certify(model, (3,)), certify(model, (3,))
    assert first.upper == pytest.approx(second.upper, rel=1e-9)
    assert first.lower == pytest.approx(second.lower, rel=1e-9)
    assert model.training
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(tensor, state[name]) for name, tensor in model.state_dict().items())
    model(torch.randn(2, 3)).sum().backward()


class Tripled(nn.Module):
    def forward(self, x):
        return 3 * x


def test_a_bound_that_an_input_refutes_is_an_error():
    """Vouched for, or by a rule of the user: what was seen is no less true."""
    promised = declare(Tripled(), upper=2.0, reason="I believe so")
    for model in (promised, nn.Sequential(promised), Averaged(promised, 0.5)):
        assert 1.5 <= certify(model).upper <= 2
        for shape in ((2,), torch.ones(1, 2)):
            with pytest.raises(ValueError, match=r"was seen.* is too small: .*declared: I believe so"):
                certify(model, shape)
    assert certify(declare(Tripled(), upper=3.0, reason="3"), (2,)).lower == pytest.approx(3.0)


@pytest.mark.parametrize("given", [3, (3.0,), (0, 2), "3", torch.ones(1, 3).numpy(), (torch.ones(1), torch.ones(1))])
def test_what_is_no_shape_and_no_example_is_refused(given):
    with pytest.raises(TypeError, match=r"input_shape must be the shape of one input without batch, such as \(3, 32"):
        certify(nn.Linear(3, 3), given)


def test_a_rule_that_gives_no_reason_is_told_so():
    class Bare(nn.Module):
        def forward(self, x):
            return x

    register_rule(Bare)(lambda layer: 1.0)
    with pytest.raises(
        ValueError, match=r"The rule for Bare .* gave 1.0 alone. Let it return the bound and the reason"
    ):
        certify(Bare())


def test_torchscript_is_refused_with_a_way_out():
    for make in (torch.jit.script, lambda model: torch.jit.trace(model, torch.ones(1, 3))):
        for shape in (None, (3,), torch.ones(1, 3)):
            with pytest.raises(ValueError, match=r"is of TorchScript.*Give certify the module that it was made from"):
                certify(make(nn.Sequential(nn.Linear(3, 3), nn.ReLU())), shape)


def test_an_example_with_nan_is_refused_as_what_it_is():
    """It was said that the bound was wrong."""
    with pytest.raises(ValueError, match=r"The example has 2 NaN or infinite value\(s\) of 2"):
        certify(nn.Linear(2, 2), torch.full((1, 2), math.nan))


def test_several_inputs_are_refused_without_printing_them():
    with pytest.raises(TypeError, match=r"but is a tuple of Tensor, Tensor\. \(A model with several inputs"):
        certify(nn.Bilinear(2, 2, 2), (torch.zeros(1, 2), torch.zeros(1, 2)))  # type: ignore[arg-type]


def test_a_ratio_that_overflows_is_not_measured():
    """No number that was seen contradicts the bound."""
    huge = nn.Sequential(nn.Linear(1, 1), Scaled(1e200), Scaled(1e200))
    nn.init.constant_(huge[0].bias, 1e30)
    assert certify(huge, (1,)).lower is None


@pytest.mark.parametrize(("function", "reason", "words"), [("soft", "x", "a str"), (torch.relu, " ", "reason")])
def test_what_cannot_be_vouched_for(function, reason, words):
    with pytest.raises(ValueError, match=words):
        declare(function, 1.0, reason)

"""Constraints as parametrizations: the right-inverse law, what eval mode keeps, and what training estimates."""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipspline.functional.convolutions import bcop_kernel, conv_norm_circular, conv_norm_upper
from lipspline.functional.matrices import METHODS, orthonormalize, spectral_norm_upper
from lipspline.nn.convolutions import OrthogonalConvolution, SpectralConvolution
from lipspline.nn.matrices import Constraint, Orthonormal, SpectralNormalized


def orthogonal_kernel(c_out: int, c_in: int, k: int, axes: int) -> Tensor:
    n = max(c_out, c_in)
    bases = torch.randn(k - 1, axes, n, n // 2, dtype=torch.float64)
    return bcop_kernel(orthonormalize(torch.randn(c_out, c_in, dtype=torch.float64)), orthonormalize(bases)).float()


def feasible(kind: str) -> tuple[nn.Module, Constraint]:
    """A layer whose weight meets the constraint for constant 2, and the constraint."""
    torch.manual_seed(1)
    name, _, method = kind.partition(" ")
    if name == "conv":
        layer, constraint = nn.Conv2d(4, 5, 3, padding="same"), OrthogonalConvolution(method, lipschitz=2.0)  # type: ignore[arg-type]
        weight = orthogonal_kernel(5, 4, 3, 2)
    elif name == "conv1":
        layer, constraint = nn.Conv1d(3, 3, 4, padding="same"), OrthogonalConvolution(lipschitz=2.0)
        weight = orthogonal_kernel(3, 3, 4, 1)
    elif name == "spectral":
        layer, constraint = nn.Linear(4, 6), SpectralNormalized(4, lipschitz=2.0)
        weight = layer.weight.detach() / spectral_norm_upper(layer.weight)
    elif name == "spectral-conv":
        layer, constraint = nn.Conv2d(3, 4, 3, padding="same"), SpectralConvolution(3, 3, lipschitz=2.0)
        weight = layer.weight.detach() / conv_norm_upper(layer.weight)
    else:
        shape = {"square": (5, 5), "tall": (6, 4), "wide": (4, 6)}[name]
        layer, constraint = nn.Linear(shape[1], shape[0]), Orthonormal(method, lipschitz=2.0)  # type: ignore[arg-type]
        weight = orthonormalize(torch.randn(shape))
    layer.weight.data.copy_(2.0 * weight)
    return layer, constraint


KINDS = [
    *[f"{shape} {method}" for shape in ("square", "tall", "wide", "conv") for method in METHODS],
    "conv1",
    "spectral",
    "spectral-conv",
]
kinds = pytest.mark.parametrize("kind", KINDS)


def constrained(kind: str) -> nn.Module:
    layer, constraint = feasible(kind)
    parametrize.register_parametrization(layer, "weight", constraint)
    return layer.eval()


def move(layer: nn.Module) -> None:
    """Change the raw parameters, as a training step does."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))


def image(layer: nn.Module) -> Tensor:
    size = {2: (), 3: (9,), 4: (8, 8)}[layer.weight.ndim]
    return torch.randn(2, layer.weight.shape[1], *size)


@kinds
def test_feasible_weights_survive_registration_and_assignment(kind):
    """forward(right_inverse(w)) == w [lip_linear_layers]"""
    layer, constraint = feasible(kind)
    weight = layer.weight.detach().clone()
    parametrize.register_parametrization(layer, "weight", constraint)
    torch.testing.assert_close(layer.eval().weight, weight, atol=5e-6, rtol=0)
    move(layer)
    assert not torch.allclose(layer.weight, weight, atol=1e-2)
    layer.weight = weight
    torch.testing.assert_close(layer.weight, weight, atol=5e-6, rtol=0)


@kinds
def test_any_raw_parameters_give_the_target_constant(kind):
    """[lip_linear_layers]"""
    layer = constrained(kind)
    for _ in range(3):
        move(layer)
        upper = (spectral_norm_upper if layer.weight.ndim == 2 else conv_norm_upper)(layer.weight)
        # float32 arithmetic for orthogonal kernels, the gap between bound and norm for spectral convolutions
        assert upper == pytest.approx(2.0, rel=1e-5)


@kinds
def test_state_dicts_carry_the_weight_over(kind):
    layer, other = constrained(kind), constrained(kind)
    move(layer)
    assert not torch.equal(layer.weight, other.weight)
    other.load_state_dict(layer.state_dict())
    torch.testing.assert_close(other.weight, layer.weight, rtol=0, atol=0)


@kinds
def test_deep_copies_are_equal_and_independent(kind):
    layer = constrained(kind)
    with torch.no_grad():
        before = layer.weight.clone()
        twin = copy.deepcopy(layer)
        move(twin)
        assert not torch.equal(twin.weight, before)
        assert torch.equal(layer.weight, before)


@kinds
def test_double_precision_is_more_exact(kind):
    layer = constrained(kind).double()
    move(layer)
    assert layer.weight.dtype == torch.float64
    upper = (spectral_norm_upper if layer.weight.ndim == 2 else conv_norm_upper)(layer.weight)
    assert upper == pytest.approx(2.0, rel=1e-8)


@kinds
def test_half_precision_works(kind):
    layer = constrained(kind).bfloat16()
    assert layer.weight.dtype == torch.bfloat16
    torch.testing.assert_close(layer.weight.float(), constrained(kind).weight, atol=2e-2, rtol=2e-2)


@kinds
def test_gradients_reach_all_raw_parameters(kind):
    layer = constrained(kind).train()
    layer(image(layer)).square().sum().backward()
    for name, parameter in layer.named_parameters():
        assert parameter.grad is not None, name
        assert torch.isfinite(parameter.grad).all(), name
        assert parameter.grad.abs().max() > 0, name


# --- what eval mode keeps


def counted(layer: nn.Module, monkeypatch) -> list[int]:
    """Count the computations of the weight."""
    constraint = layer.parametrizations.weight[0]
    computed, original = [], constraint.weight
    monkeypatch.setattr(constraint, "weight", lambda *raw: (computed.append(1), original(*raw))[1])
    return computed


@kinds
def test_eval_mode_computes_the_weight_once(kind, monkeypatch):
    layer = constrained(kind)
    computed = counted(layer, monkeypatch)
    with torch.no_grad():
        x = image(layer)
        outputs = [layer(x) for _ in range(3)]
    start = len(computed)
    with torch.no_grad():
        outputs += [layer(x) for _ in range(3)]
    assert len(computed) == start
    assert all(torch.equal(y, outputs[0]) for y in outputs)


CHANGES = {
    "an optimizer": lambda layer: [p.add_(0.1) for p in layer.parameters()],
    "a loaded state": lambda layer: layer.load_state_dict({k: v + 0.1 for k, v in layer.state_dict().items()}),
    "an assigned state": lambda layer: layer.load_state_dict(
        {k: v + 0.1 for k, v in layer.state_dict().items()}, assign=True
    ),
    "another dtype": lambda layer: layer.double(),
    "replaced data": lambda layer: [setattr(p, "data", p.data + 0.1) for p in layer.parameters()],
    "written data, then eval": lambda layer: ([p.data.add_(0.1) for p in layer.parameters()], layer.eval()),
    "an assigned weight": lambda layer: setattr(layer, "weight", -layer.weight),
}


@pytest.mark.parametrize("kind", ["wide qr", "square cayley", "conv qr", "spectral"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_changed_parameter_changes_the_kept_weight(kind, change):
    layer = constrained(kind)
    with torch.no_grad():
        before = layer.weight
        assert layer.weight is before
        CHANGES[change](layer)
        after, fresh = layer.weight, copy.deepcopy(layer).train().eval().weight
    assert not torch.equal(after.double(), before.double())
    torch.testing.assert_close(after, fresh, rtol=0, atol=0)


def test_a_kept_weight_is_not_used_where_gradients_are_wanted():
    layer = constrained("wide qr")
    with torch.no_grad():
        assert not layer.weight.requires_grad
    assert layer.weight.requires_grad
    layer.requires_grad_(False)
    assert not layer.weight.requires_grad
    assert layer.weight is layer.weight


def test_a_weight_kept_in_inference_mode_is_not_used_outside():
    layer = constrained("wide qr").requires_grad_(False)
    with torch.inference_mode():
        assert layer.weight.is_inference()
    x = torch.randn(2, 6, requires_grad=True)
    layer(x).sum().backward()
    assert x.grad is not None


def test_parameters_without_a_version_are_never_trusted():
    with torch.inference_mode():
        layer = constrained("wide qr")
        before = layer.weight.clone()
        for parameter in layer.parameters():
            parameter.add_(torch.randn_like(parameter))
        assert not torch.equal(layer.weight, before)


def test_other_parameters_of_a_functional_call_are_not_answered_from_the_store():
    layer = constrained("wide qr")
    x = image(layer)
    with torch.no_grad():
        own = layer(x)
        others = {name: p + 0.3 * torch.randn_like(p) for name, p in layer.named_parameters()}
        assert not torch.allclose(torch.func.functional_call(layer, others, (x,)), own)
        assert torch.equal(layer(x), own)


@kinds
def test_torch_cached_computes_the_weight_once_in_training_too(kind, monkeypatch):
    layer = constrained(kind).train()
    computed = counted(layer, monkeypatch)
    with parametrize.cached():
        x = image(layer)
        computed.clear()
        (layer(x) + layer(x)).sum().backward()
    assert len(computed) <= 1


# --- spectral normalization


def spectral(kind: str, weight: Tensor) -> nn.Module:
    if kind == "linear":
        layer, constraint = nn.Linear(*reversed(weight.shape)), SpectralNormalized(weight.shape[1])
    else:
        layer, constraint = nn.Conv2d(*weight.shape[1::-1], 3), SpectralConvolution(weight.shape[1], 3)
    layer.weight.data.copy_(weight)
    parametrize.register_parametrization(layer, "weight", constraint)
    return layer


@pytest.mark.parametrize(("kind", "shape"), [("linear", (7, 5)), ("conv", (4, 3, 3, 3))])
def test_the_estimate_of_training_converges_to_the_norm_from_below(kind, shape):
    """Dividing by too little, training weights have norm 1 or slightly more [lip_linear_layers]"""
    weight = torch.randn(shape)
    layer = spectral(kind, weight).train()
    true = spectral_norm_upper(weight) if kind == "linear" else conv_norm_circular(weight, (24, 24))
    for _ in range(200):
        ratio = float(weight.norm() / layer.weight.detach().norm()) / true
        assert ratio <= 1 + 1e-5
    assert ratio == pytest.approx(1, rel=1e-4 if kind == "linear" else 1e-2)


@pytest.mark.parametrize(("kind", "shape"), [("linear", (7, 5)), ("conv", (4, 3, 3, 3))])
def test_eval_mode_divides_by_a_proven_bound_and_leaves_the_direction_alone(kind, shape):
    """[lip_linear_layers]"""
    weight = torch.randn(shape)
    layer = spectral(kind, weight).eval()
    direction = layer.parametrizations.weight[0].direction.clone()
    upper = spectral_norm_upper(weight) if kind == "linear" else conv_norm_upper(weight)
    torch.testing.assert_close(layer.weight, weight / upper)
    assert torch.equal(layer.parametrizations.weight[0].direction, direction)
    layer.train()
    _ = layer.weight
    assert not torch.equal(layer.parametrizations.weight[0].direction, direction)


def test_the_gradient_of_eval_mode_is_that_of_dividing_by_the_largest_singular_value():
    weight, c = torch.randn(6, 4, dtype=torch.float64), torch.randn(6, 4, dtype=torch.float64)
    layer = spectral("linear", weight.float()).double().eval()
    layer.parametrizations.weight.original.data.copy_(weight)
    for _ in range(200):
        layer.train()
        _ = layer.weight
    layer.eval()
    (layer.weight * c).sum().backward()
    w = weight.clone().requires_grad_()
    (w / torch.linalg.matrix_norm(w, ord=2) * c).sum().backward()
    torch.testing.assert_close(layer.parametrizations.weight.original.grad, w.grad, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize(("kind", "shape"), [("linear", (3, 5)), ("conv", (2, 3, 3, 3))])
@pytest.mark.parametrize("training", [True, False])
def test_a_zero_weight_stays_zero(kind, shape, training):
    layer = spectral(kind, torch.zeros(shape)).train(training)
    assert torch.equal(layer.weight, torch.zeros(shape))


def test_two_forward_passes_before_one_backward_are_allowed_in_training():
    layer = spectral("linear", torch.randn(4, 4)).train()
    x = torch.randn(2, 4)
    (layer(x) + layer(x)).sum().backward()


# --- errors


@pytest.mark.parametrize("lipschitz", [0.0, -1.0, float("inf"), float("nan")])
@pytest.mark.parametrize(
    "build",
    [
        lambda c: Orthonormal(lipschitz=c),
        lambda c: OrthogonalConvolution(lipschitz=c),
        lambda c: SpectralNormalized(3, lipschitz=c),
        lambda c: SpectralConvolution(3, 3, lipschitz=c),
    ],
)
def test_a_constant_that_is_not_positive_is_refused(build, lipschitz):
    with pytest.raises(ValueError, match="lipschitz must be a positive finite number, but is"):
        build(lipschitz)


@pytest.mark.parametrize("build", [Orthonormal, OrthogonalConvolution])
def test_an_unknown_method_is_refused(build):
    with pytest.raises(ValueError, match="method must be one of 'qr', 'cayley', 'polar', 'bjorck', but is 'svd'"):
        build("svd")


def test_a_kernel_that_no_orthogonal_convolution_has_cannot_be_assigned():
    layer = constrained("conv qr")
    before = layer.weight.detach().clone()
    with pytest.raises(ValueError, match="not a product of orthogonal two-tap factors"):
        layer.weight = torch.randn(5, 4, 3, 3)
    torch.testing.assert_close(layer.weight, before)


def test_any_full_rank_matrix_can_be_assigned_and_becomes_its_orthonormalization():
    layer, weight = constrained("wide qr"), torch.randn(4, 6)
    layer.weight = weight
    torch.testing.assert_close(layer.weight, 2 * orthonormalize(weight))


def test_a_parametrization_prints_its_method_and_constant():
    assert repr(Orthonormal("polar", 0.5)) == "Orthonormal(method='polar', lipschitz=0.5)"
    assert "axes=2, lipschitz=1" in repr(SpectralConvolution(3, 3))


# --- matrices that stay orthonormal while they are trained


@pytest.mark.parametrize("shape", [(6, 6), (9, 4), (4, 9), (3, 5, 2)])
def test_an_orthonormal_raw_matrix_has_the_weight_and_gradient_of_its_decomposition(shape):
    """Which is not decomposed: an exact matrix product takes its place."""
    torch.manual_seed(0)
    raw = orthonormalize(torch.randn(shape)).requires_grad_()
    direction = torch.randn(shape)
    weight = Orthonormal()(raw)
    assert type(weight.grad_fn).__name__ == "_OwnQBackward"
    torch.testing.assert_close(weight, orthonormalize(raw), rtol=0, atol=1e-6)
    (found,) = torch.autograd.grad(weight, raw, direction)
    (expected,) = torch.autograd.grad(orthonormalize(raw), raw, direction)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)


def test_the_second_derivative_is_that_of_the_decomposition():
    torch.manual_seed(0)
    raw = orthonormalize(torch.randn(5, 3)).requires_grad_()
    found, expected = (
        torch.autograd.functional.hessian(lambda w, f=f: (f(w) ** 3).sum(), raw)
        for f in (Orthonormal(), orthonormalize)
    )
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-4)


def longer(q: Tensor) -> Tensor:
    return (1 + 1e-5) * q


def leaning(q: Tensor) -> Tensor:
    """Columns of length 1, two of which are not orthogonal."""
    return torch.cat([nn.functional.normalize(q[:, :1] + 1e-4 * q[:, 1:2], dim=0), q[:, 1:]], dim=1)


@pytest.mark.parametrize("change", [longer, leaning])
def test_a_raw_matrix_that_is_not_orthonormal_is_decomposed(change):
    raw = change(orthonormalize(torch.randn(6, 6))).requires_grad_()
    weight = Orthonormal()(raw)
    assert type(weight.grad_fn).__name__ != "_OwnQBackward"
    torch.testing.assert_close(weight.mT @ weight, torch.eye(6), rtol=0, atol=1e-6)


@pytest.mark.parametrize("change", [torch.Tensor.double, torch.Tensor.detach, lambda raw: raw * float("nan")])
def test_what_only_float32_trainings_do_is_left_to_them(change):
    raw = change(orthonormalize(torch.randn(6, 6)).requires_grad_())
    assert type(Orthonormal()(raw).grad_fn).__name__ != "_OwnQBackward"

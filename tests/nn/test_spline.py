"""The learned spline as a torch module: its initial functions, its constraint, and that it behaves like any module."""

import copy
import io
import pickle
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from lipspline.functional.spline import difference, linear_spline, slope_normalize, spline_proj
from lipspline.nn import LinearSpline

X = torch.linspace(-3.0, 3.0, 121, dtype=torch.float64)  # far inside and far outside of the ranges below


def learned(channels: int = 4, size: float = 1.0, **options) -> LinearSpline:
    """A spline with random coefficients and scales, in float64."""
    spline = LinearSpline(channels, **options).double()
    with torch.no_grad():
        spline.coefficients.add_(size * spline.radius * torch.randn_like(spline.coefficients))
        spline.log_scale.add_(0.3 * torch.randn_like(spline.log_scale))
    return spline


def textbook(spline: LinearSpline, x: Tensor) -> Tensor:
    """σ(α x)/α with the projected coefficients, from `functional`, channel by channel through numpy's interpolation."""
    c = spline_proj(spline.coefficients.detach().double(), spline.step, spline.slope)
    alpha = spline.log_scale.detach().double().exp()
    knots = np.linspace(-spline.radius, spline.radius, spline.regions + 1)
    y = torch.empty_like(x, dtype=torch.float64)
    for channel in range(spline.channels):
        row = 0 if spline.shared else channel
        values, a = c[row].numpy(), alpha[row].item()
        u = a * x.select(spline.channel_dim, channel).detach().double().numpy()
        inside = np.interp(u, knots, values)
        left = values[0] + (values[1] - values[0]) / spline.step * (u - knots[0])
        right = values[-1] + (values[-1] - values[-2]) / spline.step * (u - knots[-1])
        scaled = np.where(u < knots[0], left, np.where(u > knots[-1], right, inside)) / a
        y.select(spline.channel_dim, channel).copy_(torch.from_numpy(scaled))
    return y


# What it starts as

WORDS = {
    "identity": lambda x: x,
    "relu": lambda x: x.clamp(min=0),
    "leaky_relu": lambda x: nn.functional.leaky_relu(x, 0.01),
    "abs": lambda x: x.abs(),
    "zero": lambda x: 0 * x,
}


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("regions", [2, 4, 50])
@pytest.mark.parametrize("radius", [0.1, 1.0, 2.5])
def test_the_initial_function_is_the_one_named(word: str, regions: int, radius: float):
    """[sec:deepspline]: inside and outside the range, wherever the kink at zero is a knot."""
    spline = LinearSpline(1, regions=regions, radius=radius, init=word)
    torch.testing.assert_close(spline(X.float()[:, None])[:, 0], WORDS[word](X).float(), atol=2e-6, rtol=2e-6)


@pytest.mark.parametrize("word", WORDS)
@pytest.mark.parametrize("regions", [3, 51])
def test_without_a_knot_at_zero_the_initial_function_is_exact_but_for_the_middle_region(word: str, regions: int):
    """[sec:deepspline]: an odd number of regions has no knot at zero; the spline meets the function at its knots."""
    spline = LinearSpline(1, regions=regions, radius=1.0, init=word)
    y = spline(X.float()[:, None])[:, 0]
    outside = X.abs() >= spline.step / 2
    torch.testing.assert_close(y[outside], WORDS[word](X[outside]).float(), atol=2e-6, rtol=2e-6)
    assert (y - WORDS[word](X).float()).abs().max() <= spline.step / 2 + 1e-6


def test_maxmin_is_identity_and_absolute_value_in_turns():
    """MaxMin in the coordinates where it acts on each neuron, (x1 + x2)/√2 and (x1 - x2)/√2 [sec:SameExp]."""
    spline = LinearSpline(6, init="maxmin")
    x = X.float()[:, None].expand(-1, 6)
    torch.testing.assert_close(spline(x)[:, ::2], x[:, ::2], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(spline(x)[:, 1::2], x[:, 1::2].abs(), atol=1e-6, rtol=1e-6)


def test_maxmin_between_rotations_is_maxmin():
    """[sec:SameExp]: R σ(Rᵀ x) with a rotation of 45 degrees gives (max, min) of a pair."""
    rotation = torch.tensor([[1.0, 1.0], [1.0, -1.0]]) / 2**0.5
    x = torch.randn(50, 2)
    y = LinearSpline(2, init="maxmin")(x @ rotation) @ rotation
    torch.testing.assert_close(y, torch.stack([x.amax(1), x.amin(1)], dim=1), atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("a", [-1.0, -0.3, 0, 0.25, 1])
def test_a_number_starts_as_prelu(a: float):
    """max(a x, x) [lipschitz_activation_section]."""
    spline = LinearSpline(2, init=a)
    x = X.float()[:, None].expand(-1, 2)
    torch.testing.assert_close(spline(x), torch.maximum(a * x, x), atol=1e-6, rtol=1e-6)


def test_a_tensor_starts_as_prelu_with_one_slope_a_channel():
    """PReLU with parameters (a_n) [lipschitz_activation_section]."""
    a = torch.tensor([-1.0, 0.0, 0.5])
    x = X.float()[:, None].expand(-1, 3)
    torch.testing.assert_close(LinearSpline(3, init=a)(x), torch.maximum(a * x, x), atol=1e-6, rtol=1e-6)


def test_a_callable_gets_the_knots_and_gives_the_values():
    """Any function of slope at most one is met at its knots [sec:deepspline]."""
    spline = LinearSpline(3, regions=40, radius=2.0, init=torch.sin)
    knots = torch.linspace(-2, 2, 41)[:, None].expand(-1, 3)
    torch.testing.assert_close(spline(knots), knots.sin(), atol=1e-6, rtol=1e-6)


def test_the_scale_starts_as_one():
    """[sec:ScalePara]: α is initialised as one; it is learned unless asked otherwise."""
    assert torch.equal(LinearSpline(3).log_scale.exp(), torch.ones(3))
    assert LinearSpline(3).log_scale.requires_grad
    assert not LinearSpline(3, learn_scale=False).log_scale.requires_grad


# What it computes


@pytest.mark.parametrize("regions", [2, 5, 50, 51])
@pytest.mark.parametrize("slope", [(-1.0, 1.0), (0.0, 1.0), (-0.5, 2.0)])
def test_forward_is_the_projected_and_scaled_spline(regions: int, slope: tuple[float, float]):
    """[prop:splineproj] and [sec:ScalePara] together, against numpy's interpolation."""
    spline = learned(regions=regions, radius=0.8, slope=slope)
    x = X[:, None].expand(-1, 4)
    torch.testing.assert_close(spline(x), textbook(spline, x), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("shape", [(7, 4), (7, 4, 3), (2, 4, 3, 5), (2, 4, 2, 3, 2)])
@pytest.mark.parametrize("shared", [False, True])
def test_any_rank_with_channels_in_dimension_one(shape: tuple[int, ...], shared: bool):
    """[sec:deepspline]: one activation per neuron, per channel, or shared."""
    spline = learned(shared=shared, radius=0.8)
    x = torch.randn(shape, dtype=torch.float64)
    assert len(spline.coefficients) == (1 if shared else 4)
    torch.testing.assert_close(spline(x), textbook(spline, x), atol=1e-12, rtol=1e-10)


@pytest.mark.parametrize("shape", [(7, 4), (2, 3, 4), (2, 3, 5, 4), (2, 2, 2, 3, 4)])
@pytest.mark.parametrize("shared", [False, True])
def test_any_rank_with_channels_last(shape: tuple[int, ...], shared: bool):
    """[sec:deepspline], for inputs (..., C)."""
    spline = learned(shared=shared, radius=0.8, channel_dim=-1)
    x = torch.randn(shape, dtype=torch.float64)
    torch.testing.assert_close(spline(x), textbook(spline, x), atol=1e-12, rtol=1e-10)


def test_memory_layout_does_not_matter():
    """Transposed, strided and channels-last inputs give what contiguous ones give."""
    spline = learned(radius=0.8)
    x = torch.randn(3, 4, 6, 5, dtype=torch.float64)
    expected = textbook(spline, x)
    for layout in (
        x.contiguous(memory_format=torch.channels_last),
        x.permute(1, 0, 3, 2).contiguous().permute(1, 0, 3, 2),
        torch.stack([x, x], dim=-1)[..., 0],
    ):
        torch.testing.assert_close(spline(layout), expected, atol=1e-12, rtol=1e-10)
    torch.testing.assert_close(spline(x[:1].expand(3, -1, -1, -1)), expected[:1].expand(3, -1, -1, -1))


def test_an_empty_batch_gives_an_empty_batch():
    """Shapes survive a batch of size zero, with gradients."""
    x = torch.empty(0, 4, 3, requires_grad=True)
    y = LinearSpline(4)(x)
    assert y.shape == x.shape
    y.sum().backward()
    assert x.grad is not None


@pytest.mark.parametrize("constraint", ["clip", "normalize"])
@pytest.mark.parametrize("size", [1.0, 1e6, 1e30])
def test_slopes_never_leave_the_interval(constraint: str, size: float):
    """[prop:splineproj] in float32: exactly, after any coefficients."""
    spline = LinearSpline(64, constraint=constraint)
    with torch.no_grad():
        spline.coefficients.copy_(size * torch.randn(64, 51))
    assert spline.slopes().abs().max() <= 1
    assert torch.isfinite(spline.slopes()).all()
    assert spline.tables()[1].abs().max() <= 1
    assert spline.slopes().abs().max() > 0.99


@pytest.mark.parametrize("slope", [(0.0, 1.0), (-0.5, 0.25), (0.5, 1.0)])
def test_slopes_stay_in_the_interval_asked_for(slope: tuple[float, float]):
    """[prop:splineproj] with a general interval: both ends are reached and none is passed."""
    spline = learned(8, size=5.0, slope=slope)
    assert spline.slopes().min() == slope[0]
    assert spline.slopes().max() == slope[1]


@given(st.lists(st.floats(-1e3, 1e3), min_size=6, max_size=6), st.floats(-3, 3))
def test_the_function_is_one_lipschitz_for_any_parameters(values: list[float], log_scale: float):
    """[prop:splineproj], [sec:ScalePara]: difference quotients of the evaluated function, and the steepest is met."""
    spline = LinearSpline(1, regions=5, radius=1.0).double()
    with torch.no_grad():
        spline.coefficients.copy_(torch.tensor([values]))
        spline.log_scale.fill_(log_scale)
    reach = 1.4 / float(np.exp(log_scale))
    x = torch.linspace(-reach, reach, 211, dtype=torch.float64)
    ratio = ((spline(x[:, None])[:, 0]).diff() / x.diff()).abs().max()
    torch.testing.assert_close(ratio, spline.slopes().abs().max(), atol=1e-8, rtol=1e-8)
    assert ratio <= 1 + 1e-8


def test_normalize_is_lls_old():
    """[sec:methods]: the coefficients divided by the largest slope, spline by spline."""
    spline = learned(constraint="normalize", radius=0.8, size=3.0)
    x = X[:, None].expand(-1, 4)
    c = slope_normalize(spline.coefficients, spline.step)
    torch.testing.assert_close(spline(x), linear_spline(x, c, 0.8, spline.log_scale.exp()))
    torch.testing.assert_close(spline.slopes().abs().amax(dim=-1), torch.ones(4, dtype=torch.float64))


def test_none_leaves_the_coefficients_alone():
    """The unconstrained spline of [sec:deepspline]."""
    spline = learned(constraint="none", radius=0.8, size=3.0)
    x = X[:, None].expand(-1, 4)
    torch.testing.assert_close(spline(x), linear_spline(x, spline.coefficients, 0.8, spline.log_scale.exp()))
    torch.testing.assert_close(spline.slopes(), difference(spline.coefficients) / spline.step)
    assert spline.slopes().abs().max() > 1


# Precision


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("parameters", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_output_has_the_dtype_of_the_input(dtype: torch.dtype, parameters: torch.dtype):
    """Any floating-point input, whatever the dtype of the parameters, to the accuracy of the coarser one."""
    spline = LinearSpline(4, init="abs", radius=1.0, regions=8).to(parameters)
    x = torch.randn(20, 4).to(dtype).requires_grad_()
    y = spline(x)
    assert y.dtype == dtype
    tolerance = 4 * max(torch.finfo(dtype).eps, torch.finfo(parameters).eps)
    torch.testing.assert_close(y.double(), x.double().abs(), atol=tolerance, rtol=tolerance)
    y.sum().backward()
    assert x.grad is not None
    assert x.grad.dtype == dtype
    torch.testing.assert_close(x.grad.double(), x.double().sign(), atol=tolerance, rtol=tolerance)
    assert spline.coefficients.grad is not None
    assert spline.coefficients.grad.dtype == parameters


def test_autocast_runs():
    """Mixed precision as torch does it."""
    model = nn.Sequential(nn.Linear(4, 4), LinearSpline(4), nn.Linear(4, 1))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = model(torch.randn(3, 4))
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert all(parameter.grad is not None for parameter in model.parameters())


# A torch module like any other


def test_state_dict_carries_the_function():
    """Saved and loaded through bytes, without unpickling code."""
    spline = learned(radius=0.8)
    buffer = io.BytesIO()
    torch.save(spline.state_dict(), buffer)
    other = LinearSpline(4, radius=0.8).double()
    other.load_state_dict(torch.load(io.BytesIO(buffer.getvalue()), weights_only=True))
    x = torch.randn(9, 4, dtype=torch.float64)
    assert torch.equal(other(x), spline(x))
    assert set(spline.state_dict()) == {"coefficients", "log_scale"}


@pytest.mark.parametrize("duplicate", [copy.deepcopy, lambda module: pickle.loads(pickle.dumps(module))])
@pytest.mark.parametrize("init", ["maxmin", "relu", 0.5])
def test_copies_are_equal_and_independent(duplicate, init):
    """deepcopy and pickle of the module."""
    spline = LinearSpline(4, init=init)
    other = duplicate(spline)
    x = torch.randn(9, 4)
    assert torch.equal(other(x), spline(x))
    with torch.no_grad():
        other.coefficients.mul_(0)
    assert not torch.equal(other(x), spline(x))


def test_gradients_are_exact_to_second_order():
    """gradcheck and gradgradcheck by input, coefficients and scale, away from kinks [prop:splineproj]."""
    spline = learned(3, regions=6, radius=1.0, size=0.2)
    x = torch.randn(4, 3, 2, dtype=torch.float64, requires_grad=True)

    def evaluate(x: Tensor, c: Tensor, log_scale: Tensor) -> Tensor:
        return torch.func.functional_call(spline, {"coefficients": c, "log_scale": log_scale}, (x,))

    arguments = (
        x,
        spline.coefficients.detach().clone().requires_grad_(),
        spline.log_scale.detach().clone().requires_grad_(),
    )
    assert torch.autograd.gradcheck(evaluate, arguments)
    assert torch.autograd.gradgradcheck(evaluate, arguments)


def test_the_gradient_at_scale_one_is_that_by_alpha():
    """At α = 1 the derivative by log α is the paper's derivative by α [sec:ScalePara]."""
    spline = LinearSpline(1, regions=4, radius=1.0, init=lambda t: 0.3 * t.abs() + 0.2).double()
    x = torch.tensor([[0.3]], dtype=torch.float64)
    spline(x).sum().backward()
    h = 1e-6
    c = spline.coefficients.detach()
    up, down = (linear_spline(x, c, 1.0, torch.tensor([1 + e], dtype=torch.float64)) for e in (h, -h))
    assert spline.log_scale.grad is not None
    torch.testing.assert_close(spline.log_scale.grad, ((up - down) / (2 * h))[0], atol=1e-8, rtol=1e-8)
    assert spline.log_scale.grad.abs() > 0.1


def test_forward_mode_agrees_with_reverse_mode():
    """torch.func.jvp and vjp are transposes of each other, by input and parameters."""
    spline = learned(radius=0.8)
    x, v, w = torch.randn(3, 5, 4, dtype=torch.float64).unbind()
    parameters = dict(spline.named_parameters())
    tangents = {name: torch.randn_like(p) for name, p in parameters.items()}

    def evaluate(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(spline, parameters, (x,))

    y, dy = torch.func.jvp(evaluate, (parameters, x), (tangents, v))
    assert torch.equal(y, spline(x))
    gp, gx = torch.func.vjp(evaluate, parameters, x)[1](w)
    reverse = (gx * v).sum() + sum((gp[name] * tangents[name]).sum() for name in gp)
    torch.testing.assert_close((dy * w).sum(), reverse)


def test_per_sample_gradients_by_vmap_equal_a_loop():
    """torch.func.vmap(grad(...)) over a batch of inputs."""
    spline = learned(radius=0.8)
    parameters = {name: p.detach() for name, p in spline.named_parameters()}
    x = torch.randn(6, 4, dtype=torch.float64)

    def loss(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(spline, parameters, (x.unsqueeze(0),)).square().sum()

    together = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
    for i in range(6):
        alone = torch.func.grad(loss)(parameters, x[i])
        for name in alone:
            torch.testing.assert_close(together[name][i], alone[name])


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("same_input", [False, True])
def test_an_ensemble_equals_its_members(shared: bool, same_input: bool):
    """Many seeds as one batched model: stack_module_state and vmap, values and gradients."""
    members = [
        nn.Sequential(nn.Linear(3, 4), learned(4, shared=shared, radius=0.8), nn.Linear(4, 2)).double()
        for _ in range(3)
    ]
    parameters, buffers = torch.func.stack_module_state(members)
    x = torch.randn(5, 3, dtype=torch.float64) if same_input else torch.randn(3, 5, 3, dtype=torch.float64)

    def evaluate(parameters: dict[str, Tensor], buffers: dict[str, Tensor], x: Tensor) -> Tensor:
        return torch.func.functional_call(members[0], (parameters, buffers), (x,))

    y = torch.func.vmap(evaluate, in_dims=(0, 0, None if same_input else 0))(parameters, buffers, x)
    y.square().sum().backward()
    for i, member in enumerate(members):
        alone = member(x if same_input else x[i])
        torch.testing.assert_close(y[i], alone)
        alone.square().sum().backward()
        for name, parameter in member.named_parameters():
            torch.testing.assert_close(parameters[name].grad[i], parameter.grad)


def test_an_ensemble_can_be_differentiated_twice_and_forward():
    """Double backward and jvp under vmap, as gradient penalties of an ensemble need."""
    members = [learned(3, radius=0.8) for _ in range(2)]
    parameters, _ = torch.func.stack_module_state(members)
    x = torch.randn(2, 5, 3, dtype=torch.float64)

    def slope_energy(parameters: dict[str, Tensor], x: Tensor) -> Tensor:
        def value(x: Tensor) -> Tensor:
            return torch.func.functional_call(members[0], parameters, (x,)).square().sum()

        return torch.func.grad(value)(x).square().sum()

    together = torch.func.vmap(torch.func.grad(slope_energy))(parameters, x)
    for i, member in enumerate(members):
        alone = torch.func.grad(slope_energy)({n: p.detach() for n, p in member.named_parameters()}, x[i])
        for name in alone:
            torch.testing.assert_close(together[name][i], alone[name])
            assert alone[name].abs().sum() > 0


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_torch_compile_takes_the_whole_graph(backend: str):
    """torch.compile(fullgraph=True), values and gradients, with a changing batch size."""
    torch.compiler.reset()
    spline = learned(4, radius=0.8)
    compiled = torch.compile(spline, fullgraph=True, backend=backend)
    for batch in (3, 5):
        x = torch.randn(batch, 4, 6, dtype=torch.float64, requires_grad=True)
        y = compiled(x)
        expected = spline(x)
        torch.testing.assert_close(y, expected)
        weights = torch.randn_like(y)
        inputs = (x, spline.coefficients, spline.log_scale)
        for got, wanted in zip(
            torch.autograd.grad(y, inputs, weights), torch.autograd.grad(expected, inputs, weights), strict=True
        ):
            torch.testing.assert_close(got, wanted)


def test_torch_export_gives_the_same_function():
    """torch.export with a dynamic batch."""
    spline = learned(4, radius=0.8)
    batch = torch.export.Dim("batch", min=2)
    program = torch.export.export(spline, (torch.randn(3, 4, 5, dtype=torch.float64),), dynamic_shapes=({0: batch},))
    x = torch.randn(7, 4, 5, dtype=torch.float64)
    torch.testing.assert_close(program.module()(x), spline(x))


def test_training_moves_coefficients_and_scale():
    """[sec:SplineProj]: unconstrained training through the projection; the constraint holds at every step."""
    spline = LinearSpline(1, regions=20, radius=1.0, init="zero")
    optimizer = torch.optim.Adam(spline.parameters(), lr=0.01)
    x = torch.linspace(-1, 1, 200)[:, None]
    target = (3 * x).sin() / 4
    losses = []
    for _ in range(150):
        optimizer.zero_grad()
        loss = (spline(x) - target).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        assert spline.slopes().abs().max() <= 1
    assert losses[-1] < losses[0] / 100
    assert spline.log_scale.item() != 0


@pytest.mark.parametrize("init", ["identity", "abs", "relu"])
@pytest.mark.parametrize(("regions", "radius"), [(50, 0.1), (20, 1.0), (51, 0.37)])
def test_every_region_of_an_initial_spline_can_learn(init: str, regions: int, radius: float):
    """Initial slopes lie on the border of [eq:slope_clipping]; rounding must not decide which get a gradient."""
    spline = LinearSpline(1, regions=regions, radius=radius, init=init)
    jacobian = torch.autograd.functional.jacobian(
        lambda c: torch.func.functional_call(_Slopes(spline), {"spline.coefficients": c}, ()), spline.coefficients
    )
    assert (jacobian[0, :, 0].abs().amax(dim=-1) > 0).all()


class _Slopes(nn.Module):
    """The slopes of a spline as a module, for `functional_call`."""

    def __init__(self, spline: LinearSpline):
        super().__init__()
        self.spline = spline

    def forward(self) -> Tensor:
        return self.spline.slopes()


def test_nan_comes_out_where_nan_goes_in():
    """A NaN is neither hidden nor spread."""
    x = torch.tensor([[float("nan"), 0.5], [0.25, -0.5]])
    y = LinearSpline(2, init="abs")(x)
    assert torch.isnan(y).tolist() == [[True, False], [False, False]]
    torch.testing.assert_close(y[1], torch.tensor([0.25, 0.5]))


def test_repr_says_what_it_is():
    """What print(model) shows."""
    text = repr(LinearSpline(3, shared=True, regions=10))
    assert text == "LinearSpline(3, regions=10, radius=0.1, slope=(-1.0, 1.0), constraint='clip', shared=True)"


# Bad input

BAD_ARGUMENTS = [
    ({"channels": 0}, "channels must be at least 1, but is 0."),
    ({"channels": 2.0}, "channels must be an integer, but is 2.0."),
    ({"regions": 1}, "regions must be at least 2, but is 1. A spline with one region is an affine map."),
    ({"regions": 10.5}, "regions must be an integer, but is 10.5. A spline with one region is an affine map."),
    ({"radius": 0.0}, "radius must be a positive finite number, but is 0.0."),
    ({"radius": -1}, "radius must be a positive finite number, but is -1."),
    ({"radius": float("nan")}, "radius must be a positive finite number, but is nan."),
    ({"radius": float("inf")}, "radius must be a positive finite number, but is inf."),
    ({"slope": (1.0, -1.0)}, "slope must be an interval (low, high) with low < high, but is (1.0, -1.0): it is empty."),
    ({"slope": 1.0}, "slope must be a pair (low, high), but is 1.0."),
    ({"slope": (1, 2, 3)}, "slope must be a pair (low, high), but is (1, 2, 3)."),
    ({"constraint": "project"}, "constraint must be one of 'clip', 'normalize', 'none', but is 'project'."),
    (
        {"constraint": "normalize", "slope": (0.0, 1.0)},
        "constraint='normalize' divides by the largest slope, so slope must be symmetric, but is (0.0, 1.0). "
        "Use constraint='clip' for other intervals.",
    ),
    (
        {"init": "elu"},
        "init must be one of 'identity', 'relu', 'leaky_relu', 'abs', 'maxmin', 'zero', but is 'elu'.",
    ),
    (
        {"init": torch.zeros(5)},
        "init as a tensor holds PReLU slopes and must have shape (3,), but has shape (5,). "
        "For other functions give a callable of the knots.",
    ),
    (
        {"init": lambda t: t[0]},
        "init as a callable gets the knots, shape (3, 51), and must return as many values, but returned shape (51,).",
    ),
    ({"init": lambda t: t / 0}, "The initial spline has 153 NaN or infinite value(s) of 153."),
    ({"init": float("nan")}, "The initial spline has 153 NaN or infinite value(s) of 153."),
]


@pytest.mark.parametrize(("arguments", "message"), BAD_ARGUMENTS)
def test_bad_arguments_are_refused_in_one_sentence(arguments: dict, message: str):
    """Got, wanted, what to do."""
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        LinearSpline(**{"channels": 3, **arguments})


BAD_INPUTS = [
    (
        torch.randn(2, 5),
        1,
        "LinearSpline has 3 channels but the input has 5 (shape (2, 5)). Dimension 1 must be the channel dimension.",
    ),
    (
        torch.randn(2, 3, 5),
        -1,
        "LinearSpline has 3 channels but the input has 5 (shape (2, 3, 5)). "
        "Dimension -1 must be the channel dimension.",
    ),
    (
        torch.randn(3),
        1,
        "LinearSpline needs an input of rank 2 or more, (batch, channels, ...), but got shape (3,). "
        "Add a batch dimension with x.unsqueeze(0).",
    ),
    (
        torch.ones(2, 3, dtype=torch.int64),
        1,
        "LinearSpline needs a floating-point input, but got torch.int64. Convert it with x.float().",
    ),
]


@pytest.mark.parametrize(("x", "channel_dim", "message"), BAD_INPUTS)
@pytest.mark.parametrize("shared", [False, True])
def test_bad_inputs_are_refused_in_one_sentence(x: Tensor, channel_dim: int, message: str, shared: bool):
    """Wrong channel count, rank or dtype; sharing one spline does not make the channel count free."""
    with pytest.raises(ValueError, match="^" + re.escape(message) + "$"):
        LinearSpline(3, channel_dim=channel_dim, shared=shared)(x)


@pytest.mark.parametrize("channel_dim", [0, 2, -2, 1.0])
def test_only_dimension_one_and_the_last_can_hold_the_channels(channel_dim: int):
    """Anything else is refused when the layer is made, not somewhere in the forward pass."""
    with pytest.raises(ValueError, match=r"channel_dim must be"):
        LinearSpline(3, channel_dim=channel_dim)


def test_maxmin_start_and_a_shared_spline_exclude_each_other():
    """[sec:SameExp]: it needs two different splines in turns."""
    with pytest.raises(ValueError, match="shared=False"):
        LinearSpline(4, init="maxmin", shared=True)

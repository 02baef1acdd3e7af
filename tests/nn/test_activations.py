"""Fixed activations as layers [lipschitz_activation_section]."""

import copy
import math
import pickle

import pytest
import torch
from torch import nn

from lipspline.functional import activations as F
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin

LAYERS = {
    "abs": AbsoluteValue,
    "prelu": lambda **kw: LipschitzPReLU(8, init=0.3, **kw),
    "group_sort": lambda **kw: GroupSort(4, **kw),
    "group_sort_pairs": lambda **kw: GroupSort(2, **kw),
    "maxmin": MaxMin,
    "householder": lambda **kw: Householder(8, **kw),
}
every_layer = pytest.mark.parametrize("make", list(LAYERS.values()), ids=list(LAYERS))


def test_groups_of_nothing_are_refused():
    layer = GroupSort(2)
    layer.size = 0  # as after construction anybody can
    with pytest.raises(ValueError, match="group size 0 must divide"):
        layer(torch.ones(1, 4))


def test_layers_call_their_formulas():
    """[lipschitz_activation_section]"""
    x = torch.randn(4, 8, 3)
    a = torch.linspace(-1, 1, 8)
    householder = Householder(8)
    assert torch.equal(AbsoluteValue()(x), x.abs())
    assert torch.equal(LipschitzPReLU(8, a)(x), F.prelu(x, a))
    assert torch.equal(GroupSort(4)(x), F.group_sort(x, 4))
    assert torch.equal(MaxMin()(x), F.max_min(x))
    assert torch.equal(householder(x), F.householder(x, householder.v()))


@pytest.mark.parametrize(
    ("init", "wanted"),
    [
        ("abs", [-1.0, -1, -1, -1]),
        ("relu", [0.0, 0, 0, 0]),
        ("identity", [1.0, 1, 1, 1]),
        ("maxmin", [1.0, -1, 1, -1]),
        (0.25, [0.25] * 4),
        (torch.tensor([0.1, 0.2, 0.3, 0.4]), [0.1, 0.2, 0.3, 0.4]),
    ],
)
def test_prelu_starts_as_its_init_says(init, wanted):
    torch.testing.assert_close(LipschitzPReLU(4, init).slopes(), torch.tensor(wanted))


def test_prelu_with_init_maxmin_is_max_min_in_rotated_coordinates():
    """[sec:SameExp]: MaxMin = M PReLU(M x) with a = (1, -1)."""
    x = torch.randn(10, 2, dtype=torch.float64)
    M = torch.tensor([[1.0, 1.0], [1.0, -1.0]], dtype=torch.float64) / math.sqrt(2)
    layer = LipschitzPReLU(2, "maxmin").double()
    torch.testing.assert_close(layer(x @ M) @ M, F.max_min(x))


def test_prelu_uses_clipped_slopes_whatever_the_parameter_is():
    layer = LipschitzPReLU(3)
    with torch.no_grad():
        layer.a.copy_(torch.tensor([-7.0, 0.5, 7.0]))
    torch.testing.assert_close(layer.slopes(), torch.tensor([-1.0, 0.5, 1.0]))
    torch.testing.assert_close(layer(-torch.ones(1, 3)), torch.tensor([[1.0, -0.5, -1.0]]))


def test_a_prelu_slope_beyond_its_limit_comes_back():
    layer = LipschitzPReLU(1)
    with torch.no_grad():
        layer.a.fill_(-1.2)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    x = torch.full((1, 1), -1.0)
    for _ in range(200):
        optimizer.zero_grad()
        (layer(x) - 0.5).square().sum().backward()
        optimizer.step()
    assert layer.a.item() == pytest.approx(-0.5, abs=1e-3)


def test_householder_starts_as_max_min_and_its_vectors_stay_unit_vectors():
    layer = Householder(6).double()
    x = torch.randn(50, 6, dtype=torch.float64)
    torch.testing.assert_close(layer(x), F.max_min(x), rtol=0, atol=1e-6)
    with torch.no_grad():
        layer.angle.copy_(torch.tensor([100.0, -3.0, 0.1]))
    torch.testing.assert_close(layer.v().norm(dim=-1), torch.ones(3, dtype=torch.float64))


@every_layer
def test_layers_are_1_lipschitz(make):
    layer = make()
    x, y = torch.randn(2, 200, 8, 5).unbind()
    assert (layer(x) - layer(y)).norm(dim=1).le((x - y).norm(dim=1) * (1 + 1e-6)).all()


@every_layer
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_layers_keep_the_dtype(make, dtype):
    x = torch.randn(3, 8, dtype=dtype)
    assert make().to(dtype)(x).dtype == dtype
    assert make()(x).dtype == dtype


@pytest.mark.parametrize("make", [make for make in LAYERS.values() if make is not AbsoluteValue])
def test_channels_may_be_last(make):
    x = torch.randn(2, 8, 3, 4)
    torch.testing.assert_close(make(channel_dim=-1)(x.movedim(1, -1)).movedim(-1, 1), make()(x))


@every_layer
def test_layers_survive_deepcopy_pickle_and_state_dict(make):
    layer = make()
    x = torch.randn(3, 8)
    fresh = make()
    fresh.load_state_dict(layer.state_dict())
    for twin in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer)), fresh):
        assert torch.equal(twin(x), layer(x))


@every_layer
def test_layers_work_under_vmap_grad_and_jvp(make):
    layer = make()
    x = torch.randn(5, 3, 8)
    parameters = dict(layer.named_parameters())
    stacked = {name: p.detach().expand(5, *p.shape).clone() for name, p in parameters.items()}
    got = torch.func.vmap(lambda p, x: torch.func.functional_call(layer, p, (x,)))(stacked, x)
    torch.testing.assert_close(got, torch.stack([layer(part) for part in x]))
    gradient = torch.func.grad(lambda x: layer(x).square().sum())(x[0])
    assert gradient.shape == x[0].shape
    _, tangent = torch.func.jvp(layer, (x[0],), (torch.ones(3, 8),))
    jacobian = torch.autograd.functional.jacobian(layer, x[0])
    torch.testing.assert_close(tangent, jacobian.sum(dim=(-1, -2)))


@every_layer
def test_layers_export(make):
    layer = make().eval()
    x = torch.randn(3, 8)
    torch.testing.assert_close(torch.export.export(layer, (x,)).module()(x), layer(x))


@pytest.mark.slow
@every_layer
def test_layers_compile_without_a_graph_break(make):
    layer = make()
    x = torch.randn(3, 8)
    torch.testing.assert_close(torch.compile(layer, fullgraph=True)(x), layer(x))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: GroupSort(1), "size must be at least 2, but is 1"),
        (lambda: GroupSort(2.0), "size must be an integer"),
        (lambda: GroupSort(3)(torch.ones(2, 8)), "group size 3 must divide the number of channels, but 8"),
        (lambda: MaxMin()(torch.ones(2, 7)), "group size 2 must divide the number of channels, but 7"),
        (lambda: MaxMin()(torch.ones(8)), "rank 2 or more"),
        (lambda: Householder(7), "channels must be even, but is 7"),
        (lambda: Householder(8)(torch.ones(2, 6)), "Householder has 8 channels but the input has 6"),
        (lambda: LipschitzPReLU(0), "channels must be at least 1, but is 0"),
        (lambda: LipschitzPReLU(4)(torch.ones(2, 5)), "LipschitzPReLU has 4 channels but the input has 5"),
        (lambda: LipschitzPReLU(4, "max"), "init must be one of 'abs', 'relu', 'identity', 'maxmin', but is 'max'"),
        (lambda: LipschitzPReLU(4, 1.5), r"init must lie in \[-1, 1\]"),
        (lambda: LipschitzPReLU(4, float("nan")), r"init must lie in \[-1, 1\]"),
        (lambda: LipschitzPReLU(4, torch.zeros(3)), r"shape \(4,\), but has shape \(3,\)"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_layers_print_what_they_are():
    printed = repr(nn.Sequential(LipschitzPReLU(8), GroupSort(4), Householder(8)))
    assert "LipschitzPReLU(8)" in printed
    assert "GroupSort(4)" in printed
    assert "Householder(8)" in printed

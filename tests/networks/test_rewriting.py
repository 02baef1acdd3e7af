"""Networks rewritten with another activation are equal networks [prop:SameExp]."""

import itertools

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from lipspline.networks.rewriting import preactivation_bound, rewrite, sorting_network
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin

RADIUS = 3.0
TARGETS = {"prelu": LipschitzPReLU, "abs": AbsoluteValue, "maxmin": MaxMin, "householder": Householder}
every_target = pytest.mark.parametrize("to", list(TARGETS))


def random_prelu():
    return LipschitzPReLU(12, torch.rand(12) * 2 - 1)


def random_householder():
    layer = Householder(12)
    nn.init.uniform_(layer.angle, -10, 10)
    return layer


SOURCES = {
    "relu": nn.ReLU,
    "prelu": random_prelu,
    "prelu at its limits": lambda: LipschitzPReLU(12, "maxmin"),
    "abs": AbsoluteValue,
    "maxmin": MaxMin,
    "householder": random_householder,
    "groupsort 2": lambda: GroupSort(2),
    "groupsort 3": lambda: GroupSort(3),
    "groupsort 4": lambda: GroupSort(4),
    "groupsort 12": lambda: GroupSort(12),
}
every_source = pytest.mark.parametrize("source", list(SOURCES.values()), ids=list(SOURCES))


def lipschitz_network(activation, dtype=torch.float64):
    """A dense network whose weights have orthonormal rows or columns."""
    widths = [5, 12, 12, 12, 3]
    linears = [parametrizations.orthogonal(nn.Linear(n, m, dtype=dtype)) for n, m in itertools.pairwise(widths)]
    layers = [layer for linear in linears for layer in (linear, activation().to(dtype))][:-1]
    return nn.Sequential(*layers)


def points_in_the_ball(count=500, dtype=torch.float64):
    x = torch.randn(count, 5, dtype=dtype)
    return RADIUS * x / x.norm(dim=1, keepdim=True) * torch.rand(count, 1, dtype=dtype)


@every_source
@every_target
def test_the_rewritten_network_is_equal_on_the_ball(source, to):
    """[prop:SameExp], [sec:SameExp] with its errata corrected."""
    network = lipschitz_network(source)
    x = points_in_the_ball()
    equal = rewrite(network, to, bound=preactivation_bound(network, RADIUS), inputs=x)
    torch.testing.assert_close(equal(x), network(x), rtol=0, atol=1e-12)


@every_source
@every_target
def test_the_rewritten_network_has_only_the_wanted_activation_and_weights_of_norm_one(source, to):
    network = lipschitz_network(source)
    equal = rewrite(network, to, bound=4.0)
    for layer in equal:
        if isinstance(layer, nn.Linear):
            assert torch.linalg.svdvals(layer.weight).max().item() <= 1 + 1e-12
        else:
            assert type(layer) is TARGETS[to]
    first = next(layer for layer in equal if isinstance(layer, nn.Linear))
    assert torch.linalg.svdvals(first.weight).max().item() == pytest.approx(1.0, abs=1e-6)


@every_source
@every_target
def test_the_rewritten_network_is_equal_in_float32(source, to):
    network = lipschitz_network(source, torch.float32)
    x = points_in_the_ball(dtype=torch.float32)
    equal = rewrite(network, to, bound=preactivation_bound(network, RADIUS))
    assert all(parameter.dtype == torch.float32 for parameter in equal.parameters())
    torch.testing.assert_close(equal(x), network(x), rtol=0, atol=1e-5)


@every_target
def test_networks_may_begin_and_end_with_linear_layers_in_a_row_and_nest(to):
    inner = nn.Sequential(nn.Linear(12, 12), nn.Linear(12, 12, bias=False), GroupSort(6), AbsoluteValue())
    network = nn.Sequential(nn.Linear(5, 12), inner, random_prelu()).double()
    x = points_in_the_ball()
    equal = rewrite(network, to, bound=preactivation_bound(network, RADIUS))
    torch.testing.assert_close(equal(x), network(x), rtol=0, atol=1e-12)
    kinds = [isinstance(layer, nn.Linear) for layer in equal]
    assert (True, True) not in itertools.pairwise(kinds)


@pytest.mark.parametrize(("source", "to"), [(random_prelu, "abs"), (MaxMin, "abs"), (random_householder, "prelu")])
def test_the_rewritten_network_differs_beyond_the_bound(source, to):
    """The compact set in [prop:SameExp] is needed."""
    network = lipschitz_network(source)
    equal = rewrite(network, to, bound=0.01)
    x = points_in_the_ball()
    assert (equal(x) - network(x)).abs().max().item() > 1e-2


@pytest.mark.parametrize("to", ["abs", "prelu"])
@pytest.mark.parametrize(
    "source", [MaxMin, lambda: Householder(2), lambda: GroupSort(2), lambda: LipschitzPReLU(2, 0.0)]
)
def test_the_bound_need_only_exceed_the_preactivations(source, to):
    """In the corners of the cube |x| < B the norm of a pair comes close to √2 B."""
    network = nn.Sequential(nn.Linear(2, 2, bias=False), source()).double()
    nn.init.eye_(network[0].weight)
    corners = torch.tensor(list(itertools.product([-0.999, 0.999], repeat=2)), dtype=torch.float64)
    equal = rewrite(network, to, bound=1.0, inputs=corners)
    torch.testing.assert_close(equal(corners), network(corners), rtol=0, atol=1e-6)


@every_source
def test_preactivation_bound_bounds_and_is_attained_in_the_first_layer(source):
    network = lipschitz_network(source)
    bound = preactivation_bound(network, RADIUS)
    x = points_in_the_ball(5000)
    for layer in network:
        if not isinstance(layer, nn.Linear):
            assert x.abs().max().item() < bound
        x = layer(x)
    weight, bias = network[0].weight, network[0].bias
    alone = preactivation_bound(nn.Sequential(network[0], network[1]), RADIUS)
    worst = RADIUS * weight * (bias.sign() / weight.norm(dim=1))[:, None]
    assert (worst @ weight.T + bias).abs().max().item() == pytest.approx(alone, rel=1e-6)


@pytest.mark.parametrize("size", range(2, 11))
def test_the_sorting_network_sorts_every_sequence_of_zeros_and_ones(size):
    """The 0-1 principle: such a network of comparators sorts everything."""
    for sequence in itertools.product([0, 1], repeat=size):
        values = list(sequence)
        for comparators in sorting_network(size):
            touched = [i for pair in comparators for i in pair]
            assert len(touched) == len(set(touched))
            for i, j in comparators:
                values[i], values[j] = min(values[i], values[j]), max(values[i], values[j])
        assert values == sorted(sequence)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda net: rewrite(net, "sort", bound=1.0), "to must be one of 'prelu', 'abs', 'maxmin', 'householder'"),
        (lambda net: rewrite(net, "abs", bound=0.0), "bound must be a positive finite number, but is 0.0"),
        (lambda net: rewrite(net, "abs", bound=0.1, inputs=torch.ones(1, 5)), r"Raise bound above .* or take pre"),
        (lambda net: rewrite(nn.Sequential(nn.Conv2d(1, 1, 3)), "abs", bound=1.0), "dense networks .* is a Conv2d"),
        (lambda net: rewrite(nn.Sequential(MaxMin()), "abs", bound=1.0), "begins with nn.Linear.* begins with MaxMin"),
        (lambda net: rewrite(nn.Sequential(), "abs", bound=1.0), "begins with nothing"),
        (lambda net: preactivation_bound(net, -1.0), "radius must be a positive finite number"),
    ],
)
def test_bad_arguments_are_refused_with_a_reason(call, message):
    network = nn.Sequential(nn.Linear(5, 12), MaxMin(), nn.Linear(12, 3))
    with pytest.raises(ValueError, match=message):
        call(network)

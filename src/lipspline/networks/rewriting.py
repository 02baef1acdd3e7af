r"""Turn a network with one 1-Lipschitz activation into an equal one with another: [prop:SameExp] as code.

The proof expresses neighbours in the chain PReLU - AV - MaxMin - HH by each other, with weights of norm one
[sec:SameExp]; here each link is one function. ReLU is a PReLU, and GroupSort a network of comparators, so both lead
into the chain.
"""

import copy
import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin

Target = Literal["prelu", "abs", "maxmin", "householder"]
CHAIN = ("prelu", "abs", "maxmin", "householder")
KINDS: dict[type[nn.Module], str] = {
    LipschitzPReLU: "prelu",
    AbsoluteValue: "abs",
    MaxMin: "maxmin",
    Householder: "householder",
    nn.ReLU: "relu",
    GroupSort: "groupsort",
}


class Affine(NamedTuple):
    """`weight x + bias` in float64."""

    weight: Tensor
    bias: Tensor


Steps = list[Affine | nn.Module]


@torch.no_grad()
def rewrite(network: nn.Sequential, to: Target, *, bound: float, inputs: Tensor | None = None) -> nn.Sequential:
    r"""Express a dense network with another activation, equal where pre-activations are below `bound` [prop:SameExp].

    The new weights are products of the old ones with matrices of norm one, so a network whose weights have norm at most
    one keeps that. Layers become up to twice as wide for one step in the chain PReLU - AV - MaxMin - HH, and a sort of
    k channels becomes about `log₂(k)² / 2` layers.

    Args:
        network: `nn.Linear` layers (plain or parametrized) and any of ReLU, LipschitzPReLU, AbsoluteValue, MaxMin,
            Householder, GroupSort.
        to: the activation of the result.
        bound: the B of the proof: the result equals `network` wherever all pre-activations x of `network` have
            `|x| < B`. `preactivation_bound` gives one for a ball.
        inputs: points that must satisfy the bound; it is an error if one does not.

    Returns:
        A sequence of `nn.Linear` and the activation `to`, in the dtype of `network`.

    Example:
        >>> network = nn.Sequential(nn.Linear(3, 4), MaxMin(), nn.Linear(4, 1))
        >>> equal = rewrite(network, to="abs", bound=preactivation_bound(network, radius=2.0))
        >>> x = torch.rand(10, 3)
        >>> torch.allclose(equal(x), network(x), atol=1e-5)
        True
    """
    checks.one_of("to", to, CHAIN)
    bound = checks.positive("bound", bound, "It bounds the absolute value of every pre-activation.")
    layers = _layers(network)
    if inputs is not None:
        _check_bound(layers, inputs, bound)
    steps: Steps = []
    width = 0
    for layer in layers:
        if isinstance(layer, nn.Linear):
            steps.append(_affine(layer))
            width = layer.out_features
        else:
            steps.extend(_express(layer, width, bound, to))
    weight = next(network.parameters())
    return nn.Sequential(*(_module(step) for step in _merged(steps))).to(weight)


@torch.no_grad()
def preactivation_bound(network: nn.Sequential, radius: float) -> float:
    r"""Bound all pre-activations of a dense network on the ball ‖x‖ ≤ `radius`: a B for `rewrite` [sec:SameExp].

    With z(x) a pre-activation, `w` its row of the weight and L the product of the spectral norms before it,
    `|z(x)| ≤ |z(0)| + ‖w‖ L radius`.

    Example:
        >>> network = nn.Sequential(nn.Linear(1, 1, bias=False), AbsoluteValue())
        >>> _ = nn.init.constant_(network[0].weight, 0.5)
        >>> round(preactivation_bound(network, radius=3.0), 4)
        1.5
    """
    reach = torch.tensor(checks.positive("radius", radius), dtype=torch.float64)
    largest, z, spread = 0.0, None, reach
    for layer in _layers(network):
        if isinstance(layer, nn.Linear):
            weight, bias = _affine(layer)
            z = bias if z is None else weight @ z + bias
            spread = weight.norm(dim=1) * reach
            reach = torch.linalg.matrix_norm(weight, 2) * reach
        elif z is not None:
            largest = max(largest, float((z.abs() + spread).max()))
            z = copy.deepcopy(layer).double().cpu()(z[None])[0]
            spread = reach
    return largest * (1 + 1e-9)  # the spectral norms are computed, not proven: leave room for their rounding


def _layers(network: nn.Sequential) -> list[nn.Module]:
    """The layers of a dense network in order, nested sequences opened, each of a kind that [prop:SameExp] covers."""
    layers = list(_opened(checks.module("rewrite", network)))
    known = (nn.Linear, *KINDS)
    for position, layer in enumerate(layers):
        if not any(isinstance(layer, kind) and type(layer).forward is kind.forward for kind in known):
            raise ValueError(
                f"rewrite works on dense networks made of {', '.join(kind.__name__ for kind in known)}, but layer "
                f"{position} is a {type(layer).__name__}. Rewrite the dense part alone, or write the layer with these."
            )
    if not layers or not isinstance(layers[0], nn.Linear):
        raise ValueError(
            f"rewrite needs a network that begins with nn.Linear, which says how many channels there are, but it "
            f"begins with {type(layers[0]).__name__ if layers else 'nothing'}."
        )
    return layers


def _opened(network: nn.Module) -> Iterator[nn.Module]:
    """The layers of rows within rows. What has a forward of its own is no row, whatever it inherits from."""
    if isinstance(network, nn.Sequential) and type(network).forward is nn.Sequential.forward:
        for child in network:
            yield from _opened(child)
    else:
        yield network


def _check_bound(layers: list[nn.Module], inputs: Tensor, bound: float) -> None:
    """Raise if a pre-activation reaches the bound at one of the inputs."""
    x = inputs
    for position, layer in enumerate(layers):
        if not isinstance(layer, nn.Linear) and (largest := float(x.abs().max())) >= bound:
            raise ValueError(
                f"bound must exceed every pre-activation, but is {bound:g}, and layer {position} "
                f"({type(layer).__name__}) meets {largest:g} on the inputs. Raise bound above {largest:g}, or take "
                f"preactivation_bound(network, radius)."
            )
        x = layer(x)


def _express(layer: nn.Module, width: int, bound: float, to: str) -> Steps:
    """An activation in terms of the activation `to`, one link of the chain after the other."""
    kind = next(kind for layer_type, kind in KINDS.items() if isinstance(layer, layer_type))
    if kind == to:
        return [layer]
    expressed: Steps = []
    for step in LINKS[kind, _next(kind, to)](layer, width, bound):
        if isinstance(step, Affine):
            expressed.append(step)
            width = len(step.bias)
        else:
            expressed.extend(_express(step, width, bound, to))
    return expressed


def _next(kind: str, to: str) -> str:
    """The neighbour of `kind` in the direction of `to`."""
    if kind not in CHAIN:
        return {"relu": "prelu", "groupsort": "maxmin"}[kind]
    here, there = CHAIN.index(kind), CHAIN.index(to)
    return CHAIN[here + (1 if there > here else -1)]


def _relu_by_prelu(layer: nn.Module, width: int, bound: float) -> Steps:
    """ReLU is the PReLU with a = 0."""
    return [LipschitzPReLU(width, "relu", channel_dim=-1)]


def _abs_by_prelu(layer: nn.Module, width: int, bound: float) -> Steps:
    """AV is the PReLU with a = -1 [sec:SameExp]."""
    return [LipschitzPReLU(width, "abs", channel_dim=-1)]


def _prelu_by_abs(layer: nn.Module, width: int, bound: float) -> Steps:
    r"""`PReLU_a(x) = p |p x + p B| + q |q x| - p² B` with p² = (1+a)/2 and q² = (1-a)/2 [sec:SameExp].

    The paper prints the second summand with a minus sign and the offset as (1+a)/(2B).
    """
    assert isinstance(layer, LipschitzPReLU)
    a = layer.slopes().double().cpu()
    p, q = ((1 + a) / 2).sqrt(), ((1 - a) / 2).sqrt()
    weight = torch.stack([p.diag(), q.diag()], dim=1).reshape(2 * width, width)
    shift = torch.stack([p * bound, torch.zeros_like(p)], dim=1).reshape(2 * width)
    return [Affine(weight, shift), AbsoluteValue(), Affine(weight.T, -p.square() * bound)]


def _abs_by_maxmin(layer: nn.Module, width: int, bound: float) -> Steps:
    r"""`|x| = (1, -1)/√2 · MaxMin((1, -1)ᵀ x / √2)` [sec:SameExp], where the paper prints (1, 1)ᵀ inside."""
    spread = _repeat([[1.0], [-1.0]], width)
    return [_linear(spread), MaxMin(channel_dim=-1), _linear(spread.T)]


def _maxmin_by_abs(layer: nn.Module, width: int, bound: float) -> Steps:
    r"""`MaxMin(x) = M |M x + (β, 0)| - (β, β)/√2`, where β = √2 B bounds the norm of a pair [sec:SameExp].

    The paper prints the last offset as (√2 β, 0).
    """
    M = _repeat([[1.0, 1.0], [1.0, -1.0]], width // 2)
    shift = M.new_tensor([math.sqrt(2) * bound, 0.0]).repeat(width // 2)
    return [Affine(M, shift), AbsoluteValue(), Affine(M, torch.full_like(shift, -bound))]


def _maxmin_by_householder(layer: nn.Module, width: int, bound: float) -> Steps:
    """MaxMin is HH with v = (1, -1)/√2 [sec:SameExp]."""
    householder = Householder(width, channel_dim=-1).double()
    householder.angle.fill_(-math.pi / 4)
    return [householder]


def _householder_by_maxmin(layer: nn.Module, width: int, bound: float) -> Steps:
    r"""`HH_v(z) = R MaxMin(Rᵀ z)`, R the rotation by π/4 plus the angle of v [sec:SameExp].

    A rotated pair may have entries larger than B, but its norm stays below √2 B, which is all that MaxMin needs.
    """
    assert isinstance(layer, Householder)
    angle = layer.angle.double().cpu() + math.pi / 4
    cos, sin = angle.cos(), angle.sin()
    rotations = torch.stack([cos, -sin, sin, cos], dim=-1).reshape(-1, 2, 2)
    R = torch.block_diag(*rotations)
    return [_linear(R.T), MaxMin(channel_dim=-1), _linear(R)]


def _groupsort_by_maxmin(layer: nn.Module, width: int, bound: float) -> Steps:
    """Sort by rounds of comparators: each round is a MaxMin between matrices that bring the pairs together."""
    assert isinstance(layer, GroupSort)
    steps: Steps = []
    for comparators in sorting_network(layer.size):
        gather, scatter = _comparator_matrices(comparators, layer.size)
        groups = torch.eye(width // layer.size, dtype=torch.float64)
        steps += [_linear(torch.kron(groups, gather)), MaxMin(channel_dim=-1), _linear(torch.kron(groups, scatter))]
    return steps


def sorting_network(size: int) -> list[list[tuple[int, int]]]:
    """Rounds of disjoint comparators (i, j), i < j, that sort any `size` numbers: Batcher's merge exchange.

    Example:
        >>> sorting_network(3)
        [[(0, 2)], [(0, 1)], [(1, 2)]]
    """
    rounds = []
    top = 1 << ((size - 1).bit_length() - 1)
    p = top
    while p > 0:
        q, r, d = top, 0, p
        while True:
            rounds.append([(i, i + d) for i in range(size - d) if i & p == r])
            if q == p:
                break
            d, q, r = q - p, q // 2, p
        p //= 2
    return [comparators for comparators in rounds if comparators]


def _comparator_matrices(comparators: list[tuple[int, int]], size: int) -> tuple[Tensor, Tensor]:
    """Matrices of norm one before and after the MaxMin of one round.

    A channel x without a partner passes as the pair (x, x)/√2, which MaxMin leaves alone.
    """
    unit = torch.eye(size, dtype=torch.float64)
    idle = sorted(set(range(size)) - {i for pair in comparators for i in pair})
    waiting = [unit[i] / math.sqrt(2) for i in idle for _ in range(2)]
    gather = [unit[i] for pair in comparators for i in pair] + waiting
    scatter = [unit[i] for i, j in comparators for i in (j, i)] + waiting
    return torch.stack(gather), torch.stack(scatter, dim=1)


LINKS: dict[tuple[str, str], Callable[[nn.Module, int, float], Steps]] = {
    ("relu", "prelu"): _relu_by_prelu,
    ("prelu", "abs"): _prelu_by_abs,
    ("abs", "prelu"): _abs_by_prelu,
    ("abs", "maxmin"): _abs_by_maxmin,
    ("maxmin", "abs"): _maxmin_by_abs,
    ("maxmin", "householder"): _maxmin_by_householder,
    ("householder", "maxmin"): _householder_by_maxmin,
    ("groupsort", "maxmin"): _groupsort_by_maxmin,
}


def _affine(layer: nn.Linear) -> Affine:
    """The map of a linear layer, parametrizations evaluated."""
    weight = layer.weight.double().cpu()
    return Affine(weight, weight.new_zeros(len(weight)) if layer.bias is None else layer.bias.double().cpu())


def _linear(weight: Tensor) -> Affine:
    return Affine(weight, weight.new_zeros(len(weight)))


def _repeat(block: list[list[float]], times: int) -> Tensor:
    """The block over √2, `times` times along the diagonal."""
    return torch.kron(torch.eye(times, dtype=torch.float64), torch.tensor(block, dtype=torch.float64) / math.sqrt(2))


def _merged(steps: Steps) -> Steps:
    """The same steps with neighbouring affine maps multiplied out."""
    merged: Steps = []
    for step in steps:
        if isinstance(step, Affine) and merged and isinstance(first := merged[-1], Affine):
            merged[-1] = Affine(step.weight @ first.weight, step.weight @ first.bias + step.bias)
        else:
            merged.append(step)
    return merged


def _module(step: Affine | nn.Module) -> nn.Module:
    """A layer of its own for a step."""
    if not isinstance(step, Affine):
        return copy.deepcopy(step)
    rows, columns = step.weight.shape
    layer = nn.Linear(columns, rows, dtype=torch.float64, device="meta")  # takes no random numbers
    layer.load_state_dict({"weight": step.weight.clone(), "bias": step.bias.clone()}, assign=True)
    return layer

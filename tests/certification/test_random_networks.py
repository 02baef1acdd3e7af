"""Random networks: no pair of points exceeds the certificate."""

from collections.abc import Callable

import pytest
import torch
from layer_norms import learned, upper
from torch import Tensor, nn

from lipspline.certification import certify, estimate_lower
from lipspline.nn import (
    AbsoluteValue,
    Averaged,
    GroupSort,
    Householder,
    LipschitzPReLU,
    MaxMin,
)
from lipspline.nn.convolutions import conv2d
from lipspline.nn.matrices import linear

CHANNELS = 4


def activation(generator: torch.Generator) -> nn.Module:
    choices = [
        lambda: learned(CHANNELS, radius=0.5, init="identity"),
        lambda: learned(CHANNELS, radius=0.5, shared=True, init="abs"),
        lambda: learned(CHANNELS, radius=1.0, constraint="normalize"),
        lambda: learned(CHANNELS, radius=1.0, constraint="none", size=0.05),
        lambda: nn.ReLU(),
        lambda: AbsoluteValue(),
        lambda: LipschitzPReLU(CHANNELS, init=torch.empty(CHANNELS).uniform_(-1, 1)),
        lambda: GroupSort(2),
        lambda: GroupSort(4),
        lambda: MaxMin(),
        lambda: Householder(CHANNELS),
        lambda: nn.Tanh(),
        lambda: nn.LeakyReLU(-1.2),
    ]
    return choices[int(torch.randint(len(choices), (), generator=generator))]()


def random_network(seed: int) -> tuple[nn.Module, tuple[int, ...]]:
    """A small network and the shape of its input: dense or convolutional, any activations, both paddings."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)

    def pick(*options):
        return options[int(torch.randint(len(options), (), generator=generator))]

    def dense_layer() -> nn.Module:
        return pick(
            lambda: nn.Linear(CHANNELS, CHANNELS),
            lambda: linear(CHANNELS, CHANNELS),
            lambda: linear(CHANNELS, CHANNELS, constraint="spectral"),
            lambda: linear(CHANNELS, CHANNELS, lipschitz=1.5),
        )()

    def convolution() -> nn.Module:
        kernel, padding_mode = pick(1, 2, 3), pick("zeros", "circular")
        options = {"padding": "same", "padding_mode": padding_mode}
        return pick(
            lambda: nn.Conv2d(CHANNELS, CHANNELS, kernel, **options),
            lambda: nn.Conv2d(CHANNELS, CHANNELS, kernel, groups=2, **options),
            lambda: conv2d(CHANNELS, CHANNELS, kernel, padding_mode=padding_mode),
            lambda: conv2d(CHANNELS, CHANNELS, kernel, padding_mode=padding_mode, constraint="spectral"),
            lambda: nn.Sequential(nn.PixelUnshuffle(2), conv2d(4 * CHANNELS, CHANNELS, kernel)),
        )()

    convolutional = seed % 2 == 1
    layers = []
    for _ in range(pick(1, 2, 3)):
        layers += [convolution() if convolutional else dense_layer(), activation(generator)]
    model: nn.Module = nn.Sequential(*layers)
    shape = (CHANNELS, 8, 8) if convolutional else (CHANNELS,)
    if not any(isinstance(module, nn.PixelUnshuffle) for module in model.modules()) and pick(True, False):
        model = Averaged(model, 0.7)
    return model, shape


def ratios(model: Callable[[Tensor], Tensor], x: Tensor, y: Tensor) -> Tensor:
    """Ratios of distances of a batch of pairs."""
    return (model(x) - model(y)).flatten(1).norm(dim=1) / (x - y).flatten(1).norm(dim=1)


@torch.no_grad()
def largest_random_ratio(model: nn.Module, shape: tuple[int, ...], pairs: int) -> float:
    """Over pairs at all distances, from 1e-3 to 10."""
    x = torch.randn(pairs, *shape, dtype=torch.float64)
    distance = torch.logspace(-3, 1, pairs, dtype=torch.float64).reshape(-1, *[1] * len(shape))
    y = x + distance * torch.nn.functional.normalize(torch.randn_like(x).flatten(1)).reshape(x.shape)
    return float(ratios(model, x, y).max())


def largest_optimised_ratio(model: nn.Module, shape: tuple[int, ...], pairs: int, steps: int) -> float:
    """Climb the ratio from `pairs` starting pairs; every pair on the way is looked at."""
    x = torch.randn(pairs, *shape, dtype=torch.float64, requires_grad=True)
    gap = (0.3 * torch.randn(pairs, *shape, dtype=torch.float64)).requires_grad_()
    optimizer = torch.optim.Adam([x, gap], lr=0.05, maximize=True)
    best = 0.0
    for _ in range(steps):
        optimizer.zero_grad()
        ratio = ratios(model, x, x + gap)
        ratio.sum().backward()
        best = max(best, float(ratio.max()))
        optimizer.step()
    return best


def check_pairs(seed: int, pairs: int) -> None:
    model, shape = random_network(seed)
    bound = upper(model)
    model = model.double().eval().requires_grad_(False)
    steps = 20
    random = largest_random_ratio(model, shape, pairs // 2)
    optimised = largest_optimised_ratio(model, shape, pairs // 2 // steps, steps)
    assert max(random, optimised) <= bound * (
        1 + 1e-6
    )  # the model's float64 differs from what was certified by rounding
    assert optimised >= 0.02 * bound  # the search does search


@pytest.mark.parametrize(
    "first", [*range(0, 60, 20), *(pytest.param(n, marks=pytest.mark.slow) for n in range(60, 200, 20))]
)
def test_two_hundred_random_networks_have_lower_below_upper(first: int):
    """Dense and convolutional, all activations, both paddings."""
    for seed in range(first, first + 20):
        model, shape = random_network(seed)
        bound, lower = certify(model).upper, estimate_lower(model, shape, steps=4)
        assert 0 < lower <= bound, f"network {seed}"


@pytest.mark.parametrize("seed", range(20))
def test_no_pair_has_a_ratio_above_the_bound(seed: int):
    """10^5 random and optimised pairs, over twenty networks."""
    check_pairs(seed, 5000)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 150))
def test_no_pair_of_a_million_has_a_ratio_above_the_bound(seed: int):
    """10^6 random and optimised pairs, over fifty networks."""
    check_pairs(seed, 20000)

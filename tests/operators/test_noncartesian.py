"""MRI on a trajectory: the sums themselves, the Cartesian operator, another library, and the norm of a dense matrix."""

import math

import numpy as np
import pytest
import torch
from operator_cases import data, dense, image, inner, random

from lipspline.operators import MultiCoilMRI, NonCartesianMRI, radial_trajectory, simulated_maps
from lipspline.operators.noncartesian import toeplitz_kernel
from lipspline.operators.toeplitz import circulant_bound


def grid(height: int, width: int) -> torch.Tensor:
    rows, columns = (torch.arange(n, dtype=torch.float64) - n // 2 for n in (height, width))
    return torch.stack(torch.meshgrid(rows, columns, indexing="ij"), dim=-1)


@pytest.mark.parametrize("shape", [(6, 5), (7, 8)])
def test_it_is_the_sum_over_the_pixels(shape):
    trajectory, x = 2 * random(11, 2, seed=1).clamp(-1, 1), random(1, 1, *shape, dtype=torch.complex128)
    phases = -2j * math.pi * ((trajectory / torch.tensor(shape)) @ grid(*shape).view(-1, 2).mT)
    expected = torch.exp(phases) @ x.flatten() / math.sqrt(shape[0] * shape[1])
    torch.testing.assert_close(NonCartesianMRI(trajectory, shape).forward(x).flatten(), expected, rtol=0, atol=1e-8)


def test_on_a_cartesian_grid_it_is_the_cartesian_operator():
    maps = simulated_maps(3, (6, 9))
    cartesian = MultiCoilMRI(torch.ones(9, dtype=torch.bool), maps, convention="centred")
    H, x = NonCartesianMRI(grid(6, 9), (6, 9), maps), random(2, 1, 6, 9, dtype=torch.complex128)
    torch.testing.assert_close(H.forward(x), cartesian.forward(x).flatten(2), rtol=0, atol=1e-8)
    assert H.norm_bounds()[1] == pytest.approx(cartesian.norm_bounds()[1], rel=1e-4)


def test_it_agrees_with_sigpy():
    sigpy = pytest.importorskip("sigpy")
    trajectory, x = radial_trajectory(9, 24), random(1, 1, 24, 24, dtype=torch.complex128)
    expected = sigpy.nufft(x[0, 0].numpy(), trajectory.numpy(), oversamp=2, width=8)
    found = NonCartesianMRI(trajectory, (24, 24)).forward(x)
    difference = found.flatten() - torch.from_numpy(expected).flatten()
    assert float(difference.norm() / found.norm()) < 1e-4  # sigpy interpolates with an error of this size


@pytest.mark.parametrize("seed", range(6))
def test_the_bounds_are_close_to_the_norm_for_one_coil(seed):
    """Clusters, single points, lines and scattered points."""
    size = (9 + seed, 14 - seed)
    points = [
        radial_trajectory(5, 8),
        torch.tensor([[0.3, 1.2]]),
        random(40, 2, seed=seed).clamp(-4, 4),
        radial_trajectory(12, 8, golden=False),
        0.1 * random(20, 2, seed=seed),
        3 * random(25, 2, seed=seed).clamp(-1, 1),
    ][seed]
    check_bounds(NonCartesianMRI(points, size))


def check_bounds(H: NonCartesianMRI, seed: int = 0) -> None:
    """Both bounds against the dense matrix, and the adjoint in the precision that images have."""
    matrix = dense(H.forward, image(H, batch=1))
    norm = float(torch.linalg.svdvals(matrix)[0])
    lower, upper = H.norm_bounds()
    assert lower <= norm * (1 + 1e-9), seed
    assert norm <= upper, seed
    assert upper <= 1.05 * lower, seed
    x, y = image(H, torch.float32, seed, batch=1), data(H, torch.float32, seed + 1, batch=1)
    assert abs(inner(H.forward(x), y) - inner(x, H.adjoint(y))) <= 1e-6 * norm * float(x.norm() * y.norm()), seed


@pytest.mark.slow
def test_the_bounds_of_a_thousand_random_trajectories():
    """Lines, spirals, scattered points and clusters of them, with and without weights, for one coil and for several."""
    for seed in range(1000):
        H = random_trajectory(seed)
        shape, draw = (H.domain.shape[1], H.domain.shape[2]), torch.Generator().manual_seed(seed)
        seen = torch.randn(1 + seed % 4, *shape, dtype=torch.complex64, generator=draw)
        maps = seen if seed % 2 else simulated_maps(1 + seed % 4, shape) * seen[:1].abs()
        check_bounds(H, seed)
        check_bounds(NonCartesianMRI(H.trajectory, shape, maps, weights=H.weights), seed)


def random_trajectory(seed: int) -> NonCartesianMRI:
    draw = np.random.default_rng(seed)
    height, width = (int(n) for n in draw.integers(3, 10, 2))
    reach, count = min(height, width) / 2, int(draw.integers(1, 8))
    turn = torch.linspace(0, 1, 12, dtype=torch.float64)
    angles = turn * float(draw.uniform(3, 20)) + 2 * math.pi * torch.arange(count).unsqueeze(1) / count
    spiral = reach * turn * torch.stack([angles.cos(), angles.sin()])
    points = [
        lambda: radial_trajectory(count, 2 * int(reach), golden=bool(draw.integers(2))),
        lambda: spiral.movedim(0, -1),
        lambda: torch.from_numpy(draw.uniform(-reach, reach, (5 * count, 2))),
        lambda: torch.from_numpy(draw.normal(size=(1, 2)) + 0.2 * draw.normal(size=(3 * count, 2))).clamp(
            -reach, reach
        ),
    ][draw.integers(4)]()
    weights = torch.from_numpy(draw.exponential(size=points.shape[:-1])) if draw.random() < 0.5 else None
    return NonCartesianMRI(points, (height, width), weights=weights)


def test_entries_of_the_kernel_are_those_of_the_matrix():
    H = NonCartesianMRI(random(12, 2, seed=2), (4, 5))
    columns = torch.eye(20, dtype=torch.complex128).view(20, 1, 4, 5)
    matrix = H.adjoint(H.forward(columns)).view(20, 4, 5)
    kernel = toeplitz_kernel(H._angles, H._roots.square(), (4, 5))
    torch.testing.assert_close(matrix[0], kernel[3:, 4:], rtol=0, atol=1e-8)
    assert circulant_bound(kernel) >= float(torch.linalg.eigvalsh(matrix.view(20, 20).mT)[-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trajectory": torch.zeros(4, 3)}, "real with shape"),
        ({"trajectory": torch.full((4, 2), 9.0)}, "beyond half"),
        ({"trajectory": torch.full((4, 2), float("nan"))}, "NaN"),
        ({"maps": torch.ones(2, 3, 3, dtype=torch.complex64)}, "coil maps must be"),
        ({"weights": torch.ones(3)}, "weights must be 4 numbers"),
        ({"weights": -torch.ones(4)}, "weights must be 4 numbers"),
    ],
)
def test_wrong_arguments_are_refused(change, message):
    options = {"trajectory": torch.zeros(4, 2), "shape": (8, 8), **change}
    with pytest.raises(ValueError, match=message):
        NonCartesianMRI(**options)

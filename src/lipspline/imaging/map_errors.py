"""Errors of estimated coil maps: what they add to the noise of the data, and better maps by a first image.

With more measured values than unknown ones no image explains the data exactly. Were the maps right, least squares would
leave of noise the share of the values that exceed the unknowns. More than that is left where the maps are wrong, as
they are if few columns of the middle of k-space were measured. Such errors act like noise, and are taken for it where
a strength is chosen. And the k-space of a first image, beside what was measured, has a larger middle, from which better
maps are estimated.
"""

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from lipspline.imaging.problem import Iteration, Problem, solve_problem
from lipspline.imaging.strength import QUIET, choose
from lipspline.operators import MultiCoilMRI

SURPLUS = 0.25
"""Of the values, at least this part must exceed the unknowns, or the residual says little."""
STEPS, STEADY = 60, 0.005
"""The most steps of conjugate gradients; they end when one takes less than this part off the energy of the residual."""
WORTH = 1.4
"""Maps are estimated again where noise and errors together exceed the noise by this factor."""
PASSES = 2
CALIBRATION = 16
"""Columns and rows, in the middle of k-space, from which maps are estimated again; farther out more is invented."""
PRIOR, SOLVED = "ridge", Iteration(tol=1e-3, max_steps=300)
"""What the first image is made by."""


@torch.no_grad()
def unexplained(problem: Problem) -> float | None:
    """The noise that would leave as much of the data unexplained as least squares does; None if nothing is left over.

    Conjugate gradients end before the weakest directions are fitted, so that it is a little too large: with exact maps
    up to 1.3 times the noise was seen.

    Example:
        >>> from lipspline.operators import cartesian_mask, simulated_maps
        >>> H = MultiCoilMRI(cartesian_mask(32, 2, 0.2, 0), simulated_maps(8, (32, 32)), convention="centred")
        >>> noise = 0.01 * torch.randn(1, 8, 32, 32, dtype=torch.complex64, generator=torch.manual_seed(0)) * 2**0.5
        >>> y = H.forward(torch.ones(1, 1, 32, 32, dtype=torch.complex64)) + H.mask * noise
        >>> round(unexplained(Problem(y, H, H.adjoint(y), 1.0, 0.01)), 3)
        0.01
    """
    H, y = problem.H, problem.y
    values = float((y != 0).sum()) * (2 if y.is_complex() else 1)
    pixels = problem.direct.numel() if H.support is None else float(H.support.sum())
    left = values - pixels * (2 if problem.direct.is_complex() else 1)
    if left < SURPLUS * values:
        return None
    residual, gradient = y, H.adjoint(y)
    direction, size, energy = gradient, _energy(gradient), _energy(y)
    for _ in range(STEPS):
        if size == 0:
            break
        moved = H.forward(direction)
        residual = residual - size / _energy(moved) * moved
        energy, last = _energy(residual), energy
        if last - energy < STEADY * last:
            break
        gradient = H.adjoint(residual)
        size, before = _energy(gradient), size
        direction = gradient + size / before * direction
    return (energy / left) ** 0.5


def _energy(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x).double().square())


def with_map_errors(problem: Problem) -> Problem:
    """The problem with `map_errors`, as far as its data show any."""
    found = unexplained(problem)
    errors = 0.0 if found is None else max(found**2 - problem.noise**2, 0.0) ** 0.5
    return replace(problem, map_errors=errors)


@torch.no_grad()
def with_better_maps(problem: Problem, estimated: Callable[[Tensor], Problem]) -> Problem:
    """The problem with maps estimated again, from the k-space of a first image, as often as that explains more.

    Args:
        problem: of several coils, with its `map_errors`.
        estimated: the problem with the maps that it estimates from k-space `(1, C, H, W)`, in the unit of y.
    """
    for _ in range(PASSES):
        if problem.total_noise < WORTH * max(problem.noise, QUIET * problem.H.norm_bounds()[1]):
            break
        H, chosen = problem.H, choose(PRIOR, "auto", "auto", problem, refine=False)
        assert isinstance(H, MultiCoilMRI)
        image = solve_problem(chosen.name, problem, chosen.served, chosen.weight, SOLVED).solution.value
        try:
            better = with_map_errors(estimated(problem.y.where(H.mask, H.fully_sampled().forward(image))))
        except ValueError:  # no maps are determined by what the image adds; those of the data were
            break
        if better.total_noise >= problem.total_noise:
            break
        problem = replace(better, map_passes=problem.map_passes + 1)
    return problem

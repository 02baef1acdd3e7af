"""Errors of coil maps: seen in what least squares leaves, and smaller by maps of a first image."""

from dataclasses import replace

import pytest
import torch

from lipspline.formats.builtin import shepp_logan
from lipspline.formats.kspace import Kspace
from lipspline.imaging import map_errors, strength
from lipspline.imaging.map_errors import unexplained, with_better_maps, with_map_errors
from lipspline.imaging.mri import MeasuredMRI
from lipspline.imaging.problem import Problem, solve_problem
from lipspline.operators import MultiCoilMRI, cartesian_mask, simulated_maps

NOISE = 0.004


def scan(size: int = 96, coils: int = 8, acceleration: float = 4, center: float = 0.07) -> tuple[Kspace, torch.Tensor]:
    """Noisy k-space of a phantom, with few columns in the middle, and the maps by which it was measured."""
    truth = shepp_logan(size)[None, None].to(torch.complex64)
    maps = simulated_maps(coils, (size, size))
    H = MultiCoilMRI(cartesian_mask(size, acceleration, center, 0), maps, convention="centred")
    shape = (1, coils, size, size)
    noise = torch.randn(shape, dtype=torch.complex64, generator=torch.manual_seed(0)) * 2**0.5
    data, covariance = H.forward(truth) + NOISE * noise * H.mask, NOISE**2 * torch.eye(coils, dtype=torch.complex64)
    return Kspace(data, H.mask, reference=truth[0].abs(), noise=covariance), maps


def small_problem(wrong: float = 0.0) -> Problem:
    """A problem of few pixels whose maps are wrong by so much."""
    truth, generator = shepp_logan(12)[None, None].to(torch.complex64), torch.manual_seed(1)
    mask, maps = cartesian_mask(12, 2, 0.3, 0), simulated_maps(4, (12, 12))
    right = MultiCoilMRI(mask, maps, convention="centred")
    noise = torch.randn(1, 4, 12, 12, dtype=torch.complex64, generator=generator) * 2**0.5
    y = right.forward(truth) + 0.01 * noise * mask
    off = wrong * torch.randn(maps.shape, dtype=torch.complex64, generator=generator)
    H = MultiCoilMRI(mask, maps + off, convention="centred")
    return Problem(y, H, H.adjoint(y), 1.0, 0.01)


@pytest.mark.parametrize("wrong", [0.0, 0.3])
def test_what_is_unexplained_is_the_residual_of_least_squares_over_what_is_left_over(wrong):
    """Against a dense matrix, to which conjugate gradients come near in their few steps."""
    problem = small_problem(wrong)
    unit = torch.eye(144, dtype=torch.complex64).view(144, 1, 12, 12)
    columns = torch.stack([problem.H.forward(one[None])[0] for one in unit]).flatten(1).T
    kept = columns.abs().sum(dim=1) > 0
    matrix, y = columns[kept].to(torch.complex128), problem.y.flatten()[kept].to(torch.complex128)
    residual = y - matrix @ torch.linalg.lstsq(matrix, y[:, None], driver="gelsd").solution[:, 0]
    exact = float(residual.norm()) / (2 * (len(y) - 144)) ** 0.5
    found = unexplained(problem)
    assert found is not None
    assert exact <= found * (1 + 1e-6)
    assert found == pytest.approx(exact, rel=0.1)


def test_with_exact_maps_it_is_the_noise_and_with_wrong_ones_more():
    assert unexplained(small_problem()) == pytest.approx(0.01, rel=0.15)
    assert with_map_errors(small_problem(0.3)).map_errors > 0.02


def test_nothing_is_said_where_the_data_hold_no_more_values_than_the_image():
    kspace, maps = scan(32, 2)
    problem = MeasuredMRI(kspace, maps[None]).problem(0)
    assert unexplained(problem) is None
    assert problem.map_errors == 0
    assert problem.total_noise == problem.noise


@pytest.mark.parametrize(("columns", "known"), [(3, False), (5, True)])
def test_nothing_is_said_either_where_hardly_more_values_were_measured_than_the_image_has(columns, known):
    mask = torch.arange(12) < columns
    H = MultiCoilMRI(mask, simulated_maps(5, (12, 12)), convention="centred")  # 5 coils: 1.25 and 2.1 times the pixels
    y = H.forward(torch.ones(1, 1, 12, 12, dtype=torch.complex64))
    assert (unexplained(Problem(y, H, H.adjoint(y), 1.0, 0.01)) is not None) == known


def test_a_strength_is_chosen_for_noise_and_errors_together():
    problem = small_problem()
    wrong, noisier = replace(problem, map_errors=0.03), replace(problem, noise=0.001**0.5)
    for prior in ("ridge", "lls"):
        one, other = (strength.choose(prior, "auto", "auto", p, refine=False) for p in (wrong, noisier))
        assert one.weight == pytest.approx(other.weight)
        assert one.noise == pytest.approx(other.noise)
        assert "from noise 0.01 in the data and at most 0.03 of errors of the coil maps" in one.chosen
        assert "errors" not in other.chosen


def test_maps_from_few_columns_are_estimated_again_and_the_image_is_better(monkeypatch):
    kspace, _ = scan()
    better = MeasuredMRI(kspace, "espirit").problem(0)
    monkeypatch.setattr(map_errors, "PASSES", 0)
    once = MeasuredMRI(kspace, "espirit").problem(0)
    assert once.total_noise > map_errors.WORTH * once.noise
    assert better.total_noise < 0.6 * once.total_noise
    assert better.scale == once.scale
    scores = []
    for problem in (once, better):
        chosen = strength.choose("tv", "auto", "auto", problem, refine=False)
        solution = solve_problem("tv", problem, chosen.served, chosen.weight, map_errors.SOLVED).solution
        scores.append(problem.quality(solution.value)["psnr"])
    assert scores[1] > scores[0] + 3


def test_maps_that_are_given_stay_and_exact_ones_show_hardly_any_errors():
    kspace, maps = scan()
    problem = MeasuredMRI(kspace, maps[None], phase="none").problem(0)
    assert isinstance(problem.H, MultiCoilMRI)
    torch.testing.assert_close(problem.H.maps, maps / maps.norm(dim=0), atol=1e-3, rtol=0)
    assert problem.noise <= problem.total_noise < 1.3 * problem.noise


def test_maps_that_explain_less_are_not_taken():
    problem = with_map_errors(small_problem(0.3))
    assert isinstance(problem.H, MultiCoilMRI)
    worse = replace(problem, H=MultiCoilMRI(problem.H.mask, problem.H.maps.flip(0), convention="centred"))
    assert with_better_maps(problem, lambda _: worse) is problem


def test_maps_that_explain_the_data_are_not_estimated_again():
    def never(_: torch.Tensor) -> Problem:
        raise AssertionError("the maps were right")

    problem = with_map_errors(small_problem())
    assert with_better_maps(problem, never) is problem


def test_a_second_estimate_that_fails_leaves_the_first():
    def fails(_: torch.Tensor) -> Problem:
        raise ValueError("no coil maps are determined")

    problem = with_map_errors(small_problem(0.3))
    assert with_better_maps(problem, fails) is problem


def test_errors_that_nobody_could_see_are_not_worth_a_second_estimate():
    """Data without noise: any error of the maps is many times the noise."""

    def never(_: torch.Tensor) -> Problem:
        raise AssertionError("the errors are below half a grey value")

    problem = replace(small_problem(), noise=0.0, map_errors=0.4 * strength.QUIET)
    assert with_better_maps(problem, never) is problem

"""Noise that differs from coil to coil: estimated, made white, and none the worse for it."""

import pytest
import torch

from lipspline.formats import builtin
from lipspline.formats.kspace import Kspace
from lipspline.imaging.coil_noise import (
    _quietest,
    deviation,
    noise_covariance,
    noise_in_kspace,
    noise_samples,
    virtual_coils,
    whitening,
)
from lipspline.imaging.coils import Whiten, normalized_maps
from lipspline.imaging.mri import MeasuredMRI
from lipspline.imaging.problem import Iteration, Problem, solve_problem
from lipspline.imaging.strength import choose
from lipspline.operators import MultiCoilMRI, cartesian_mask, simulated_maps
from lipspline.operators.mri import centred_fft

SHAPE = (64, 64)
COVARIANCE = torch.tensor([[1.0, 1.2 + 0.9j], [1.2 - 0.9j, 9.0]], dtype=torch.complex128)


def head(size: int) -> torch.Tensor:
    """A real head of this size, in the middle of a field of view that it does not fill."""
    found = builtin.head()
    small = torch.nn.functional.interpolate(found[None, None], (3 * size // 4, 3 * size // 4), mode="area")[0, 0]
    padded = torch.zeros(size, size)
    padded[size // 8 : size // 8 + len(small), size // 8 : size // 8 + len(small)] = small
    return padded / padded.max()


def noise(covariance: torch.Tensor, shape: tuple[int, int], seed: int = 0) -> torch.Tensor:
    """Noise `(C, H, W)` whose real parts have this covariance."""
    generator = torch.Generator().manual_seed(seed)
    parts = torch.randn(2, len(covariance), *shape, generator=generator, dtype=torch.float64)
    root = torch.linalg.cholesky(covariance)
    return torch.einsum("cd,dhw->chw", root, torch.complex(parts[0], parts[1])).to(torch.complex64)


def scan(level: float, size: int = 64, *, measured: bool = True) -> tuple[Kspace, torch.Tensor, torch.Tensor]:
    """k-space of two coils with correlated noise of different strength, maps and truth."""
    truth, mask = head(size), cartesian_mask(size, 2, 0.2)
    maps = simulated_maps(2, (size, size))
    covariance = level**2 * COVARIANCE
    data = (centred_fft(maps * truth) + noise(covariance, (size, size))) * mask
    return Kspace(data[None], mask, noise=covariance if measured else None), maps, truth


def test_whitened_noise_is_white_and_as_strong_as_it_was_on_average():
    mixing = whitening(COVARIANCE)
    W = mixing.forwards.to(torch.complex128)
    torch.testing.assert_close(W @ COVARIANCE @ W.mH, 5 * torch.eye(2, dtype=torch.complex128), atol=1e-5, rtol=0)
    torch.testing.assert_close(W @ mixing.back.to(torch.complex128), torch.eye(2, dtype=torch.complex128))


def test_the_covariance_is_found_where_there_is_no_signal():
    kspace, _, _ = scan(0.01, measured=False)
    found = noise_covariance(noise_samples(kspace.data, kspace.mask))
    assert found is not None
    torch.testing.assert_close(found / 1e-4, COVARIANCE, rtol=0, atol=0.9)
    assert float(found[0, 1].imag) > 0.3e-4  # a conjugate would be negative


def test_without_samples_of_noise_there_is_no_covariance():
    kspace, _, _ = scan(0.01, measured=False)
    assert noise_covariance(noise_samples(kspace.data[..., :1, :], torch.zeros(64, dtype=torch.bool))) is None
    assert noise_covariance(noise_samples(torch.zeros_like(kspace.data), kspace.mask)) is None


def test_a_covariance_without_inverse_is_refused():
    with pytest.raises(ValueError, match=r"covariance without inverse .* whiten=none"):
        whitening(torch.ones(2, 2))


def white_problem(kspace: Kspace, maps: torch.Tensor) -> Problem:
    """The same data as a problem with white noise, put together by hand."""
    assert kspace.noise is not None
    root = torch.linalg.cholesky(torch.linalg.inv(kspace.noise)).mH  # any root of the inverse will do
    root = (root * kspace.noise.diagonal().real.mean().sqrt()).to(torch.complex64)
    y, white = (torch.einsum("cd,...dhw->...chw", root, some) for some in (kspace.data, normalized_maps(maps)))
    scale = MeasuredMRI(kspace, maps[None], phase="none").problem(0).scale
    H = MultiCoilMRI(kspace.mask, white, convention="centred")
    level = float(kspace.noise.diagonal().real.mean().sqrt())
    return Problem(y / scale, H, H.adjoint(y) / scale, scale, level / scale)


def test_a_problem_with_coloured_noise_is_the_one_with_white_noise():
    kspace, maps, _ = scan(0.01)
    whitened = MeasuredMRI(kspace, maps[None], phase="none").problem(0)
    by_hand = white_problem(kspace, maps)
    assert whitened.noise == pytest.approx(by_hand.noise, rel=0.15)
    strength = choose("tv", "auto", "auto", by_hand)
    solutions = [
        solve_problem("tv", problem, strength.served, strength.weight, Iteration(1e-5, 400)).solution.value
        for problem in (whitened, by_hand)
    ]
    assert float((solutions[0] - solutions[1]).norm() / solutions[1].norm()) < 1e-3
    plain = MeasuredMRI(kspace, maps[None], phase="none", whiten="none").problem(0)
    other = solve_problem("tv", plain, strength.served, strength.weight, Iteration(1e-5, 400)).solution.value
    assert float((other - solutions[1]).norm() / solutions[1].norm()) > 1e-2


@pytest.mark.slow
def test_images_of_whitened_data_are_better_at_the_strength_that_is_automatic():
    kspace, maps, truth = scan(0.01, 128, measured=False)

    def score(whiten: Whiten) -> float:
        problem = MeasuredMRI(kspace, maps[None], whiten=whiten).problem(0)
        strength = choose("ridge", "auto", "auto", problem)
        found = solve_problem("ridge", problem, strength.served, strength.weight, Iteration(2e-4, 300))
        error = problem.image(found.solution.value).abs() * problem.scale - truth
        return -10 * float(error.square().mean().log10())

    assert score("auto") > score("none") + 0.2


@pytest.mark.slow
@pytest.mark.parametrize("measured", [False, True])
def test_the_automatic_strength_of_whitened_data_is_within_a_third_of_a_decibel_of_the_best(measured):
    kspace, maps, truth = scan(0.01, 128, measured=measured)
    problem = MeasuredMRI(kspace, maps[None]).problem(0)

    def score(factor: float) -> float:
        strength = choose("ridge", "auto", "auto", problem, factor)
        found = solve_problem("ridge", problem, strength.served, strength.weight, Iteration(2e-4, 300))
        error = problem.image(found.solution.value).abs() * problem.scale - truth
        return -10 * float(error.square().mean().log10())

    scores = {factor: score(factor) for factor in (0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0)}
    print(f"\n{ {factor: round(value, 2) for factor, value in scores.items()} } dB")
    assert max(scores.values()) - scores[1.0] <= 0.3
    assert max(scores, key=lambda factor: scores[factor]) not in (0.25, 4.0)  # the best is among those tried


def test_virtual_coils_keep_what_the_coils_span():
    """Eight coils that are combinations of three are the three."""
    maps = simulated_maps(3, SHAPE)
    mixed = torch.einsum("nc,chw->nhw", noise(torch.eye(8, dtype=torch.complex128), (1, 3))[:, 0], maps)
    data = centred_fft(mixed * head(64))
    mixing = virtual_coils(data, 3)
    torch.testing.assert_close(mixing.restored(mixing.data(data)), data, atol=1e-4, rtol=1e-4)
    kspace = Kspace(data[None], torch.ones(64, dtype=torch.bool))
    eight = MeasuredMRI(kspace, mixed[None], whiten="none").problem(0)
    three = MeasuredMRI(kspace, mixed[None], whiten="none", virtual_coils=3).problem(0)
    assert three.y.shape[1] == 3
    torch.testing.assert_close(three.direct * three.scale, eight.direct * eight.scale, atol=1e-3, rtol=1e-3)


def test_more_virtual_coils_than_coils_are_refused():
    kspace, _, _ = scan(0.01)
    with pytest.raises(ValueError, match="virtual_coils is 3, but there are 2 coils"):
        MeasuredMRI(kspace, virtual_coils=3)


def test_the_summary_says_what_was_whitened_with():
    kspace, _, _ = scan(0.01)
    assert MeasuredMRI(kspace).summary.endswith("; coils whitened with a measurement of noise; coil maps by ESPIRiT")
    assert "an estimate" in MeasuredMRI(scan(0.01, measured=False)[0]).summary
    assert "whitened" not in MeasuredMRI(kspace, whiten="none").summary


ROWS, COLUMNS = torch.meshgrid(torch.arange(-64, 64), torch.arange(-48, 48), indexing="ij")
RADIUS = (ROWS.square() + COLUMNS.square()).sqrt()
PLANES = {
    "random": (torch.rand(128, 96, generator=torch.Generator().manual_seed(0)) < 0.3) | (RADIUS < 8),
    "every second of both": ((ROWS % 2 == 0) & (COLUMNS % 2 == 0)) | (RADIUS < 8),
    "ellipse": (ROWS / 64).square() + (COLUMNS / 48).square() < 1,
    "zero-filled": (ROWS.abs() < 32) & (COLUMNS.abs() < 24),
    "zero-filled circle": RADIUS < 24,
}


@pytest.mark.parametrize("noise", [0.01, 0.3])
@pytest.mark.parametrize("name", PLANES)
def test_the_noise_of_points_in_a_plane_is_found_wherever_they_lie(name, noise):
    """Not zero where the outer rows were not measured, and not the signal of the rows that were."""
    image, stream = torch.zeros(1, 1, 128, 96), torch.Generator().manual_seed(1)
    image[..., 40:90, 30:70] = 1
    clean = centred_fft(torch.nn.functional.avg_pool2d(image, 7, 1, 3))
    data = clean + noise * 2**0.5 * torch.randn(clean.shape, dtype=torch.complex64, generator=stream)
    assert noise_in_kspace(data * PLANES[name], PLANES[name]) == pytest.approx(noise, rel=0.15)


@pytest.mark.parametrize("name", ["random", "every second of both"])
def test_signal_in_the_corners_of_kspace_is_not_taken_for_noise(name):
    """Of a measured head with four coils the corners held four times the power of the noise, and other parts less."""
    stream = torch.Generator().manual_seed(1)
    parts = torch.randn(2, 1, 2, 128, 96, dtype=torch.complex64, generator=stream)
    far = torch.maximum(ROWS.abs() / 64, (ROWS.abs() / 64 + COLUMNS.abs() / 48) / 1.4) > 0.8
    signal = torch.where(far, 2.0, 100 * torch.exp(-RADIUS / 6))
    data = (signal * parts[0] + parts[1]) * 2**0.5 * PLANES[name]
    assert noise_in_kspace(data, PLANES[name]) == pytest.approx(1, rel=0.1)


def test_noise_alone_is_not_taken_for_less_than_it_is():
    """Though the quietest parts of k-space are looked for."""
    stream = torch.Generator().manual_seed(0)
    data = 2**0.5 * torch.randn(40, 1, 1, 128, 96, dtype=torch.complex64, generator=stream)
    quiet = torch.tensor([deviation(_quietest(one * PLANES["random"], PLANES["random"])) for one in data])
    assert float(quiet.mean()) == pytest.approx(1, abs=0.03)

"""Largest eigenvalues of Toeplitz matrices that coils see, against dense matrices."""

import pytest
import torch
from operator_cases import random

from lipspline.operators import NonCartesianMRI, radial_trajectory, simulated_maps, toeplitz
from lipspline.operators.noncartesian import toeplitz_kernel
from lipspline.operators.toeplitz import CoilToeplitz, circulant_bound, eigenvalue_bounds


def parts(H: NonCartesianMRI) -> tuple[torch.Tensor, torch.Tensor]:
    """The kernel and the maps of an operator."""
    return toeplitz_kernel(H._angles, H._roots.square(), H._shape), H.maps.to(torch.complex128)


def coil_toeplitz(H: NonCartesianMRI) -> CoilToeplitz:
    kernel, maps = parts(H)
    return CoilToeplitz(maps, torch.fft.fft2(toeplitz._embedded(kernel, H._shape, 2)[1]).real)


def dense(matrix: CoilToeplitz) -> torch.Tensor:
    height, width = matrix.maps.shape[-2:]
    columns = torch.eye(height * width, dtype=torch.complex128).view(-1, height, width)
    return torch.stack([matrix(column).flatten() for column in columns]).mT


def uneven(coils: int = 3, shape: tuple[int, int] = (9, 8)) -> NonCartesianMRI:
    """A radial scan of coils that see the middle better than the edge."""
    maps = simulated_maps(coils, shape) * torch.hann_window(shape[0]).add(0.2).unsqueeze(1)
    return NonCartesianMRI(radial_trajectory(5, 8), shape, maps)


def test_the_matrix_is_that_of_the_operator():
    H = uneven()
    x = random(1, 1, 9, 8, dtype=torch.complex128)
    torch.testing.assert_close(coil_toeplitz(H)(x[0, 0]), H.adjoint(H.forward(x))[0, 0], rtol=0, atol=1e-7)


@pytest.mark.parametrize("coils", [1, 2, 5])
@pytest.mark.parametrize("shape", [(9, 8), (16, 16), (8, 13)])
def test_the_bounds_are_within_two_percent_of_the_eigenvalue(coils, shape):
    H = uneven(coils, shape)
    largest = float(torch.linalg.eigvalsh(dense(coil_toeplitz(H)))[-1])
    lower, upper = eigenvalue_bounds(*parts(H))
    assert lower <= largest <= upper <= 1.04 * largest
    assert lower >= 0.999 * largest


def test_maps_tell_more_than_their_largest_sum_of_squares():
    """The bound of the transform times that sum was 1.5 times the norm and more for a measured head."""
    H = uneven(4, (24, 24))
    kernel, maps = parts(H)
    assert eigenvalue_bounds(kernel, maps)[1] < 0.7 * circulant_bound(kernel) * float(
        maps.abs().square().sum(dim=0).max()
    )


@pytest.mark.parametrize("apart", [0, 1, 3])
def test_what_is_proven_of_the_complement_is_what_holds(apart: int):
    """Both ways: just above its largest eigenvalue it is proven, and just below it is not."""
    matrix = coil_toeplitz(uneven())
    values, vectors = torch.linalg.eigh(dense(matrix))
    V = vectors.flip(1)[:, :apart].mT.contiguous()
    cut = float(matrix.circulant.flatten().sort(descending=True).values[20])
    frequencies = (matrix.circulant > cut).nonzero()
    waves = toeplitz._waves(frequencies[:, 0], 18, 9)[:, :, None] * toeplitz._waves(frequencies[:, 1], 16, 8)[:, None]
    roots = ((matrix.circulant[tuple(frequencies.mT)] - cut) / matrix.circulant.numel()).sqrt()
    B = (roots[:, None, None, None] * waves[:, None] * matrix.maps).flatten(0, 1).flatten(1)
    whole = torch.diag(cut * matrix.maps.abs().square().sum(dim=0).flatten()) + B.mH @ B
    assert float(torch.linalg.eigvalsh(whole - dense(matrix))[0]) >= -1e-9  # it is above M
    project = torch.eye(len(whole), dtype=whole.dtype) - V.mT @ V.conj()
    largest = float(torch.linalg.eigvalsh(project @ whole @ project)[-1])
    assert toeplitz._stays_below(1.0001 * largest, cut, matrix, V)
    assert not toeplitz._stays_below(0.9999 * largest, cut, matrix, V)
    assert apart == 0 or largest < float(values[-1]) * 1.2


def test_even_sampling_falls_back_to_the_circulant(monkeypatch):
    """Where no frequency stands out nothing small can be factorised."""
    monkeypatch.setattr(toeplitz, "_stays_below", lambda *of: False)
    H = uneven()
    kernel, maps = parts(H)
    lower, upper = eigenvalue_bounds(kernel, maps)
    sums = float(maps.abs().square().sum(dim=0).max())
    assert upper == pytest.approx(circulant_bound(kernel) * sums)
    assert lower <= float(torch.linalg.eigvalsh(dense(coil_toeplitz(H)))[-1]) <= upper


def test_where_the_tightest_bound_cannot_be_proven_wider_ones_are_tried(monkeypatch):
    kernel, maps = parts(uneven())
    lower, _ = eigenvalue_bounds(kernel, maps)
    tried = []

    def below(level: float, *_: object) -> bool:
        tried.append(level / lower)
        return level > 1.15 * lower

    monkeypatch.setattr(toeplitz, "_stays_below", below)
    _, upper = eigenvalue_bounds(kernel, maps)
    assert tried == sorted(tried)
    assert tried[-1] == pytest.approx(1.2, rel=1e-3)
    assert upper == pytest.approx(1.2 * lower, rel=0.01)


def test_maps_that_see_nothing():
    assert eigenvalue_bounds(torch.ones(5, 5, dtype=torch.complex128), torch.zeros(2, 3, 3)) == (0.0, 0.0)

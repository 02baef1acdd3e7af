"""The check of adjoints sees what it must, at its true size and in every dimension."""

import pytest
import torch
from operator_cases import CASES
from torch import Tensor

from lipspline.adapters.foreign import Foreign, adjoint_error
from lipspline.operators import LinearOperator, Space


def pair(forward: Tensor, backward: Tensor) -> LinearOperator:
    """The matrix `forward` with a claimed adjoint `backward`."""
    spaces = Space((forward.shape[1],)), Space((forward.shape[0],))
    return Foreign("A pair", lambda x: x @ forward.mT, lambda y: y @ backward.mT, *spaces)


def known(H: LinearOperator) -> bool:
    return None not in H.output_shape and H.domain.batch is None


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", [name for name, make in CASES.items() if known(make())])
def test_exact_adjoints_are_found_exact(name: str):
    """Every operator of the library whose sizes are known, real and complex, to the round-off of float64."""
    assert adjoint_error(CASES[name]()) < 1e-10


@pytest.mark.parametrize("size", [20, 200, 1500])
def test_the_error_of_the_adjoint_is_measured_at_its_size_in_every_dimension(size: int):
    """A structureless error of 7e-3 is found to be one, and does not drown as the dimension grows."""
    H, E = random(size, size), random(size, size, seed=1)
    assert 3e-3 < adjoint_error(pair(H, H.mT + 7e-3 * E)) < 5e-2


@pytest.mark.parametrize("factor", [0.5, 1.01, -1.0])
def test_a_wrong_scale_is_seen(factor: float):
    """Signed noise divided by the two norms would be blind to it."""
    H = random(30, 40)
    assert adjoint_error(pair(H, factor * H.mT)) > 0.5 * abs(factor - 1)


def test_an_error_on_flat_images_only_is_seen():
    """Rank one of a thousand: white noise would see a thousandth of it."""
    size = 1000
    H = torch.eye(size, dtype=torch.float64)
    error = torch.full((size, size), 0.01 / size, dtype=torch.float64)
    assert adjoint_error(pair(H, H + error)) == pytest.approx(0.01, rel=1e-6)


def test_a_map_that_is_not_linear_has_no_adjoint():
    """An offset or a square cannot pass."""
    spaces = Space((30,)), Space((30,))
    assert adjoint_error(Foreign("Affine", lambda x: x + 1, lambda y: y, *spaces)) > 0.1
    assert adjoint_error(Foreign("Square", torch.square, lambda y: y, *spaces)) > 0.1


def test_scikit_images_adjoint_is_refused_at_its_known_size():
    """Backprojection by interpolation is not the transpose of projection by rotation: some 1e-3, not round-off."""
    transform = pytest.importorskip("skimage.transform")
    theta, size = [0.0, 20.0, 45.0, 100.0], 16

    def radon(x: Tensor) -> Tensor:
        return torch.stack([torch.from_numpy(transform.radon(i.numpy(), theta=theta, circle=False)) for i in x])

    def back(y: Tensor) -> Tensor:
        options = {"theta": theta, "circle": False, "filter_name": None, "output_size": size}
        scale = 2 * len(theta) / torch.pi  # what iradon divides by
        return torch.stack([torch.from_numpy(transform.iradon(i.numpy(), **options)) for i in y]) * scale

    data = radon(torch.zeros(1, size, size, dtype=torch.float64)).shape[1:]
    H = Foreign("radon", radon, back, Space((size, size)), Space(tuple(data)))
    assert adjoint_error(H) > 1e-3

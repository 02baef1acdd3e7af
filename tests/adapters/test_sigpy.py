"""sigpy's solvers on our operators, and sigpy's transforms in our plug-and-play."""

import sys

import numpy as np
import pytest
import torch
from operator_cases import CASES
from torch import nn

from lipspline import pnp
from lipspline.adapters import from_sigpy, to_sigpy
from lipspline.adapters.foreign import matrix_of
from lipspline.operators import MRI, Identity, Inpainting, Matrix, ParallelBeamCT, cartesian_mask

sigpy = pytest.importorskip("sigpy")
linop = pytest.importorskip("sigpy.linop")
CLOSED = [name for name, make in CASES.items() if None not in make().input_shape and make().domain.batch is None]


def trajectory(points: int, seed: int = 0) -> np.ndarray:
    """Points of k-space for images of 8 x 8."""
    return np.random.default_rng(seed).uniform(-4, 4, (points, 2))


# Ours to theirs


@pytest.mark.parametrize("name", CLOSED)
def test_our_operators_compute_the_same_there(name: str):
    """Forward, adjoint, the adjoint of the adjoint, and shapes."""
    H = CASES[name]()
    A = to_sigpy(H)
    x, y = H.domain.sample(1), H.forward(H.domain.sample(2))
    np.testing.assert_array_equal(A(x[0].numpy()), H.forward(x)[0])
    # finufft adds up in the order in which its threads come
    np.testing.assert_allclose(A.H(y[0].numpy()), H.adjoint(y)[0], rtol=0, atol=1e-13)
    np.testing.assert_array_equal(A.H.H(x[0].numpy()), H.forward(x)[0])
    np.testing.assert_allclose(A.N(x[0].numpy()), H.adjoint(H.forward(x))[0], rtol=1e-12)
    assert (tuple(A.ishape), tuple(A.oshape)) == (x.shape[1:], y.shape[1:])


def test_their_least_squares_on_our_ct_is_the_dense_solution():
    """A tomography problem solved by sigpy's conjugate gradients."""
    H = ParallelBeamCT(6, 12, 11)
    x = np.abs(np.random.default_rng(0).standard_normal((1, 6, 6)))
    y = to_sigpy(H)(x)
    app = sigpy.app.LinearLeastSquares(to_sigpy(H), y, max_iter=400, tol=1e-14, show_pbar=False)
    np.testing.assert_allclose(app.run().ravel(), np.linalg.pinv(matrix_of(H).numpy()) @ y.ravel(), atol=1e-6)


def test_our_mri_is_composed_with_their_operators():
    """Their algebra: a wavelet-like product with a diagonal, and its adjoint."""
    H = MRI(cartesian_mask(6, 2, 0.3), convention="centred")
    weights = np.random.default_rng(0).standard_normal((1, 5, 6))
    A = to_sigpy(H, (1, 5, 6)) * linop.Multiply((1, 5, 6), weights)
    x = H.domain.sample().numpy()[0, :, :, :] + np.zeros((1, 5, 6))
    np.testing.assert_allclose(A(x), H.forward(torch.from_numpy(weights * x)[None])[0], rtol=1e-12)
    y = np.random.default_rng(1).standard_normal((1, 5, 6)) + 0j
    assert np.vdot(A(x), y) == pytest.approx(np.vdot(x, A.H(y)))


# Theirs to ours


@pytest.mark.parametrize("field", ["real", "complex"])
def test_their_fourier_transform_is_ours(field: str):
    """Orthonormal and centred, as our centred convention; for real images the adjoint takes the real part.

    Of real arrays in any precision sigpy computes the transform in complex64.
    """
    H = from_sigpy(linop.FFT((1, 6, 5), axes=(-2, -1)), field=field, norm=1.0)  # type: ignore[arg-type]
    ours = MRI(torch.ones(6, 5, dtype=torch.bool), convention="centred")
    x, y = H.domain.sample(1), H.codomain.sample(2)
    torch.testing.assert_close(H.forward(x), ours.forward(x), atol=2e-6, rtol=2e-6)
    back = ours.adjoint(y)
    torch.testing.assert_close(H.adjoint(y), back.real if field == "real" else back, atol=2e-6, rtol=2e-6)


def test_plug_and_play_with_their_nonuniform_fourier_transform():
    """[eq:pnp_fbs]: radial or any other k-space, with a guarantee, and the same fixed point as the dense matrix."""
    H = from_sigpy(linop.NUFFT((8, 8), trajectory(100)), norm="dense")
    y = H.forward(H.domain.sample().abs())
    solution = pnp.fbs(y, H, nn.ReLU(), contraction=0.95, tol=1e-9)
    assert solution.converged
    assert solution.certificate.guaranteed
    dense = Matrix(matrix_of(H))
    flat = torch.view_as_real(y).reshape(1, -1)
    same = pnp.fbs(flat, dense, nn.ReLU(), contraction=0.95, tol=1e-9)
    value = torch.view_as_real(solution.value).reshape(1, -1)
    torch.testing.assert_close(value, same.value, atol=1e-4, rtol=1e-4)


def test_plug_and_play_with_their_sampled_fourier_transform_is_our_mri():
    """[eq:pnp_fbs]: their mask times their FFT against our MRI, iterate by iterate."""
    mask = cartesian_mask(8, 2, 0.25).expand(6, 8)
    theirs = from_sigpy(linop.Multiply((1, 6, 8), mask.numpy() * 1.0) * linop.FFT((1, 6, 8), axes=(-2, -1)), norm=1.0)
    ours = MRI(mask, convention="centred")
    y = ours.forward(ours.domain.sample(4))
    one, other = (pnp.fbs(y, H, nn.ReLU(), tol=1e-10) for H in (theirs, ours))
    assert one.steps == other.steps
    torch.testing.assert_close(one.value, other.value)


def test_an_estimate_of_the_norm_is_contradicted():
    """The largest eigenvalue that few steps of power iteration find lies below the norm, and is no bound."""
    A = linop.NUFFT((8, 8), trajectory(100))
    exact = from_sigpy(A, norm="dense").norm_bounds()[1]
    with pytest.raises(ValueError, match=r"was given as an upper bound on its norm, but it stretches"):
        from_sigpy(A, norm=0.98 * exact)


def test_a_wrong_adjoint_is_refused():
    """A linop whose adjoint forgets a factor."""

    class Doubled(linop.Linop):
        def _apply(self, input: np.ndarray) -> np.ndarray:
            return 2 * input

        def _adjoint_linop(self):
            return linop.Identity(self.ishape)

    with pytest.raises(ValueError, match=r"^Doubled is not wrapped: its adjoint is off by"):
        from_sigpy(Doubled((5,), (5,)))


def test_there_and_back_again_is_the_same_operator():
    """Ours as theirs as ours, with the norm handed on."""
    H = Inpainting(torch.rand(1, 5, 4) > 0.4)
    again = from_sigpy(to_sigpy(H), field="real", norm=H.norm_bounds()[1])
    x = H.domain.sample(1)
    torch.testing.assert_close(again.forward(x), H.forward(x))
    assert again.input_shape == H.input_shape


def test_other_things_than_linops_are_refused():
    """The type is named."""
    with pytest.raises(ValueError, match=r"needs a sigpy.linop.Linop, but got a ndarray"):
        from_sigpy(np.ones((2, 2)))


def test_a_missing_sigpy_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    """Errors say what to install."""
    monkeypatch.setitem(sys.modules, "sigpy.linop", None)
    with pytest.raises(ImportError, match=r"lipspline\[sigpy\]"):
        to_sigpy(Identity((2,)))

"""scipy's solvers on our operators, and scipy's operators in ours, against dense matrices."""

import numpy as np
import pytest
import torch
from operator_cases import CASES
from torch import nn

from lipspline import pnp
from lipspline.adapters import from_scipy, to_scipy
from lipspline.adapters.foreign import matrix_of
from lipspline.adapters.scipy import matrix_norm_bound
from lipspline.operators import MRI, Blur, Identity, Matrix, MultiCoilMRI, ParallelBeamCT, cartesian_mask

sparse = pytest.importorskip("scipy.sparse")
linalg = pytest.importorskip("scipy.sparse.linalg")
CLOSED = [name for name, make in CASES.items() if None not in make().input_shape and make().domain.batch is None]


def numbers(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


# Ours to theirs


@pytest.mark.parametrize("name", CLOSED)
def test_our_operators_have_the_same_matrix_there_and_back(name: str):
    """Column by column, forwards and by the exact adjoint; complex where both sides are, pairs where one is."""
    H = CASES[name]()
    A = to_scipy(H)
    forward, adjoint = A @ np.eye(A.shape[1]), A.H @ np.eye(A.shape[0])
    np.testing.assert_allclose(adjoint, forward.conj().T, atol=1e-12)
    if A.dtype.kind == "f":
        np.testing.assert_allclose(forward, matrix_of(H), atol=1e-12)
    else:
        x = H.domain.sample(3)
        np.testing.assert_allclose(A @ x.numpy().ravel(), H.forward(x).numpy().ravel(), atol=1e-12)


def test_one_vector_and_many_are_the_same():
    """matvec and matmat, rmatvec and rmatmat."""
    A = to_scipy(ParallelBeamCT(6, 5, 7))
    X, Y = numbers(A.shape[1], 3), numbers(A.shape[0], 3)
    np.testing.assert_allclose(A.matmat(X), np.stack([A.matvec(x) for x in X.T], axis=1))
    np.testing.assert_allclose(A.rmatmat(Y), np.stack([A.rmatvec(y) for y in Y.T], axis=1))
    assert A.matvec(X[:, :1]).shape == (A.shape[0], 1)


def test_lsqr_on_our_ct_is_the_dense_least_squares_solution():
    """A tomography problem solved by scipy."""
    H = ParallelBeamCT(8, 12, 13)
    x = np.abs(numbers(64))
    y = to_scipy(H) @ x
    found = linalg.lsqr(to_scipy(H), y, atol=1e-14, btol=1e-14, iter_lim=2000)[0]
    np.testing.assert_allclose(found, np.linalg.pinv(matrix_of(H).numpy()) @ y, atol=1e-8)


def test_svds_on_our_ct_are_the_dense_singular_values_and_lie_within_our_bounds():
    """The largest one is the norm."""
    H = ParallelBeamCT(8, 12, 13)
    found = np.sort(linalg.svds(to_scipy(H), k=3, return_singular_vectors=False, rng=np.random.default_rng(0)))[::-1]
    np.testing.assert_allclose(found, torch.linalg.svdvals(matrix_of(H))[:3], rtol=1e-10)
    lower, upper = H.norm_bounds()
    assert lower * (1 - 1e-12) <= found[0] <= upper * (1 + 1e-12)


@pytest.mark.parametrize("coils", [1, 3])
def test_complex_mri_of_any_height_is_a_complex_operator(coils: int):
    """An open size is given; singular values as the dense ones."""
    mask = cartesian_mask(6, 2, 0.3)
    maps = torch.randn(3, 4, 6, dtype=torch.complex128)
    H = MRI(mask, convention="centred") if coils == 1 else MultiCoilMRI(mask, maps, convention="centred")
    A = to_scipy(H, (1, 4, 6))
    assert A.dtype == np.complex128
    assert A.shape == (coils * 24, 24)
    dense = A @ np.eye(24)
    found = linalg.svds(A, k=1, return_singular_vectors=False, rng=np.random.default_rng(0))[0]
    np.testing.assert_allclose(found, np.linalg.norm(dense, 2), rtol=1e-10)


def test_real_images_with_complex_data_are_a_real_operator():
    """Real and imaginary part in turn, as numpy's view has them; lsqr then finds the real least-squares image."""
    H = MRI(cartesian_mask(6, 2, 0.3).expand(5, 6))
    A = to_scipy(H)
    assert A.shape == (60, 30)
    assert A.dtype == np.float64
    x = numbers(1, 5, 6)
    y = H.forward(torch.from_numpy(x)[None]).numpy()
    np.testing.assert_allclose(A @ x.ravel(), y.ravel().view(np.float64), atol=1e-14)
    np.testing.assert_allclose(
        linalg.lsqr(A, y.ravel().view(np.float64), atol=1e-14, btol=1e-14)[0],
        np.linalg.pinv(matrix_of(H).numpy()) @ y.ravel().view(np.float64),
        atol=1e-10,
    )
    with pytest.raises(ValueError, match=r"This operator is real, but got complex numbers"):
        A.matvec(x.ravel() + 0j)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.complex64, np.complex128])
def test_the_dtype_is_the_one_that_was_asked_for(dtype: type):
    """For an operator that takes both real and complex images."""
    H = Blur(torch.tensor([[1.0, 2.0, 0.5]], dtype=torch.float64), (1, 4, 5))
    A = to_scipy(H, dtype=dtype)
    x = numbers(20).astype(dtype)
    assert A.dtype == dtype
    assert (A @ x).dtype == dtype
    size = np.linalg.norm(x) * 3.5  # of the numbers in the sums, which may cancel: 3.5 is the sum of the kernel
    np.testing.assert_allclose(
        A @ x, to_scipy(H) @ x.real.astype(np.float64), rtol=0, atol=8 * np.finfo(dtype).eps * size
    )


def test_what_cannot_be_said_is_refused():
    """An open size, a complex dtype for real images, maps for a batch."""
    with pytest.raises(ValueError, match=r"takes images of several sizes. Say which with input_shape"):
        to_scipy(MRI(cartesian_mask(8)))
    with pytest.raises(ValueError, match=r"takes real images only, so it cannot have a complex dtype"):
        to_scipy(MRI(cartesian_mask(8)), (1, 8, 8), dtype=np.complex128)
    maps = torch.randn(2, 3, 4, 6, dtype=torch.complex128)
    with pytest.raises(ValueError, match=r"holds data for 2 images, but only one"):
        to_scipy(MultiCoilMRI(cartesian_mask(6), maps))


# Theirs to ours


@pytest.mark.parametrize("kind", [float, complex])
@pytest.mark.parametrize("form", ["dense", "sparse", "operator"])
def test_their_matrices_and_operators_are_ours(kind: type, form: str):
    """With shapes of images and data, batches, and the adjoint."""
    M = (numbers(6, 8) + (1j * numbers(6, 8, seed=1) if kind is complex else 0)).astype(kind)
    A = {"dense": M, "sparse": sparse.csr_array(M), "operator": linalg.aslinearoperator(M)}[form]
    H = from_scipy(A, (1, 2, 4), (3, 2))
    reference = Matrix(torch.from_numpy(M))
    x, y = H.domain.sample(1).expand(2, 1, 2, 4), H.codomain.sample(2).expand(2, 3, 2)
    torch.testing.assert_close(H.forward(x).flatten(1), reference.forward(x.flatten(1)))
    torch.testing.assert_close(H.adjoint(y).flatten(1), reference.adjoint(y.flatten(1)))


def test_there_and_back_again_is_the_same_operator():
    """Ours as theirs as ours."""
    H = ParallelBeamCT(6, 5, 7)
    again = from_scipy(to_scipy(H), H.input_shape, H.output_shape)  # type: ignore[arg-type]
    x = H.domain.sample(1)
    torch.testing.assert_close(again.forward(x), H.forward(x))
    assert again.domain == H.domain
    assert again.codomain == H.codomain


def test_an_operator_without_its_adjoint_is_refused():
    """Two maps that do not belong together."""
    M = numbers(6, 6)
    wrong = linalg.LinearOperator((6, 6), matvec=lambda x: M @ x, rmatvec=lambda y: M @ y, dtype=float)
    with pytest.raises(ValueError, match=r"^The scipy operator 6x6 is not wrapped: its adjoint is off by"):
        from_scipy(wrong)


def test_shapes_must_hold_all_entries():
    """Both numbers are named."""
    with pytest.raises(ValueError, match=r"input_shape \(2, 2\) has 4 entries, but the operator has 6"):
        from_scipy(np.ones((3, 6)), (2, 2))


def test_plug_and_play_with_a_sparse_matrix_needs_no_word_on_its_norm():
    """[eq:pnp_fbs]: finite differences, with a guarantee, and the same fixed point as the dense matrix."""
    M = sparse.diags_array([1.0, -1.0], offsets=[0, 1], shape=(9, 10)).tocsr()
    H, reference = from_scipy(M), Matrix(torch.from_numpy(M.toarray()))
    y = H.forward(torch.linspace(0, 1, 10, dtype=torch.float64)[None] ** 2)
    one = pnp.fbs(y, H, nn.ReLU(), contraction=0.9, tol=1e-13)
    other = pnp.fbs(y, reference, nn.ReLU(), contraction=0.9, tol=1e-13, step=one.certificate.setting.step)
    assert one.certificate.guaranteed
    torch.testing.assert_close(one.value, other.value)


@pytest.mark.parametrize("seed", range(5))
def test_the_bound_of_a_matrix_is_above_its_norm(seed: int, monkeypatch: pytest.MonkeyPatch):
    """Always above; equal for entries of one sign, also sparse and with empty columns."""
    monkeypatch.setattr("lipspline.adapters.scipy.MOST_DENSE", 1)
    M = numbers(7, 9, seed=seed) * (numbers(7, 9, seed=seed + 10) > 0)
    M[:, 3] = 0
    assert matrix_norm_bound(M) >= np.linalg.norm(M, 2)
    assert matrix_norm_bound(M + 1j * M) >= np.linalg.norm(M + 1j * M, 2)
    positive = np.abs(M)
    assert matrix_norm_bound(sparse.csr_array(positive)) == pytest.approx(np.linalg.norm(positive, 2), rel=1e-3)
    assert matrix_norm_bound(positive) >= np.linalg.norm(positive, 2)


@pytest.mark.parametrize("shape", [(40, 60), (60, 40)])
@pytest.mark.parametrize("kind", [np.asarray, sparse.csr_array])
def test_the_bound_of_a_matrix_that_fits_in_memory_is_its_norm(shape, kind):
    """Entries of both signs: by their absolute values the bound would be several times the norm."""
    M = numbers(*shape)
    for matrix in (M, M + 1j * numbers(*shape, seed=1), (10 * M).astype(int)):
        norm = np.linalg.norm(matrix, 2)
        assert norm <= matrix_norm_bound(kind(matrix)) <= norm * (1 + 1e-10)


def test_a_bound_far_above_the_norm_is_said(monkeypatch: pytest.MonkeyPatch):
    """Beyond that size signs are not seen, and the steps become too short."""
    monkeypatch.setattr("lipspline.adapters.scipy.MOST_DENSE", 10)
    M = numbers(60, 60)
    with pytest.warns(UserWarning, match=r"times too short.*norm='dense'"):
        H = from_scipy(M)
    assert H.norm_bounds()[1] >= np.linalg.norm(M, 2)


def test_two_blocks_of_different_strength_keep_their_bound(monkeypatch: pytest.MonkeyPatch):
    """A component that dies out in the iteration must not spoil the quotient."""
    monkeypatch.setattr("lipspline.adapters.scipy.MOST_DENSE", 1)
    blocks = np.zeros((4, 4))
    blocks[:2, :2], blocks[2:, 2:] = 1.0, 1e-3
    assert matrix_norm_bound(blocks) == pytest.approx(2.0, rel=1e-12)


def test_a_missing_scipy_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch):
    """Errors say what to install."""
    monkeypatch.setitem(__import__("sys").modules, "scipy.sparse.linalg", None)
    with pytest.raises(ImportError, match=r"lipspline\[scipy\]"):
        to_scipy(Identity((2,)))

"""Orthonormal matrices and bounds on singular values, against closed forms, SVDs and exact rational arithmetic."""

from fractions import Fraction

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch.func import grad, vmap

from lipspline.functional import matrices as module
from lipspline.functional.matrices import (
    METHODS,
    bjorck,
    cayley,
    cayley_inverse,
    orthonormalize,
    polar,
    polar_factor,
    power_iteration,
    qr_orthonormal,
    spectral_norm_upper,
    spectral_norms_upper,
)

methods = pytest.mark.parametrize("method", METHODS)
SHAPES = [(1, 1), (5, 5), (7, 4), (4, 7), (6, 1), (3, 4, 4), (2, 3, 5, 2)]


def defect(q: Tensor) -> float:
    small = q if q.shape[-2] < q.shape[-1] else q.mT
    return float((small @ small.mT - torch.eye(small.shape[-2], dtype=q.dtype)).abs().max())


def with_singular_values(values: Tensor, m: int) -> Tensor:
    n = len(values)
    u, v = (torch.linalg.qr(torch.randn(k, n, dtype=torch.float64))[0] for k in (m, n))
    return (u * values.double()) @ v.mT


@methods
@pytest.mark.parametrize("shape", SHAPES)
def test_every_method_gives_orthonormal_columns_or_rows(method, shape):
    """[lip_linear_layers]"""
    assert defect(orthonormalize(torch.randn(shape), method)) < 2e-6
    assert defect(orthonormalize(torch.randn(shape, dtype=torch.float64), method)) < 1e-13


@pytest.mark.parametrize("method", ["qr", "polar", "bjorck"])
def test_orthonormal_matrices_are_their_own_image(method):
    q = torch.linalg.qr(torch.randn(6, 4, dtype=torch.float64))[0]
    torch.testing.assert_close(orthonormalize(q, method), q)
    torch.testing.assert_close(orthonormalize(3.0 * q, method), q)


@pytest.mark.parametrize("method", ["qr", "polar", "bjorck"])
def test_an_ill_conditioned_matrix_is_orthonormalized_to_round_off(method):
    """A fixed count of 15 Björck steps leaves singular values near 0.1 here."""
    w = with_singular_values(torch.logspace(0, -6, 30), 40).float()
    assert defect(orthonormalize(w, method)) < 1e-5


def test_a_batch_of_hundreds_is_orthonormal():
    w = torch.randn(300, 10, 10)
    for method in METHODS:
        assert defect(orthonormalize(w, method)) < 1e-5


def test_qr_has_positive_diagonal_and_the_same_nested_column_spaces():
    w = torch.randn(20, 6, 4, dtype=torch.float64)
    q = qr_orthonormal(w)
    r = q.mT @ w
    torch.testing.assert_close(r, r.triu())
    assert (r.diagonal(dim1=-2, dim2=-1) > 0).all()
    torch.testing.assert_close(q @ r, w)


def test_qr_is_continuous_where_lapack_changes_the_sign_of_a_column():
    after = torch.tensor([[1e-9, 1.0], [1.0, 0.0]], dtype=torch.float64)
    before = torch.tensor([[-1e-9, 1.0], [1.0, 0.0]], dtype=torch.float64)
    torch.testing.assert_close(qr_orthonormal(before), qr_orthonormal(after), atol=1e-8, rtol=0)


@pytest.mark.parametrize("shape", [(5, 5), (7, 4), (4, 7)])
@pytest.mark.parametrize("function", [polar, bjorck])
def test_polar_and_bjorck_give_the_orthogonal_factor_of_the_svd(function, shape):
    w = torch.randn(shape, dtype=torch.float64)
    u, _, vh = torch.linalg.svd(w, full_matrices=False)
    torch.testing.assert_close(function(w), u @ vh)


def test_cayley_is_the_quotient_of_the_skew_part():
    w = torch.randn(5, 5, dtype=torch.float64)
    eye, a = torch.eye(5, dtype=torch.float64), w - w.mT
    torch.testing.assert_close(cayley(w), torch.linalg.inv(eye + a) @ (eye - a))


def test_cayley_of_a_tall_matrix_has_the_quotient_on_top():
    w = torch.randn(7, 4, dtype=torch.float64)
    upper, lower = w[:4], w[4:]
    eye = torch.eye(4, dtype=torch.float64)
    a = upper - upper.mT + lower.mT @ lower
    quotient = torch.linalg.inv(eye + a)
    torch.testing.assert_close(cayley(w), torch.cat([quotient @ (eye - a), -2 * lower @ quotient]))


@pytest.mark.parametrize(
    "q",
    [
        -torch.eye(4),
        torch.diag(torch.tensor([1.0, -1.0, -1.0])),
        torch.eye(4)[[1, 0, 3, 2]],
        torch.linalg.qr(torch.randn(9, 9))[0],
        torch.linalg.qr(torch.randn(9, 3))[0],
        torch.linalg.qr(torch.randn(9, 3))[0].mT,
        torch.linalg.qr(torch.randn(5, 6, 6))[0],
    ],
    ids=["minus identity", "reflection", "permutation", "square", "tall", "wide", "batch"],
)
def test_cayley_with_signs_reaches_every_orthonormal_matrix(q):
    w, signs = cayley_inverse(q.double())
    torch.testing.assert_close(signs * cayley(w), q.double(), atol=1e-6, rtol=0)
    assert (signs.abs() == 1).all()


@methods
@pytest.mark.parametrize("shape", [(4, 4), (5, 3), (3, 5), (2, 3, 3)])
def test_gradients_of_first_and_second_order(method, shape):
    w = torch.randn(shape, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(METHODS[method], w)
    assert torch.autograd.gradgradcheck(METHODS[method], w)


@pytest.mark.parametrize("method", ["polar", "bjorck"])
def test_second_derivatives_exist_at_orthonormal_matrices_whose_singular_values_coincide(method):
    q = torch.linalg.qr(torch.randn(4, 4, dtype=torch.float64))[0].requires_grad_()
    assert torch.autograd.gradgradcheck(METHODS[method], q)


@methods
def test_vmap_of_grad_equals_a_loop(method):
    w, c = torch.randn(4, 5, 3, dtype=torch.float64), torch.randn(5, 3, dtype=torch.float64)

    def loss(w):
        return (orthonormalize(w, method) * c).sum()

    torch.testing.assert_close(vmap(grad(loss))(w), torch.stack([grad(loss)(x) for x in w]))


@methods
def test_compile_without_graph_break(method):
    torch._dynamo.reset()
    w = torch.randn(4, 3, requires_grad=True)
    compiled = torch.compile(METHODS[method], fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(w), METHODS[method](w))


@methods
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_keeps_its_dtype(method, dtype):
    q = orthonormalize(torch.randn(6, 4).to(dtype), method)
    assert q.dtype == dtype
    assert defect(q.float()) < 2e-2


@pytest.mark.parametrize("method", ["polar", "bjorck"])
@pytest.mark.parametrize("w", [torch.zeros(3, 3), torch.full((2, 2), float("nan")), torch.ones(3, 2)])
def test_an_iteration_that_cannot_converge_says_so(method, w):
    with pytest.raises(ValueError, match=r"could not be orthonormalized in 100 steps.*full rank.*method='qr'"):
        orthonormalize(w, method)


def test_an_unknown_method_is_named_with_the_known_ones():
    with pytest.raises(ValueError, match="method must be one of 'qr', 'cayley', 'polar', 'bjorck', but is 'svd'"):
        orthonormalize(torch.eye(2), "svd")  # type: ignore[arg-type]


def test_power_iteration_converges_to_the_largest_singular_value_from_below():
    """[lip_linear_layers]"""
    a = with_singular_values(torch.tensor([3.0, 2.0, 1.0]), 5)
    v = torch.nn.functional.normalize(torch.randn(3, dtype=torch.float64), dim=0)
    estimates = []
    for _ in range(30):
        v = power_iteration(lambda v: a @ v, lambda u: a.mT @ u, v)
        estimates.append(float((a @ v).norm()))
    assert estimates == sorted(estimates) or max(estimates) - min(estimates[10:]) < 1e-6
    assert estimates[-1] == pytest.approx(3.0, rel=1e-9)
    assert max(estimates) <= 3.0 + 1e-12


def is_positive_semidefinite(matrix: list[list[Fraction]]) -> bool:
    """Exact elimination in rational numbers."""
    n = len(matrix)
    for i in range(n):
        if matrix[i][i] < 0 or (matrix[i][i] == 0 and any(matrix[i][j] != 0 for j in range(i, n))):
            return False
        for j in range(i + 1, n):
            factor = matrix[j][i] / matrix[i][i] if matrix[i][i] else Fraction(0)
            matrix[j] = [x - factor * y for x, y in zip(matrix[j], matrix[i], strict=True)]
    return True


def bounds_exactly(upper: float, w: Tensor) -> bool:
    """Whether upper² I - WᵀW is positive semidefinite, without any rounding."""
    rows = [[Fraction(x) for x in row] for row in w.double().tolist()]
    n = len(rows[0])
    gram = [[sum(row[i] * row[j] for row in rows) for j in range(n)] for i in range(n)]
    square = Fraction(upper) ** 2
    return is_positive_semidefinite([[square * (i == j) - gram[i][j] for j in range(n)] for i in range(n)])


@given(
    st.integers(1, 4),
    st.integers(1, 4),
    st.integers(0, 10_000),
    st.sampled_from([torch.float32, torch.float64]),
    st.integers(-60, 60),
)
def test_the_upper_bound_is_a_proof_in_exact_arithmetic_and_tight(m, n, seed, dtype, exponent):
    """[lip_linear_layers]"""
    generator = torch.Generator().manual_seed(seed)
    w = torch.ldexp(torch.randn(m, n, generator=generator, dtype=dtype), torch.tensor(exponent))
    upper = spectral_norm_upper(w)
    assert bounds_exactly(upper, w)
    assert not bounds_exactly(upper * (1 - 1e-9), w)


@pytest.mark.parametrize(
    "w",
    [
        torch.linalg.qr(torch.randn(80, 80))[0],
        torch.randn(60, 90),
        torch.outer(torch.randn(30), torch.randn(20)),
        torch.diag(torch.tensor([1.0] * 20 + [0.0] * 3)),
        with_singular_values(torch.linspace(1, 0.999999, 50), 70),
        torch.randn(5, 5, dtype=torch.float64) * 1e-200,
        torch.randn(5, 5, dtype=torch.float64) * 1e200,
    ],
    ids=["orthogonal", "wide", "rank one", "projection", "clustered", "tiny", "huge"],
)
def test_the_upper_bound_is_within_a_billionth_of_the_largest_singular_value(w):
    true = float(torch.linalg.svdvals(w.double())[0])
    assert true * (1 - 1e-13) <= spectral_norm_upper(w) <= true * (1 + 1e-9)


@pytest.mark.parametrize(("k", "norm"), [(1, 2.0), (2, 4.0), (3, 8.0)])
def test_the_upper_bound_is_never_below_an_exactly_known_norm(k, norm):
    """A Hadamard matrix of size 4^k has all singular values 2^k, exactly."""
    h = torch.ones(1, 1)
    for _ in range(2 * k):
        h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    assert norm <= spectral_norm_upper(h) <= norm * (1 + 1e-12)


def test_the_upper_bound_of_zero_is_practically_zero():
    assert 0 <= spectral_norm_upper(torch.zeros(3, 4)) < 1e-200


def test_bounds_of_a_batch_are_those_of_its_members_also_under_vmap():
    w = torch.randn(3, 2, 4, 5)
    expected = torch.tensor([[spectral_norm_upper(x) for x in row] for row in w], dtype=torch.float64)
    torch.testing.assert_close(spectral_norms_upper(w), expected, rtol=0, atol=0)
    torch.testing.assert_close(vmap(spectral_norms_upper, in_dims=1)(w), expected.mT, rtol=0, atol=0)
    torch.library.opcheck(spectral_norms_upper, (w,))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_a_weight_that_is_not_finite_has_no_bound(bad):
    with pytest.raises(ValueError, match=r"The weight to bound has 1 NaN or infinite value\(s\) of 4"):
        spectral_norm_upper(torch.tensor([[1.0, bad], [0.0, 1.0]]))


@pytest.mark.parametrize("scaled", [True, False])
def test_the_factor_leaves_a_symmetric_positive_rest(scaled):
    """[lip_linear_layers]"""
    w = torch.randn(3, 6, 4, dtype=torch.float64)
    h = polar_factor(w, scaled=scaled).mT @ w
    torch.testing.assert_close(h, h.mT)
    assert (torch.linalg.eigvalsh(h) > 0).all()


def test_scaled_steps_need_fewer_of_them(monkeypatch):
    w = torch.diag(torch.logspace(0, -3, 6, dtype=torch.float64))
    monkeypatch.setattr(module, "MOST_STEPS", 14)
    torch.testing.assert_close(polar_factor(w, scaled=True), torch.eye(6, dtype=torch.float64))
    with pytest.raises(ValueError, match="in 14 steps"):
        polar_factor(w, scaled=False)


def test_the_lyapunov_equation_is_solved():
    h = torch.randn(5, 5, dtype=torch.float64)
    h, b = h @ h.mT + torch.eye(5, dtype=torch.float64), torch.randn(5, 5, dtype=torch.float64)
    y = module._Lyapunov.apply(h, b)
    torch.testing.assert_close(h @ y + y @ h, b)


def test_the_operators_obey_the_rules_of_torch():
    w = torch.randn(2, 5, 3)
    torch.library.opcheck(module._newton_schulz, (w, True))
    torch.library.opcheck(module._newton_schulz, (w.mT.contiguous().mT, False))
    torch.library.opcheck(module._solve_lyapunov, (w.mT @ w, torch.randn(2, 3, 3)))


def test_vmap_batches_the_iteration_and_its_derivative():
    w, g = torch.randn(3, 5, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64)

    def pulled_back(w):
        return torch.func.vjp(lambda w: polar_factor(w, scaled=True), w)[1](g)[0]

    torch.testing.assert_close(torch.func.vmap(pulled_back)(w), torch.stack([pulled_back(x) for x in w]))

"""The proximal map of the total variation against a convex solver, its optimality conditions, and exact merging."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lipspline import kernels
from lipspline.kernels import native
from lipspline.kernels.total_variation import prox_total_variation

needs_c = pytest.mark.skipif(native.library is None, reason="the C kernels are not built")


def rows(n: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(seed)
    y = torch.randn(4, n, generator=stream, dtype=torch.float64)
    return y, 0.01 + torch.rand(4, n, generator=stream, dtype=torch.float64)


def by_dual(y: np.ndarray, d: np.ndarray, w: float) -> np.ndarray:
    """`u = y - Dᵀz / d` with the z in [-w, w] that solves the dual problem, a bounded least-squares problem."""
    optimize = pytest.importorskip("scipy.optimize")
    D = np.diff(np.eye(len(y)), axis=0)
    z = optimize.lsq_linear((D / np.sqrt(d)).T, np.sqrt(d) * y, bounds=(-w, w), method="bvls", tol=1e-15).x
    return y - D.T @ z / d


@pytest.mark.parametrize("w", [1e-3, 0.05, 0.4, 3.0])
@pytest.mark.parametrize("n", [2, 3, 7, 30])
def test_it_is_what_a_convex_solver_finds(n, w):
    y, d = rows(n)
    for ours, theirs, precision in zip(prox_total_variation(y, w, d), y, d, strict=True):
        np.testing.assert_allclose(ours, by_dual(theirs.numpy(), precision.numpy(), w), atol=1e-9)


@given(
    st.integers(1, 12).flatmap(
        lambda n: st.tuples(
            st.lists(st.floats(-5, 5), min_size=n, max_size=n),
            st.lists(st.floats(1e-3, 10), min_size=n, max_size=n),
            st.floats(1e-6, 5),
        )
    )
)
def test_it_satisfies_the_optimality_conditions(case):
    """`d (y - u) = Dᵀz`: z is w times the sign of a jump of u, and between -w and w where u does not jump."""
    y, d, w = torch.tensor(case[0]).double(), torch.tensor(case[1]).double(), case[2]
    u = prox_total_variation(y, w, d)
    z = -(d * (y - u)).cumsum(0)
    scale = float((d * y.abs()).sum()) + w
    assert abs(float(z[-1])) <= 1e-12 * scale
    jumps = u.diff()
    assert (z[:-1].abs() <= w + 1e-12 * scale).all()
    assert ((z[:-1] - w * jumps.sign()).abs()[jumps != 0] <= 1e-9 * scale).all()


def test_numbers_that_merge_are_equal_to_the_last_bit():
    y = torch.tensor([0.1, 0.4, 0.1, 0.9, 0.6, 0.9])
    u = prox_total_variation(y, 0.2)
    assert u.unique().tolist() == pytest.approx([0.2 + 0.2 / 3, 0.8 - 0.2 / 3])
    assert (u[:3] == u[0]).all()
    assert len(prox_total_variation(y, 10.0).unique()) == 1
    torch.testing.assert_close(prox_total_variation(y, 10.0), y.mean().expand(6))


def test_a_number_without_weight_joins_its_neighbours():
    y, d = torch.tensor([0.5, -3.0, 0.5, 0.8]), torch.tensor([1.0, 1e-9, 1.0, 1.0])
    u = prox_total_variation(y, 1e-3, d)
    assert u[0] == u[1] == u[2] != u[3]


def test_without_weight_it_is_the_identity_and_of_one_number_too():
    y = torch.randn(3, 5)
    assert torch.equal(prox_total_variation(y, 0.0), y)
    assert torch.equal(prox_total_variation(y[:, :1], 2.0), y[:, :1])
    assert prox_total_variation(torch.empty(0, 5), 1.0).shape == (0, 5)


def test_every_row_may_have_its_own_weight_and_dimensions_in_front_are_rows():
    y = torch.randn(2, 3, 6)
    w = torch.rand(2, 3)
    together = prox_total_variation(y, w)
    for index in np.ndindex(2, 3):
        assert torch.equal(together[index], prox_total_variation(y[index], float(w[index])))


def test_clipping_afterwards_is_the_proximal_map_with_the_interval():
    """The optimality conditions of both terms together, at the clipped point."""
    y, d = 1.5 * rows(20)[0], rows(20)[1]
    u = prox_total_variation(y, 0.1, d)
    clipped = u.clamp(-1, 1)
    outside = d * (u - clipped)  # must point out of the interval where the point is on its border
    z = -(d * (y - clipped) - outside).cumsum(-1)[..., :-1]
    jumps = clipped.diff(dim=-1)
    assert (z.abs() <= 0.1 + 1e-12).all()
    assert ((z - 0.1 * jumps.sign()).abs()[jumps != 0] <= 1e-9).all()
    assert (outside[clipped.abs() < 1] == 0).all()
    assert (outside * clipped >= 0).all()


@needs_c
@pytest.mark.parametrize("n", [1, 2, 5, 50, 200])
@pytest.mark.parametrize("w", [0.0, 1e-14, 0.02, 5.0])
def test_c_and_python_agree_to_the_last_bit(n, w):
    y, d = rows(n, seed=n)
    with kernels.using("c"):
        ours = prox_total_variation(y, w, d)
    with kernels.using("eager"):
        assert torch.equal(prox_total_variation(y, w, d), ours)


@pytest.mark.parametrize(
    ("weight", "precision", "sentence"),
    [
        (-1.0, None, "weight must not be negative"),
        (float("nan"), None, "weight must not be negative"),
        (1.0, torch.zeros(3), "precision must be positive everywhere"),
        (1.0, torch.ones(2), r"precision must have the shape of y, \(3,\), but has \(2,\)"),
    ],
)
def test_nonsense_is_refused(weight, precision, sentence):
    with pytest.raises(ValueError, match=sentence):
        prox_total_variation(torch.zeros(3), weight, precision)

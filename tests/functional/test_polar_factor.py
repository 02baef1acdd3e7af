"""The iteration behind `polar` and `bjorck`, and the equation of its derivative."""

import pytest
import torch

from lipspline.functional import polar_factor as module
from lipspline.functional.polar_factor import polar_factor


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

"""How far a claimed adjoint is from the adjoint, without knowing the adjoint."""

import torch

from lipspline.operators.base import LinearOperator
from lipspline.pnp.guarantee import measure_pairing
from lipspline.pnp.norms import inner, norms

PROBES = 4


def adjoint_error(H: LinearOperator) -> float:
    r"""An estimate of `‖G - Hᵀ‖ / ‖Hᵀ‖` for the map G that an operator offers as its adjoint, in float64.

    For fixed `y` and standard normal `x` the defect `⟨Hx, y⟩ - ⟨x, Gy⟩ = ⟨x, (Hᵀ - G) y⟩` has variance
    `‖(Hᵀ - G) y‖²`, whatever the dimension: its root mean square over a few pairs, against `‖Hx‖` and `‖Gy‖`, is the
    relative error of the adjoint (in the Frobenius norm) and that of the operator, if the adjoint is the one to trust.
    White noise hardly sees an error in few directions, so `‖Hx‖² = ⟨x, GHx⟩` is tried on noise and on a bright flat
    image too. An operator that is not linear has no adjoint and fails as well.

    Example:
        >>> from lipspline.operators import Matrix
        >>> adjoint_error(Matrix(torch.eye(5))) < 1e-12
        True
    """
    defects, sizes = [], []
    for seed in range(PROBES):
        x, y = H.domain.sample(2 * seed), H.codomain.sample(2 * seed + 1)
        hx, gy = H.forward(x), H.adjoint(y)
        defects.append(inner(hx, y) - inner(x, gy))
        sizes.append(torch.minimum(norms(hx), norms(gy)))
    white = _root_mean_square(defects) / _root_mean_square(sizes)
    return max(white, measure_pairing(H, H.domain.sample()).error, _flat_error(H))


def _root_mean_square(values: list[torch.Tensor]) -> float:
    return float(torch.stack(values).square().mean().sqrt())


def _flat_error(H: LinearOperator) -> float:
    """`|‖Hx‖² - ⟨x, GHx⟩| / ‖Hx‖²` for an image of ones; 0 if such an image is not seen at all."""
    x = torch.ones_like(H.domain.sample())
    hx = H.forward(x)
    energy, back = inner(hx, hx), inner(x, H.adjoint(hx))
    if not energy > torch.finfo(torch.float64).eps * inner(x, x):
        return 0.0
    return float((energy - back).abs() / energy)

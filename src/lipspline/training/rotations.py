"""Turning orthonormal matrices by equal angles.

Adam moves every entry of a raw matrix by about the learning rate, which turns a few directions of an orthonormal weight
far and the others hardly at all. Here a matrix follows the polar factor of its averaged gradient, whose singular values
are all 1 (the idea of the optimizer Muon): every direction that the gradient asks for turns by about the learning rate,
an angle in radians, and none by more. Then the matrix is made orthonormal again.
"""

from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipspline.functional.matrices import Method, orthonormalize
from lipspline.nn.convolutions import OrthogonalConvolution
from lipspline.nn.matrices import Orthonormal

MOMENTUM = 0.9
"""Decay of the averaged gradient."""
SPREADING = (3.4445, -4.7750, 2.0315)
"""Coefficients of x, x³ and x⁵ (Jordan et al., Muon, 2024) that bring small singular values up fast, to 0.7 ... 1.2."""
SETTLING = (1.875, -1.25, 0.375)
"""Those whose fixed point 1 attracts with order three."""


class Rotating(torch.optim.Adam):
    """Adam, except that matrices in groups with `rotates=True` are turned by about their learning rate, an angle.

    These matrices (..., m, n) must have orthonormal columns, or rows if they are wide, and keep them. Raw matrices of
    orthogonal layers have them when a layer is made.

    Example:
        >>> from lipspline.nn import linear
        >>> from lipspline.training import param_groups
        >>> layer = linear(8, 8)
        >>> optimizer = Rotating(param_groups(layer, lr=1e-2, rotations=0.02))
        >>> [(group["lr"], len(group["params"])) for group in optimizer.param_groups]
        [(0.01, 1), (0.02, 1)]
    """

    @torch.no_grad()
    def step(self, closure=None):
        """Turn what is to be turned, and move the rest as Adam does."""
        for group in self.param_groups:
            if group.get("rotates", False):
                for matrix in group["params"]:
                    self._turn(matrix, group["lr"])
        return super().step(closure)

    def _turn(self, matrix: Tensor, angle: float) -> None:
        gradient, matrix.grad = matrix.grad, None  # which Adam then leaves alone
        if gradient is None:
            return
        state = self.state[matrix]
        if not state:
            state |= {"mean": torch.zeros_like(matrix), "step": torch.zeros(())}  # Adam wants to find a step
        mean = state["mean"].lerp_(gradient, 1 - MOMENTUM)
        matrix.sub_(angle * nearly_polar(gradient.lerp(mean, MOMENTUM)))
        matrix.copy_(orthonormalize(matrix))


def nearly_polar(matrix: Tensor) -> Tensor:
    """A matrix of any rank with its larger singular values brought near 1; those of zero stay, and a zero matrix does.

    Example:
        >>> nearly_polar(torch.diag(torch.tensor([4.0, 1.0, 0.0]))).diagonal().round(decimals=1)
        tensor([1., 1., 0.])
    """
    wide = matrix.shape[-2] < matrix.shape[-1]
    x = matrix.mT if wide else matrix
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    for a, b, c in (SPREADING, SPREADING, SPREADING, SPREADING, SETTLING):
        gram = x.mT @ x
        x = a * x + x @ (b * gram + c * gram @ gram)
    return x.mT if wide else x


def orthonormal_parameters(model: nn.Module) -> Iterator[tuple[nn.Parameter, Method]]:
    """Every raw matrix whose orthonormalization is (a factor of) a weight, and the method of that.

    Example:
        >>> from lipspline.nn import conv2d
        >>> [tuple(raw.shape) for raw, _ in orthonormal_parameters(conv2d(4, 4, 3))]
        [(4, 4), (2, 2, 4, 2)]
    """
    for module in model.modules():
        if isinstance(module, parametrize.ParametrizationList):
            (constraint, *_) = module
            method = _method(constraint)
            if method is None or method == "cayley":
                continue
            for raw in module.parameters(recurse=False):
                yield raw, method


@torch.no_grad()
def orthonormalize_(model: nn.Module) -> None:
    """Make the raw matrices of a model orthonormal; its weights stay the same, up to rounding."""
    for raw, method in orthonormal_parameters(model):
        raw.copy_(orthonormalize(raw, method))


def _method(constraint: nn.Module) -> Method | None:
    if isinstance(constraint, OrthogonalConvolution):
        return constraint.matrix.method
    return constraint.method if isinstance(constraint, Orthonormal) else None

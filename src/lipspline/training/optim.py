"""Adam with the paper's three learning rates, and two of our own (of slopes and of rotations).

Adam moves every entry of a raw matrix by about the learning rate, which turns a few directions of an orthonormal weight
far and the others hardly at all. `Rotating` lets a matrix follow the polar factor of its averaged gradient, whose
singular values are all 1 (the idea of the optimizer Muon): every direction that the gradient asks for turns by about
the learning rate, an angle in radians, and none by more. Then the matrix is made orthonormal again.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from lipspline._infra import checks
from lipspline.functional.matrices import Method, orthonormalize
from lipspline.nn import LinearSpline
from lipspline.nn.convolutions import OrthogonalConvolution
from lipspline.nn.matrices import Orthonormal
from lipspline.training.slopes import clip_slopes, prox_tv2, slope_parameters

SCALES, COEFFICIENTS = 4, 40
"""What the learning rate of the weights is divided by, in the paper."""
SLOPES = 0.1
"""The learning rate of slopes, where they are learned."""


def param_groups(
    model: nn.Module,
    lr: float,
    *,
    scales: float = SCALES,
    coefficients: float = COEFFICIENTS,
    slopes: float = SLOPES,
    rotations: float | None = None,
) -> list[dict[str, Any]]:
    """Parameter groups with the paper's learning rates: η for weights, η/4 for spline scales α, η/40 for splines
    [sec:EvalExp].

    Every parameter that is learned belongs to one group, in the order of registration. Groups without parameters
    are left out.

    Args:
        model: the network.
        lr: η.
        scales: what η is divided by for scales.
        coefficients: what it is divided by for coefficients. The paper's 40 goes with its small η: a step of Adam moves
            a slope by up to 2η/40T, where T is the distance of the knots, which should stay far below 1.
        slopes: the learning rate of the slopes that `learn_slopes` made parameters, itself: the paper has none.
        rotations: the angle, in radians, by which orthonormal matrices turn in a step; without it they are weights like
            others. For the optimizer `Rotating`; Adam would take the angle for a learning rate.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 3), LinearSpline(3), nn.Linear(3, 1))
        >>> [(group["lr"], len(group["params"])) for group in param_groups(model, lr=0.4)]
        [(0.4, 4), (0.1, 1), (0.01, 1)]
    """
    checks.module("param_groups", model)
    checks.positive("lr", lr)
    rates = {
        "weights": lr,
        "scales": lr / checks.positive("scales", scales),
        "coefficients": lr / checks.positive("coefficients", coefficients),
        "slopes": checks.positive("slopes", slopes),
    }
    kinds = _spline_parameters(model)
    if rotations is not None:
        rates["rotations"] = checks.positive("rotations", rotations)
        kinds |= {raw: "rotations" for raw, _ in orthonormal_parameters(model)}
    groups = []
    for kind, rate in rates.items():
        params = [p for p in model.parameters() if p.requires_grad and kinds.get(p, "weights") == kind]
        if params:
            groups.append({"params": params, "lr": rate} | ({"rotates": True} if kind == "rotations" else {}))
    return groups


def _spline_parameters(model: nn.Module) -> dict[Tensor, str]:
    kinds: dict[Tensor, str] = {}
    for module in model.modules():
        if isinstance(module, LinearSpline):
            kinds |= {module.log_scale: "scales", module.coefficients: "coefficients"}
    for _, mean, slopes in slope_parameters(model):
        kinds |= {mean: "coefficients", slopes: "slopes"}
    return kinds


@dataclass(frozen=True)
class Player:
    """A module that is trained, and how: Adam with its default settings unless said otherwise [sec:EvalExp].

    Args:
        coefficients: what `lr` is divided by for the coefficients of splines.
        slopes: the learning rate of slopes that `learn_slopes` made parameters; they are clipped after each step.
        rowwise: the slopes of a spline share their second moment, see `RowAdam`.
        rotations: the angle by which orthonormal matrices turn in a step; without it Adam moves them too.
        tv2_prox: λ of [eq:optim_network], if TV² is minimised by its proximal step after each step of Adam, which needs
            splines that learn slopes; then slopes merge exactly. 0 if it is part of the loss, or not there.
    """

    module: nn.Module
    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    coefficients: float = COEFFICIENTS
    slopes: float = SLOPES
    rowwise: bool = False
    rotations: float | None = None
    tv2_prox: float = 0.0

    def optimizer(self) -> torch.optim.Adam:
        """Adam over the groups of `param_groups`, with rotations if wanted; each has its own rate as `initial_lr`."""
        groups = [group | {"initial_lr": group["lr"]} for group in self.groups()]
        if self.rotations is not None:
            orthonormalize_(self.module)
        kind = Rotating if self.rotations is not None else RowAdam if self.rowwise else torch.optim.Adam
        optimizer = kind(groups, lr=self.lr, betas=self.betas, fused=True)
        if any(slope_parameters(self.module)):
            optimizer.register_step_post_hook(lambda *_: self._constrain(optimizer))
        elif self.tv2_prox:
            raise ValueError("tv2_prox needs splines that learn slopes, but there are none: call learn_slopes first.")
        return optimizer

    def averaged(self) -> list[Tensor]:
        """The parameters of which a moving average makes sense: an average of slopes that merged is not merged."""
        kept = {slopes for _, _, slopes in slope_parameters(self.module)} if self.tv2_prox else set()
        return [p for p in self.module.parameters() if p.requires_grad and p not in kept]

    def _constrain(self, optimizer: torch.optim.Adam) -> None:
        """What follows a step: slopes merge, and stay in their interval."""
        if self.tv2_prox:
            prox_tv2(self.module, optimizer, self.tv2_prox)
        clip_slopes(self.module)

    def groups(self) -> list[dict[str, Any]]:
        """The parameters with their learning rates."""
        rates = {"coefficients": self.coefficients, "slopes": self.slopes, "rotations": self.rotations}
        slopes = {slopes for _, _, slopes in slope_parameters(self.module)}
        return [
            group | ({"rowwise": True} if self.rowwise and slopes.issuperset(group["params"]) else {})
            for group in param_groups(self.module, self.lr, **rates)
        ]


def set_rate(optimizer: torch.optim.Optimizer, factor: float) -> None:
    """Set the learning rate of every group to `factor` times the rate it started with."""
    for group in optimizer.param_groups:
        group["lr"] = factor * group["initial_lr"]


MOMENTUM = 0.9
"""Decay of the averaged gradient."""
SPREADING = ((7.8039, -22.4795, 16.5394), (3.3075, -2.4803, 0.5091), (2.0887, -1.5137, 0.3810))
"""Coefficients of x, x³ and x⁵, one step after the other.

Each is the best approximation of 1 (Amsel et al., The Polar Express, 2025) on what the one before makes of [0.0175, 1]:
together they map this interval to [0.8, 1.024]. The last is made smaller by 0.3 percent, to stay below that.
"""


LEAST = 1e-4
r"""Less than :math:`\|X^T X X^T X\|_F^{1/4}` of any X of Frobenius norm 1, and more than rounding adds to that."""
WELL_CONDITIONED = 0.7
"""Pivots above this are those of a matrix whose condition number may be squared: a turn by 0.3 does not reach it."""


class RowAdam(torch.optim.Adam):
    r"""Adam, except that the entries of a row share their second moment in groups with `rowwise=True`.

    .. math:: s \leftarrow s - \eta\, \hat m / (\sqrt{\hat v} + \varepsilon), \qquad
              v \leftarrow \beta_2 v + (1 - \beta_2)\, \mathrm{mean}_i(g_i^2)

    For the slopes of splines. Adam moves every entry by about its learning rate, also a slope that few inputs reach and
    whose gradient is nearly all noise: it walks at random, away from the border of its interval. With one moment a
    spline, such a slope hardly moves.

    Example:
        >>> slopes = nn.Parameter(torch.ones(1, 2))
        >>> optimizer = RowAdam([{"params": [slopes], "rowwise": True}], lr=0.1)
        >>> slopes.grad = torch.tensor([[1.0, 1e-3]])
        >>> optimizer.step()
        >>> [round(float(slope), 4) for slope in slopes.detach()[0]]
        [0.8586, 0.9999]
    """

    @torch.no_grad()
    def step(self, closure=None):
        """Move what shares moments, and the rest as Adam does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moved = [(p, p.grad) for group in self.param_groups if group.get("rowwise", False) for p in self._by_row(group)]
        for parameter, _ in moved:
            parameter.grad = None  # which Adam then leaves alone
        _without_hooks(torch.optim.Adam.step)(self)
        for parameter, gradient in moved:
            parameter.grad = gradient
        return loss

    def _by_row(self, group: dict[str, Any]) -> list[Tensor]:
        """Move the parameters of a group, and say which had a gradient."""
        moved = [parameter for parameter in group["params"] if parameter.grad is not None]
        (first, second), lr, eps = group["betas"], group["lr"], group["eps"]
        for parameter in moved:
            gradient, state = parameter.grad, self.state[parameter]
            assert gradient is not None
            if not state:
                state |= {"step": torch.zeros(()), "exp_avg": torch.zeros_like(parameter)}
                state["exp_avg_sq"] = torch.zeros_like(parameter[..., :1])
            state["step"] += 1
            mean = state["exp_avg"].lerp_(gradient, 1 - first)
            square = state["exp_avg_sq"].lerp_(gradient.square().mean(dim=-1, keepdim=True), 1 - second)
            taken = float(state["step"])
            size = (square / (1 - second**taken)).sqrt() + eps
            parameter.addcdiv_(mean, size.expand_as(mean), value=-lr / (1 - first**taken))
        return moved


class Rotating(RowAdam):
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

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Take a group; matrices that are to be turned must be orthonormal."""
        super().add_param_group(param_group)
        if not self.param_groups[-1].get("rotates", False):
            return
        for matrix in self.param_groups[-1]["params"]:
            if matrix.ndim < 2 or _defect(matrix) > 1e-2:
                raise ValueError(
                    f"A tensor of shape {tuple(matrix.shape)} in a group with rotates=True is no orthonormal matrix. "
                    f"lipspline.optim.rotating(model) makes those of a model orthonormal, and the groups."
                )

    @torch.no_grad()
    def step(self, closure=None):
        """Turn what is to be turned, and move the rest as Adam does."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        turned = []
        for group in self.param_groups:
            if group.get("rotates", False):
                turned += [(matrix, matrix.grad) for matrix in group["params"] if matrix.grad is not None]
                self._turn(group)
        for matrix, _ in turned:
            matrix.grad = None  # which Adam then leaves alone
        _without_hooks(RowAdam.step)(self)
        for matrix, gradient in turned:
            matrix.grad = gradient
        return loss

    def _turn(self, group: dict[str, Any]) -> None:
        """Turn the matrices of a group; those of one shape together, unless `foreach` is False."""
        buckets: dict[Any, list[Tensor]] = {}
        for matrix in group["params"]:
            if matrix.grad is not None:
                alone = id(matrix) if group.get("foreach") is False else None
                buckets.setdefault((matrix.shape, matrix.dtype, matrix.device, alone), []).append(matrix)
        for matrices in buckets.values():
            directions = []
            for matrix in matrices:
                state = self.state[matrix]
                if not state:
                    state |= {"mean": torch.zeros_like(matrix), "step": torch.zeros(())}  # Adam wants to find a step
                gradient = matrix.grad
                assert gradient is not None
                mean = state["mean"].lerp_(gradient, 1 - MOMENTUM)
                directions.append(gradient.lerp(mean, MOMENTUM))
            moved = torch.stack(matrices) - group["lr"] * nearly_polar(torch.stack(directions))
            for matrix, turned in zip(matrices, _orthonormal_again(moved), strict=True):
                matrix.copy_(turned)


def _without_hooks(step: Callable[..., Any]) -> Callable[..., Any]:
    """A step of a class of optimizers without the hooks of an optimizer, which are for its whole step.

    torch wraps the step of a class when the first of its optimizers is made.
    """
    return step.__wrapped__ if getattr(step, "hooked", False) else step  # type: ignore[attr-defined]


def _defect(matrix: Tensor) -> float:
    """How far a matrix is from orthonormal columns, or rows if it is wide, entry by entry."""
    x = matrix.detach().mT if matrix.shape[-2] < matrix.shape[-1] else matrix.detach()
    gram = x.mT @ x
    return float((gram - torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device)).abs().max()) if x.numel() else 0.0


def nearly_polar(matrix: Tensor) -> Tensor:
    r"""A matrix (..., m, n) with its larger singular values brought near 1; those of zero stay, and a zero matrix does.

    Those above 1.75 percent of :math:`\|M^T M M^T M\|_F^{1/4}`, which is hardly more than the largest one, end in
    [0.8, 1.0242]; smaller ones grow 54-fold.

    Example:
        >>> nearly_polar(torch.diag(torch.tensor([4.0, 1.0, 0.0]))).diagonal().round()
        tensor([1., 1., 0.])
    """
    wide = matrix.shape[-2] < matrix.shape[-1]
    x = (matrix.mT if wide else matrix).flatten(0, -3) if matrix.ndim > 2 else (matrix.mT if wide else matrix)[None]
    x = x / x.norm(dim=(-2, -1), keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
    gram = x.mT @ x
    square = gram @ gram
    longest = square.norm(dim=(-2, -1), keepdim=True).pow(0.25).clamp(min=LEAST) * (1 + LEAST)
    x, gram, square = x / longest, gram / longest**2, square / longest**4
    for step, (a, b, c) in enumerate(SPREADING):
        if step:
            gram = x.mT @ x
            square = gram @ gram
        x = torch.baddbmm(x, x, gram.mul_(b).add_(square, alpha=c), beta=a)
    return (x.mT if wide else x).reshape(matrix.shape)


def _orthonormal_again(matrix: Tensor) -> Tensor:
    """The Q of a QR decomposition with a positive diagonal, of a matrix (..., m, n) that was orthonormal before a turn.

    After a small turn the Gram matrix is so near the identity that its Cholesky factor is as good as the decomposition,
    in two thirds of the time; where a pivot says otherwise, the matrix is decomposed.
    """
    wide = matrix.shape[-2] < matrix.shape[-1]
    x = (matrix.mT if wide else matrix).to(torch.promote_types(matrix.dtype, torch.float32))
    factor, failed = torch.linalg.cholesky_ex(x.mT @ x, upper=True)
    if failed.any() or not factor.diagonal(dim1=-2, dim2=-1).amin() > WELL_CONDITIONED:
        return orthonormalize(matrix)
    q = torch.linalg.solve_triangular(factor, x, upper=True, left=False)
    return (q.mT if wide else q).to(matrix.dtype)


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

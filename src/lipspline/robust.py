r"""Classifiers that no small perturbation changes: certified radii and accuracies, and losses that make them large.

If the map from inputs to logits is Lipschitz with constant L, the difference of two logits has the constant
:math:`\sqrt 2\, L`, as it is the map followed by :math:`e_i - e_j`. So no perturbation of Euclidean length below
:math:`(z_1 - z_2) / (\sqrt 2\, L)` changes the class, where :math:`z_1 > z_2` are the two largest logits. If only each
logit by itself is L-Lipschitz (rows of norm 1 in the last layer), the constant of the difference is 2 L.

A network that rounds is no Lipschitz function. If what runs stays within a distance :math:`d` of one, the difference of
two logits is right up to :math:`\sqrt 2\, d` at the input, and again at each other one, so that the radius is
:math:`(z_1 - z_2 - 2 \sqrt 2\, d) / (\sqrt 2\, L)`.
"""

import math
from typing import Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from lipspline._infra import checks

__all__ = [
    "certified_accuracy",
    "certified_radius",
    "hkr_loss",
    "multi_margin_loss",
    "ramp_loss",
    "temperature_cross_entropy",
]

Norm = Literal["joint", "each"]
_DIFFERENCES: dict[str, float] = {"joint": math.sqrt(2), "each": 2.0}


def certified_radius(
    logits: Tensor, lipschitz: float = 1.0, *, bound_of: Norm = "joint", rounding: float = 0.0
) -> Tensor:
    """The Euclidean radius around each input within which a classifier provably keeps its answer.

    Args:
        logits: (B, K), or (B,) or (B, 1) of a binary classifier that decides by the sign.
        lipschitz: a proven constant of the map from inputs to logits: `lipspline.certify(model).upper`.
        bound_of: "joint" if the constant is that of all logits as one vector, which is what `certify` proves; "each" if
            only every single logit has it.
        rounding: how far, in Euclidean length, the logits of what runs may be from those of the Lipschitz function:
            `certify(model, example, input_bound=r).rounding.error`. The radius then holds for what runs, as long as no
            entry of a perturbed input exceeds r.

    Returns:
        (B,), rounded down, in float32 at least; 0 where two classes tie, or rounding may change the class by itself.

    Example:
        >>> certified_radius(torch.tensor([[3.0, 1.0, 0.0]]))  # 2 / sqrt(2)
        tensor([1.4142])
        >>> certified_radius(torch.tensor([[3.0, 1.0, 0.0]]), rounding=0.1)  # 2 / sqrt(2) - 2 * 0.1
        tensor([1.2142])
    """
    checks.positive("lipschitz", lipschitz)
    if not (isinstance(rounding, (int, float)) and 0 <= rounding < math.inf):
        raise ValueError(
            f"rounding must be a length, at least 0, but is {rounding!r}. A certificate has it as `rounding.error`; "
            f"where that is None, `rounding.reason` says why."
        )
    if not isinstance(logits, Tensor) or not logits.ndim:
        raise ValueError(f"logits must be a tensor with a row for each input, but is a {type(logits).__name__}.")
    factor = _DIFFERENCES[checks.one_of("bound_of", bound_of, _DIFFERENCES)]
    checks.finite("logits", logits, "Nothing is certified of such inputs: leave them out.")
    exact = logits.double()
    if _is_binary(logits):
        radius = (exact.reshape(len(logits)).abs() - 2 * rounding) / lipschitz
    else:
        _check_logits(logits)
        largest = exact.topk(2, dim=1).values
        lost = 2 * math.sqrt(2) * rounding * (1 + 1e-15)
        radius = (largest[:, 0] - largest[:, 1] - lost) / (factor * lipschitz)
    return _rounded_down(radius.clamp(min=0), torch.promote_types(logits.dtype, torch.float32))


def certified_accuracy(
    logits: Tensor,
    labels: Tensor,
    epsilon: float,
    lipschitz: float = 1.0,
    *,
    bound_of: Norm = "joint",
    rounding: float = 0.0,
) -> float:
    """The share of inputs that are classified rightly, and provably so after any perturbation of length `epsilon`.

    Args:
        logits: (B, K), or (B,) of a binary classifier.
        labels: (B,) classes; of a binary classifier, positive or not.
        epsilon: Euclidean length; 0 gives the accuracy itself.
        lipschitz: see `certified_radius`.
        bound_of, rounding: see `certified_radius`.

    Example:
        >>> logits = torch.tensor([[3.0, 0.0], [1.0, 0.0], [0.0, 5.0]])
        >>> labels = torch.tensor([0, 0, 0])
        >>> round(certified_accuracy(logits, labels, 0.0), 3), round(certified_accuracy(logits, labels, 1.0), 3)
        (0.667, 0.333)
    """
    if not epsilon >= 0:
        raise ValueError(f"epsilon must be a length, at least 0, but is {epsilon!r}.")
    radius = certified_radius(logits, lipschitz, bound_of=bound_of, rounding=rounding)
    _check_labels(logits, labels)
    if _is_binary(logits):
        right = (logits.reshape(-1) > 0) == (labels.reshape(-1) > 0)
    else:
        low, high, last = int(labels.min()), int(labels.max()), logits.shape[1] - 1
        if low < 0 or high > last:
            raise ValueError(f"labels must be classes from 0 to {last}, but go from {low} to {high}.")
        right = logits.argmax(dim=1) == labels
    return float((right & ((radius > epsilon) | (epsilon == 0))).double().mean())


def hkr_loss(outputs: Tensor, labels: Tensor, *, alpha: float = 10.0, margin: float = 1.0) -> Tensor:
    r"""The hinge-Kantorovich-Rubinstein loss (Serrurier et al., 2021) of 1-Lipschitz classifiers.

    .. math:: E_{y=-1} f - E_{y=+1} f + \alpha\, E\, \max(0, m - y f)

    The first part alone is minus the Wasserstein distance of the classes. Several classes are one against all others,
    averaged.

    Args:
        outputs: (B,) or (B, 1) with labels -1 and 1, or (B, K) with classes.
        labels: (B,); every class, and something else, should occur in a batch: a class that does not has no mean.
        alpha: weight of the hinge.
        margin: m.

    Example:
        >>> hkr_loss(torch.tensor([2.0, -2.0]), torch.tensor([1, -1]))
        tensor(-4.)
    """
    checks.positive("margin", margin)
    _check_labels(outputs, labels)
    if _is_binary(outputs):
        signs = torch.where(labels > 0, 1.0, -1.0).to(outputs).reshape(-1, 1)
        outputs = outputs.reshape(-1, 1)
    else:
        _check_logits(outputs)
        signs = 2 * F.one_hot(labels, outputs.shape[1]).to(outputs) - 1
    inside, outside = (signs > 0).to(outputs), (signs < 0).to(outputs)
    means = [(outputs * part).sum(0) / part.sum(0).clamp(min=1) for part in (inside, outside)]
    hinge = (margin - signs * outputs).clamp(min=0)
    return (means[1] - means[0]).mean() + alpha * hinge.mean()


def multi_margin_loss(logits: Tensor, labels: Tensor, *, margin: float = 1.0) -> Tensor:
    """How much the right logit misses `margin` over the largest other one, on average; 0 if it never does.

    A margin of `sqrt(2) * epsilon` asks for the certified radius `epsilon`.

    Example:
        >>> multi_margin_loss(torch.tensor([[3.0, 2.5, 0.0]]), torch.tensor([0]))
        tensor(0.5000)
    """
    checks.positive("margin", margin)
    return (margin - _margins(logits, labels)).clamp(min=0).mean()


def ramp_loss(logits: Tensor, labels: Tensor, *, margin: float = 1.0, width: float = 0.5) -> Tensor:
    r"""The share of inputs whose right logit misses `margin` over the largest other one, smoothed.

    .. math:: E\, s((m - z_y + \max_{j \ne y} z_j) / w), \quad s(t) = 1 / (1 + e^{-t})

    With `margin = sqrt(2) * epsilon` it is 1 minus the certified accuracy at `epsilon`, up to the smoothing: unlike
    `multi_margin_loss` it gives up on inputs that are far from their margin, for the sake of those that are near. It
    is not convex and forgets whole classes at the start of a training: begin with `multi_margin_loss`.

    Args:
        width: w; the smaller, the nearer to counting.

    Example:
        >>> ramp_loss(torch.tensor([[3.0, 2.0, 0.0]]), torch.tensor([0]))
        tensor(0.5000)
    """
    checks.positive("width", width)
    return torch.sigmoid((checks.positive("margin", margin) - _margins(logits, labels)) / width).mean()


def _margins(logits: Tensor, labels: Tensor) -> Tensor:
    """The right logit minus the largest other one, (B,)."""
    _check_classes(logits, labels)
    right = logits.gather(1, labels[:, None]).squeeze(1)
    return right - logits.scatter(1, labels[:, None], -torch.inf).amax(dim=1)


def temperature_cross_entropy(logits: Tensor, labels: Tensor, *, temperature: float = 10.0) -> Tensor:
    r"""Cross-entropy of `temperature * logits`, divided by the temperature (Béthune et al., 2022).

    The logits of a 1-Lipschitz network are small, so that plain cross-entropy mostly widens margins. A high temperature
    counts mistakes, a small one widens margins: it trades accuracy against certified accuracy.

    Args:
        logits: (B, K).
        labels: (B,) classes, or (B, K) probabilities of classes.
        temperature: what logits are multiplied with.

    Example:
        >>> loss = temperature_cross_entropy(torch.tensor([[1.0, 0.0]]), torch.tensor([1]), temperature=100.0)
        >>> round(float(loss), 3)
        1.0
    """
    checks.positive("temperature", temperature)
    if not (isinstance(labels, Tensor) and labels.is_floating_point() and labels.shape == logits.shape):
        _check_classes(logits, labels)
    return F.cross_entropy(temperature * logits, labels) / temperature


def _check_classes(logits: Tensor, labels: Tensor) -> None:
    """Several classes, and one of them a row."""
    _check_labels(logits, labels)
    if _is_binary(logits):
        raise ValueError(
            f"The logits of shape {tuple(logits.shape)} are of one class alone, which no other can be confused with: a "
            f"binary classifier has hkr_loss, or two logits."
        )
    _check_logits(logits)


def _check_logits(logits: Tensor) -> None:
    if logits.ndim != 2:
        raise ValueError(f"Logits must have the shape (B, K), but have {tuple(logits.shape)}.")


def _is_binary(logits: Tensor) -> bool:
    """Whether there is one logit an input, whose sign decides."""
    return logits.ndim == 1 or (logits.ndim == 2 and logits.shape[1] == 1)


def _check_labels(logits: Tensor, labels: Tensor) -> None:
    """One label a row: labels of another shape would be compared with all rows."""
    for name, value in (("logits", logits), ("labels", labels)):
        if not isinstance(value, Tensor) or not value.ndim:
            given = "a single number" if isinstance(value, Tensor) else f"a {type(value).__name__}"
            raise ValueError(f"{name} must be a tensor with a row for each input, but is {given}.")
    if not len(logits):
        raise ValueError(f"There are no logits: their shape is {tuple(logits.shape)}.")
    if len(labels) != len(logits):
        raise ValueError(f"There are {len(logits)} rows of logits, but {len(labels)} labels.")
    if _is_binary(logits) and labels.numel() == len(labels):
        return
    if labels.ndim != 1:
        raise ValueError(
            f"labels must have the shape ({len(logits)},), one class a row of logits, but have {tuple(labels.shape)}."
        )
    if labels.is_floating_point() or labels.dtype == torch.bool:
        raise ValueError(f"labels must be integers, the numbers of classes, but are {labels.dtype}. Use labels.long().")


def _rounded_down(value: Tensor, dtype: torch.dtype) -> Tensor:
    """Lengths in float64, after up to three roundings, as the next numbers of a type that are certainly not above."""
    below = value * (1 - 4 * torch.finfo(torch.float64).eps)
    near = below.to(dtype)
    return torch.where(near.double() > below, torch.nextafter(near, torch.zeros_like(near)), near)

"""Lipschitz constants from below: the largest ratio of distances that is really seen."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.certification.inspection import unwrapped
from lipspline.nn.fold import freeze

LARGE = 2**16  # entries of an input of which one has to be enough
Function = Callable[[Tensor], Tensor]


def estimate_lower(
    model: nn.Module, input_shape: tuple[int, ...] | None = None, *, inputs: Tensor | None = None, steps: int = 20
) -> float:
    """The largest ratio of distances found by power iteration on Jacobians: a lower bound on the Lipschitz constant.

    The model is copied, with the weights it runs with, and measured in float64.

    Args:
        model: any module that maps one tensor to one tensor.
        input_shape: shape of one input, with or without batch; guessed from the first layer if not given.
        inputs: a batch around which to look; four random inputs if not given, or one that is large.
        steps: power iterations on the Jacobian.

    Example:
        >>> print(f"{estimate_lower(nn.LeakyReLU(0.5), inputs=-torch.ones(3, 4)):.3f}")
        0.500
    """
    checks.at_least("steps", steps, 1)
    model = freeze(unwrapped(model))
    if inputs is None:
        shape = _one_input(input_shape, _guess(model))
        several = 4 if math.prod(shape) <= LARGE else 1
        inputs = torch.randn(several, *shape, generator=torch.Generator().manual_seed(0))
    inputs = inputs.detach().to(next((p.device for p in model.parameters()), inputs.device))
    single = _reading_only(copy.deepcopy(model).float())
    _check_accepts(single, inputs.float())
    directions = _steepest_directions(single, inputs.float(), steps)
    with _creating_float64():
        ratios = _ratios(_reading_only(model.double()), inputs.double(), _normalized(directions.double()))
    return float(ratios.max())


@contextmanager
def _creating_float64() -> Iterator[None]:
    """Tensors that a `forward` creates without saying of which type are of float64, too."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def _reading_only(model: nn.Module) -> Function:
    """The same function where the first layer works in place."""
    return lambda x: model(x.clone())


@torch.no_grad()
def _check_accepts(model: Function, inputs: Tensor) -> None:
    try:
        model(inputs)
    except RuntimeError as error:
        raise ValueError(
            f"The model does not take inputs of shape {tuple(inputs.shape)} ({error}). Give input_shape, the shape of "
            f"one input without batch."
        ) from error


def _one_input(given: tuple[int, ...] | None, guess: tuple[int, ...] | None) -> tuple[int, ...]:
    """The shape without batch; one dimension more than the first layer asks for is the batch."""
    if given is None:
        if guess is None:
            raise ValueError("The first layer does not say what inputs it takes. Give input_shape, that of one input.")
        return guess
    return given[1:] if guess is not None and len(given) == len(guess) + 1 else given


def _guess(model: nn.Module) -> tuple[int, ...] | None:
    """The input shape that the first layer with a weight suggests."""
    for layer in model.modules():
        if isinstance(layer, nn.Linear):
            return (layer.in_features,)
        if isinstance(layer, nn.Conv2d):
            return (layer.in_channels, 32, 32)
        if isinstance(layer, nn.Conv1d):
            return (layer.in_channels, 64)
        if not isinstance(layer, nn.Sequential):
            return None
    return None


def _steepest_directions(model: Function, x: Tensor, steps: int) -> Tensor:
    """Unit directions close to the top singular vectors of the Jacobian at each input of a batch."""
    v = torch.randn(x.shape, generator=torch.Generator().manual_seed(1)).to(x)
    pullback = torch.func.vjp(model, x)[1]
    for _ in range(steps):
        v = pullback(torch.func.jvp(model, (x,), (_normalized(v),))[1])[0]
    return _normalized(v)


def _normalized(v: Tensor) -> Tensor:
    """Scale each element of a batch to length 1 (zero stays zero)."""
    return v / v.flatten(1).norm(dim=1).clamp(min=torch.finfo(v.dtype).tiny).view(-1, *[1] * (v.ndim - 1))


@torch.no_grad()
def _ratios(model: Function, x: Tensor, directions: Tensor, length: float = 1e-4) -> Tensor:
    """Ratios |f(x + v) - f(x)| / |v| for short steps v along given directions: true lower bounds.

    The smaller of difference quotient and derivative: kinks can inflate the derivative, and rounding (behind a large
    bias) the quotient, but not both. The factor takes off what float64 rounding may have added.
    """
    moved = x + length * directions
    distances = (model(moved) - model(x)).flatten(1).norm(dim=1)
    quotients = distances / (moved - x).flatten(1).norm(dim=1).clamp(min=length / 2)
    derivatives = torch.func.jvp(model, (x,), (directions,))[1].flatten(1).norm(dim=1)
    return torch.minimum(quotients, derivatives) * (1 - 1e-9)

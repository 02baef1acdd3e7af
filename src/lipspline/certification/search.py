"""Lower bounds on Lipschitz constants: the largest ratio of distances that is really seen."""

import copy

import torch
from torch import Tensor, nn


def lower_bound(
    model: nn.Module, input_shape: tuple[int, ...] | None, inputs: Tensor | None, steps: int
) -> float | None:
    """Largest ratio of distances found by power iteration on Jacobians; None where the input shape is unknown."""
    if inputs is None:
        shape = _one_input(input_shape, _input_shape(model))
        if shape is None:
            return None
        inputs = torch.randn(4, *shape, generator=torch.Generator().manual_seed(0))
    single = copy.deepcopy(model).float()
    _check_accepts(single, inputs.float())
    directions = _steepest_directions(single, inputs.float(), steps)
    return float(_ratios(model.double(), inputs.double(), _normalized(directions.double())).max())


@torch.no_grad()
def _check_accepts(model: nn.Module, inputs: Tensor) -> None:
    try:
        model(inputs)
    except RuntimeError as error:
        raise ValueError(
            f"The model does not take inputs of shape {tuple(inputs.shape)} ({error}). Give input_shape, the shape of "
            f"one input without batch, or steps=0 to leave out the lower bound."
        ) from error


def _one_input(given: tuple[int, ...] | None, guess: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """The shape without batch; one dimension more than the first layer asks for is the batch."""
    if given is None or guess is None:
        return given or guess
    return given[1:] if len(given) == len(guess) + 1 else given


def _input_shape(model: nn.Module) -> tuple[int, ...] | None:
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


def _steepest_directions(model: nn.Module, x: Tensor, steps: int) -> Tensor:
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
def _ratios(model: nn.Module, x: Tensor, directions: Tensor, length: float = 1e-4) -> Tensor:
    """Ratios |f(x + v) - f(x)| / |v| for short steps v along given directions: true lower bounds.

    The smaller of difference quotient and derivative: kinks can inflate the derivative, and rounding (behind a large
    bias) the quotient, but not both. The factor takes off what float64 rounding may have added.
    """
    moved = x + length * directions
    distances = (model(moved) - model(x)).flatten(1).norm(dim=1)
    quotients = distances / (moved - x).flatten(1).norm(dim=1).clamp(min=length / 2)
    derivatives = torch.func.jvp(model, (x,), (directions,))[1].flatten(1).norm(dim=1)
    return torch.minimum(quotients, derivatives) * (1 - 1e-9)

"""Lipschitz constants from below: the largest ratio of distances that is really seen."""

import copy
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

import torch
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.certification.inspection import check_has_values, unwrapped
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
    check_has_values(model)
    if inputs is not None:
        check_example(inputs)
    model = freeze(unwrapped(model))
    if inputs is None:
        shape = _one_input(input_shape, _guess(model))
        several = 4 if math.prod(shape) <= LARGE else 1
        inputs = torch.randn(several, *shape, generator=torch.Generator().manual_seed(0))
    inputs = inputs.detach().to(next((p.device for p in model.parameters()), inputs.device))
    single = _reading_only(copy.deepcopy(model).float())
    _check_one_output_each(single, inputs.float())
    directions = _steepest_directions(single, inputs.float(), steps)
    with _creating_float64():
        ratios = _ratios(_reading_only(model.double()), inputs.double(), _normalized(directions.double()))
    return float(ratios.max())


def check_example(example: Tensor) -> None:
    """Refuse a batch around which nothing is seen: without inputs, or without numbers in them."""
    if example.ndim == 0 or example.numel() == 0:
        raise ValueError(
            f"The example must be a batch of at least one input, (batch, ...), but has the shape "
            f"{tuple(example.shape)}."
        )
    if example.is_meta:
        raise ValueError("The example is on the meta device, without values. Give its shape, or one with values.")
    checks.finite("The example", example, "Nothing is seen around such an input.")


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


def mixes_inputs(model: nn.Module, example: Tensor) -> bool:
    """Whether what a model returns for one input of a batch depends on the others, wherever its outputs have the batch.

    An example of one input stands beside a second one, and must move the outputs as it does alone. A model that does
    not take two inputs mixes none. Looked at in float64, or, if the model does not run in it, in the type it has.
    """
    model = freeze(unwrapped(model))
    for dtype, same in ((torch.float64, 1e-9), (example.dtype, 1e-3)):
        x = example.detach().to(dtype)
        try:
            with _creating_float64() if dtype is torch.float64 else nullcontext(), torch.no_grad():
                return _mixes(_reading_only(model.to(dtype)), x, same)
        except Exception:  # whatever a model may raise that does not run like this
            continue
    return False


def _mixes(model: Function, x: Tensor, same: float) -> bool:
    """The first input is exchanged, then the others, then both.

    If no output depends on two inputs, no entry changes by both exchanges, and both together are the sum of each alone.
    `same` is what rounding may change, relative to the largest output.
    """
    generator = torch.Generator().manual_seed(2)
    other = 2 * torch.randn(x.shape, generator=generator).to(x)
    single = [x, other] if len(x) == 1 else []
    if single:
        x, other = torch.cat([x, -other]), torch.cat([other, 3 * other])
    corners = (x, torch.cat([other[:1], x[1:]]), torch.cat([x[:1], other[1:]]), other)
    total = 0.0
    for old, by_first, by_rest, by_both in zip(*(tensors_in(model(corner)) for corner in corners), strict=True):
        first, rest = by_first - old, by_rest - old
        nothing = same * torch.stack([old, by_first, by_rest, by_both]).abs().amax() if old.numel() else 0.0
        twice = (first.abs() > nothing) & (rest.abs() > nothing)
        if bool(twice.any()) or bool(((by_both - old - first - rest).abs() > nothing).any()):
            return True
        total += float(first.square().sum())
    alone = sum(float((b - a).square().sum()) for a, b in zip(*(tensors_in(model(z)) for z in single), strict=True))
    return bool(single) and abs(alone - total) > 1e3 * same * (alone + total)


def tensors_in(value: object) -> list[Tensor]:
    """The tensors of real numbers in what a model returns."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        return [tensor for part in value for tensor in tensors_in(part)]
    return [value] if isinstance(value, Tensor) and value.is_floating_point() else []


@torch.no_grad()
def _accepted(model: Function, inputs: Tensor) -> Tensor:
    try:
        return model(inputs)
    except RuntimeError as error:
        raise ValueError(
            f"The model does not take inputs of shape {tuple(inputs.shape)} ({error}). Give input_shape, the shape of "
            f"one input without batch."
        ) from error


@torch.no_grad()
def _check_one_output_each(model: Function, inputs: Tensor) -> None:
    """Refuse outputs without a row for each input, also where there happen to be as many rows of another kind."""
    output = _accepted(model, inputs)
    if not isinstance(output, Tensor):
        return
    elsewhere = output.ndim == 0 or len(output) != len(inputs)
    if not elsewhere and len(inputs) > 1:
        moved = (model(torch.cat([2 * inputs[:1] + 1, inputs[1:]])) - output).abs()
        elsewhere = bool((moved[1:] > 1e-3 * output.abs().amax()).any()) if output.numel() else False
    if elsewhere:
        raise ValueError(
            f"The model returns shape {tuple(output.shape)} for {len(inputs)} inputs: where the first dimension is no "
            f"batch, ratios of single inputs cannot be seen. Leave input_shape out, or keep the batch first."
        )


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
    return v / _lengths(v).clamp(min=torch.finfo(v.dtype).tiny).view(-1, *[1] * (v.ndim - 1))


def _lengths(v: Tensor) -> Tensor:
    """The length of each element of a batch."""
    return v.reshape(len(v), -1).norm(dim=1)


@torch.no_grad()
def _ratios(model: Function, x: Tensor, directions: Tensor, length: float = 1e-4) -> Tensor:
    """Ratios |f(x + v) - f(x)| / |v| for short steps v along given directions: true lower bounds.

    The smaller of difference quotient and derivative: kinks can inflate the derivative, and rounding (behind a large
    bias) the quotient, but not both. The factor takes off what float64 rounding may have added.
    """
    moved = x + length * directions
    distances = _lengths(model(moved) - model(x))
    quotients = distances / _lengths(moved - x).clamp(min=length / 2)
    derivatives = _lengths(torch.func.jvp(model, (x,), (directions,))[1])
    return torch.minimum(quotients, derivatives) * (1 - 1e-9)

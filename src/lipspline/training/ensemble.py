"""Many models at once: seeds and targets as one batched model, equal to training each alone."""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, stack_module_state

from lipspline._infra.randomness import shuffled_each
from lipspline.training.tasks import Minimize


class Ensemble(nn.Module):
    """Models of one architecture as one model, whose parameters carry a leading dimension M of members.

    Inputs and outputs are `(M, B, ...)`: every member sees its own batch. The parameters have the names they have in
    one model, so `param_groups`, `tv2` (the sum over members) and checkpoints need to know nothing of ensembles. Adam
    acts element by element, and the sum of the members' losses has the gradients of each: one optimizer over the
    ensemble is M independent ones, to round-off. (Where two slopes of a spline are equal, the sign that TV² takes of
    their difference is a matter of round-off itself, alone or in an ensemble.)

    Example:
        >>> models = [nn.Linear(3, 1) for _ in range(5)]
        >>> ensemble = Ensemble(models)
        >>> x = torch.randn(5, 7, 3)
        >>> torch.allclose(ensemble(x)[2], models[2](x[2]))
        True
    """

    def __init__(self, models: Sequence[nn.Module]):
        super().__init__()
        _check_alike(models)
        self.count = len(models)
        parameters, buffers = stack_module_state(list(models))
        self.members = _with_state(models[0], {**parameters, **buffers})

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[0] != self.count:
            raise ValueError(
                f"The ensemble has {self.count} members but the input has {x.shape[0]} batches (shape "
                f"{tuple(x.shape)}). Dimension 0 must be the member; repeat an input with x.expand({self.count}, ...)."
            )
        state = dict(self.members.named_parameters()), dict(self.members.named_buffers())
        return torch.vmap(self._call, randomness="different")(*state, x)

    def member(self, index: int) -> nn.Module:
        """One member as an ordinary model."""
        state = {**dict(self.members.named_parameters()), **dict(self.members.named_buffers())}
        return _with_state(self.members, {name: value.detach()[index].clone() for name, value in state.items()})

    def _call(self, parameters: Mapping[str, Tensor], buffers: Mapping[str, Tensor], x: Tensor) -> Tensor:
        return functional_call(self.members, {**parameters, **buffers}, (x,))


def regressions(
    models: Sequence[nn.Module],
    x: Tensor,
    y: Tensor,
    test_x: Tensor,
    test_y: Tensor,
    *,
    seeds: Sequence[int],
    batch: int,
    lr: float,
    tv2_weight: float = 0.0,
    rotations: float | None = None,
) -> Minimize:
    """`tasks.regression` for M models at once, each with its own data, batches and initialisation [sec:EvalExp].

    Args:
        models: the members.
        x: inputs `(M, n, ...)`; y: targets; test_x, test_y: likewise.
        seeds: the order of the batches of each member, as `seed` in `tasks.regression`.
        rotations: as for `Player`; a stack of orthonormal matrices turns as each of them would alone.

    Returns:
        A task whose model is an `Ensemble` and whose metrics are quartiles of the members' test errors.
    """
    if not len(models) == len(x) == len(y) == len(seeds):
        raise ValueError(
            f"Each member needs its own data and seed, but there are {len(models)} models, {len(x)} inputs, {len(y)} "
            f"targets and {len(seeds)} seeds."
        )
    ensemble = Ensemble(models)
    members, order = torch.arange(len(models)).unsqueeze(1), tuple(seeds)

    def loss(step: int) -> Tensor:
        rows = shuffled_each(x.shape[1], step, batch, order)
        return member_mse(ensemble(x[members, rows]), y[members, rows]).sum()

    def score() -> Mapping[str, float]:
        quartiles = member_mse(ensemble(test_x), test_y).quantile(torch.tensor([0.25, 0.5, 0.75], dtype=test_y.dtype))
        return dict(zip(("mse_lower", "mse", "mse_upper"), quartiles.tolist(), strict=True))

    return Minimize(ensemble, lr, loss, score, tv2_weight, rotations=rotations)


def member_mse(outputs: Tensor, targets: Tensor) -> Tensor:
    """Mean squared error of each member, `(M, B, ...) -> (M,)`."""
    return (outputs - targets).square().flatten(1).mean(dim=1)


def _with_state(model: nn.Module, state: Mapping[str, Tensor]) -> nn.Module:
    """A copy of a model whose parameters and buffers are replaced by tensors of any shape."""
    model = copy.deepcopy(model)
    for name, value in state.items():
        owner, _, attribute = name.rpartition(".")
        module = model.get_submodule(owner)
        if attribute in module._parameters:
            old = model.get_parameter(name)
            module.register_parameter(attribute, nn.Parameter(value.detach(), requires_grad=old.requires_grad))
        else:
            setattr(module, attribute, value)
    return model


def _check_alike(models: Sequence[nn.Module]) -> None:
    if not models:
        raise ValueError("An ensemble needs at least one model, but got none.")
    first = {name: tuple(value.shape) for name, value in models[0].state_dict().items()}
    for index, model in enumerate(models):
        shapes = {name: tuple(value.shape) for name, value in model.state_dict().items()}
        if type(model) is not type(models[0]) or shapes != first:
            raise ValueError(
                f"The members of an ensemble must have the same architecture, but model {index} differs from model 0. "
                f"Make one ensemble for each architecture."
            )

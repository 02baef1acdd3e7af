"""The networks that recipes compare: how they are built, where trained denoisers come from, and potentials.

A potential is a network that is trained to estimate a Wasserstein-1 distance [wasserstein].
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from lipspline._infra import checks
from lipspline._infra.files import checksum
from lipspline.certification.proof import certify
from lipspline.networks.builders import Network, denoiser, mlp
from lipspline.networks.files import load
from lipspline.networks.inference import plain
from lipspline.networks.rescale import level_for, serving
from lipspline.nn.matrices import Init
from lipspline.paper.config import Amount, Count, Positive, added_later, nearest, to_json
from lipspline.paper.experiment import Context, Job, Value, Verdict
from lipspline.priors import zoo
from lipspline.priors.denoisers import available
from lipspline.training.loop import Fit, Plan, fit
from lipspline.training.schedules import SCHEDULES
from lipspline.training.tasks import Sampler, kantorovich

WEIGHTS = Path(str(resources.files("lipspline.paper"))) / "weights"
Activation = Literal["relu", "av", "prelu", "gs", "hh", "lls"]
OPTIONS: dict[str, tuple[str, ...]] = {
    "relu": (),
    "av": (),
    "prelu": ("init",),
    "gs": ("size",),
    "hh": (),
    "lls": ("regions", "radius", "init", "constraint", "learn_scale"),
}


@dataclass(frozen=True, kw_only=True)
class NetworkSpec:
    """A fully connected 1-Lipschitz network [eq:architecture].

    Args:
        activation: its name in the paper's tables.
        depth: number of dense layers.
        width: neurons in a hidden layer.
        options: of the activation, such as `init` of prelu, `size` of gs, `radius` of lls.
        tv2_weight: λ of [eq:optim_network].
    """

    activation: Activation
    depth: int
    width: int
    options: dict[str, Any] = field(default_factory=dict)
    tv2_weight: Amount = 0.0

    def __post_init__(self):
        checks.at_least("depth", self.depth, 1)
        checks.at_least("width", self.width, 1)
        check_options(self.activation, self.options)
        if self.tv2_weight and self.activation != "lls":
            raise ValueError(
                f"tv2_weight regularizes splines, but the activation is {self.activation!r}. Leave it out."
            )

    def build(self, n_in: int, *, constraint: Literal["orthonormal", "spectral"], init: Init, seed: int) -> Network:
        """A network from `n_in` inputs to one output, its random weights given by `seed` alone."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return mlp(
                n_in,
                1,
                width=self.width,
                depth=self.depth,
                activation=self.activation,
                constraint=constraint,
                init=init,
                activation_options=self.options,
            )


def check_options(activation: str, options: Mapping[str, Any]) -> None:
    """Check that an activation has the options a recipe gives it."""
    for name in options:
        if name not in OPTIONS[activation]:
            raise ValueError(
                f"the activation {activation!r} has no option {name!r}; {nearest(name, OPTIONS[activation])}"
            )


@dataclass(frozen=True)
class Family:
    """Denoisers of one kind by the noise level, in units of 1/255, that they were trained for."""

    trained: Mapping[float, nn.Module]

    def at(self, noise: float) -> nn.Module:
        """The denoiser for any noise level, made of the trained one that serves it best [sec:exp_pnp]."""
        trained = level_for(noise, self.trained)
        return serving(self.trained[trained], trained, noise)

    def checksums(self) -> dict[str, str]:
        """What the weights are, by noise level."""
        return {f"{noise:g}": checksum(dict(model.state_dict())) for noise, model in self.trained.items()}


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where denoisers come from: they ship with the package, come with the paper's experiments, or are named here.

    Args:
        activation: its name in the paper's tables.
        files: weights of one's own, by the noise level (in units of 1/255) they were trained for.
        untrained: small random weights, which are just as 1-Lipschitz: to see that everything runs.
    """

    activation: Activation
    files: dict[str, str] = field(default_factory=dict)
    untrained: bool = False

    def __post_init__(self):
        for noise in self.files:
            if not noise.isdigit() or int(noise) == 0:
                raise ValueError(
                    f"files must be given by noise level, a whole number in units of 1/255, but there is {noise!r}."
                )
        if self.files and self.untrained:
            raise ValueError("weights are either read from files or untrained, but both were asked for.")

    def load(self, levels: Collection[int]) -> Family | None:
        """The denoisers trained for some of the `levels`; None if there are none.

        Those of the paper's experiments, which have equal budgets, come before those that ship with the package.
        """
        if self.untrained:
            return Family({max(levels): _untrained(self.activation)})
        trained: dict[float, nn.Module]
        if self.files:
            trained = {int(noise): _read(file) for noise, file in self.files.items() if int(noise) in levels}
        elif own := equal_budget(self.activation, levels):
            trained = {noise: _read(str(file)) for noise, file in own.items()}
        else:
            shipped = [noise for activation, noise in available() if activation == self.activation and noise in levels]
            trained = {noise: _shipped(self.activation, noise) for noise in shipped}
        return Family(trained) if trained else None


def equal_budget(activation: str, levels: Collection[int]) -> dict[int, Path]:
    """Weights of the recipes `denoisers-15`, `-10` and `-5`, by noise level: files beside the recipes, where they are.

    They are in the source tree but not in wheels: only the tables of the paper need them.
    """
    files = {noise: WEIGHTS / f"{activation}-{noise}.safetensors" for noise in levels}
    return {noise: file for noise, file in files.items() if file.is_file()}


@cache
def _read(file: str) -> nn.Module:
    return load(file)


@cache
def _shipped(activation: str, noise: int) -> nn.Module:
    return zoo(activation, noise)


@cache
def _untrained(activation: str) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return plain(denoiser(checks.one_of("activation", activation, Activation.__args__), channels=4, depth=2))


Options = dict[str, dict[str, dict[str, Any]]]
"""More options of the activations: by case (a dimension or a depth) and network."""


@dataclass(frozen=True)
class PotentialTraining:
    """How a potential is trained: orthonormal layers, orthogonal initialization, Adam.

    Args:
        rotations: turn orthonormal matrices by about this angle in a step, instead of moving their entries by Adam.
    """

    steps: Count
    lr: Positive
    batch: Count
    schedule: Literal["constant", "cosine"]
    rotations: Positive | None = added_later(None)


@dataclass(frozen=True)
class Potential:
    """A trained potential as an ordinary network, the bound that is proved for it, and the evidence of its training."""

    network: nn.Module
    certificate: float
    evidence: Fit


def learn(
    job: Job, spec: NetworkSpec, n_in: int, sampler: Sampler, training: PotentialTraining, context: Context, seed: int
) -> Potential:
    """Train a network as the potential of two distributions, and certify it."""
    model = spec.build(n_in, constraint="orthonormal", init="orthogonal", seed=seed)
    task = kantorovich(
        model,
        sampler,
        batch=training.batch,
        lr=training.lr,
        test_samples=training.batch,
        tv2_weight=spec.tv2_weight,
        rotations=training.rotations,
        seed=seed,
    )
    plan = Plan(
        training.steps,
        schedule=SCHEDULES[training.schedule],
        log_every=max(1, training.steps // 100),
        checkpoint_every=max(1, training.steps // 5),
    )
    evidence = fit(task, plan, folder=context.folder, config=to_json(job), observers=context.observers(lambda: model))
    network = plain(model)
    return Potential(network, certify(network).upper, evidence)


def in_case(spec: NetworkSpec, options: Options, case: str, name: str) -> NetworkSpec:
    """A network with the options of a case in addition to its own."""
    return replace(spec, options={**spec.options, **options.get(case, {}).get(name, {})})


def check_cases(options: Options, networks: Mapping[str, NetworkSpec]) -> None:
    """Check that the options of every case are those of a network."""
    for case, by_network in options.items():
        for name, given in by_network.items():
            if name not in networks:
                raise ValueError(f"options.{case} names the unknown network {name!r}; known: {', '.join(networks)}.")
            check_options(networks[name].activation, given)


def relu_lowest(estimates: Mapping[str, Mapping[str, Value]]) -> Verdict:
    """Whether ReLU is below every other network in every row [tab:wasserstein_bigaussian, tab:wasserstein_results]."""
    relu = {row: values["relu"][0] for row, values in estimates.items()}
    others = {
        row: min(value[0] for name, value in values.items() if name != "relu") for row, values in estimates.items()
    }
    text = ", ".join(f"{row}: {relu[row]:.4g} and {others[row]:.4g}" for row in relu)
    return Verdict(all(relu[row] < others[row] for row in relu), f"ReLU and the lowest of the others, {text}")

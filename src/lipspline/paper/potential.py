"""Learning the potential of a Wasserstein-1 distance [wasserstein]: what the mixtures and the digits share."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from torch import nn

from lipspline.certification.proof import certify
from lipspline.networks.inference import plain
from lipspline.paper.config import Count, Positive, to_json
from lipspline.paper.experiment import Context, Job, Outcome, Verdict
from lipspline.paper.networks import NetworkSpec, check_options
from lipspline.paper.tables import Value
from lipspline.training.loop import Fit, Plan, fit
from lipspline.training.optim import SCHEDULES
from lipspline.training.tasks import Sampler, kantorovich

Options = dict[str, dict[str, dict[str, Any]]]
"""More options of the activations: by case (a dimension or a depth) and network."""


@dataclass(frozen=True)
class Training:
    """How a potential is trained: orthonormal layers, orthogonal initialization, Adam."""

    steps: Count
    lr: Positive
    batch: Count
    schedule: Literal["constant", "cosine"]


@dataclass(frozen=True)
class Potential:
    """A trained potential as an ordinary network, the bound that is proved for it, and the evidence of its training."""

    network: nn.Module
    certificate: float
    evidence: Fit


def learn(
    job: Job, spec: NetworkSpec, n_in: int, sampler: Sampler, training: Training, context: Context, seed: int
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
    return Potential(network, certify(network, steps=0).upper, evidence)


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


def spread(values: Sequence[float]) -> Value:
    """Mean and standard deviation.

    Example:
        >>> spread([1.0, 2.0, 3.0])
        (2.0, 1.0)
    """
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def relu_lowest(estimates: Mapping[str, Mapping[str, Value]]) -> Verdict:
    """Whether ReLU is below every other network in every row [tab:wasserstein_bigaussian, tab:wasserstein_results]."""
    relu = {row: values["relu"][0] for row, values in estimates.items()}
    others = {
        row: min(value[0] for name, value in values.items() if name != "relu") for row, values in estimates.items()
    }
    text = ", ".join(f"{row}: {relu[row]:.4g} and {others[row]:.4g}" for row in relu)
    return Verdict(all(relu[row] < others[row] for row in relu), f"ReLU and the lowest of the others, {text}")


def all_certified(outcomes: Mapping[str, Outcome]) -> Verdict:
    """Whether every potential is proved to be 1-Lipschitz, but for rounding."""
    largest = max(outcome.numbers["certificate"] for outcome in outcomes.values())
    return Verdict(largest <= 1 + 1e-5, f"largest certificate {largest:.9f}")

"""Fit three 1-Lipschitz functions of one variable with 1-Lipschitz networks [sec:EvalExp, fig:1d_performances].

All seeds of a network, and all functions that share its learning rate, are trained as one batched model.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.randomness import generator
from lipspline.networks.builders import Network
from lipspline.networks.files import save
from lipspline.networks.inference import plain
from lipspline.paper import figures
from lipspline.paper.config import Count, Natural, Positive, Several, added_later, to_json
from lipspline.paper.experiment import Context, Expectation, Experiment, Outcome, Report, Table, Verdict
from lipspline.paper.networks import NetworkSpec
from lipspline.training.ensemble import Ensemble, member_mse, regressions
from lipspline.training.loop import Plan, fit
from lipspline.training.schedules import SCHEDULES

Panels = dict[str, dict[str, dict[str, Any]]]
"""Scores by panel (constraint and function) and network."""

CURVE = 401
QUARTILES = torch.tensor([0.25, 0.5, 0.75], dtype=torch.float64)


@dataclass(frozen=True, kw_only=True)
class FitSpec(NetworkSpec):
    """A network and its learning rate for each function."""

    lr: dict[str, Positive]


@dataclass(frozen=True)
class Protocol:
    """How every network is trained and tested.

    Args:
        knots: slope changes of f1 and f2; function_seed: where they are.
        init: start of the weights.
        seeds: trainings of each network for each function.
        points: training points, uniformly random in [-1, 1], anew for every seed.
        test_points: a uniform partition of [-1, 1].
        rotations: turn orthonormal matrices by about this angle in a step, instead of moving their entries by Adam;
            means nothing to spectral normalisation.
        schedule: of the learning rates and of the angle.
    """

    knots: Count
    function_seed: Natural
    init: Literal["kaiming", "orthogonal"]
    seeds: Count
    epochs: Count
    batch: Count
    points: Count
    test_points: Count
    rotations: Positive | None = added_later(None)
    schedule: Literal["constant", "cosine"] = added_later("constant")

    def __post_init__(self):
        checks.divides("batch", self.batch, "the number of training points", self.points)


@dataclass(frozen=True)
class FittingSettings:
    """What [fig:1d_performances] compares; `networks` go by the names they have in the figure."""

    functions: Several[Literal["f1", "f2", "f3"]]
    constraints: Several[Literal["orthonormal", "spectral"]]
    protocol: Protocol
    networks: dict[str, FitSpec]

    def __post_init__(self):
        for name, network in self.networks.items():
            for function in self.functions:
                if function not in network.lr:
                    raise ValueError(f"networks.{name}.lr has no learning rate for {function}.")


@dataclass(frozen=True)
class FittingJob:
    """All seeds of one network with one constraint, for functions that share a learning rate."""

    network: str
    constraint: Literal["orthonormal", "spectral"]
    functions: tuple[str, ...]
    lr: float
    spec: NetworkSpec
    protocol: Protocol

    @property
    def name(self) -> str:
        return f"{self.network}-{self.constraint}-{''.join(self.functions)}"

    @property
    def steps(self) -> int:
        return self.protocol.epochs * self.protocol.points // self.protocol.batch


def piecewise_linear(knots: Tensor, slopes: Tensor) -> Callable[[Tensor], Tensor]:
    """The function on [-1, 1] with the given slopes between -1, the sorted knots and 1, and mean zero.

    Example:
        >>> f = piecewise_linear(torch.tensor([0.0]), torch.tensor([-1.0, 1.0]))
        >>> f(torch.tensor([-1.0, 0.0, 1.0]))
        tensor([ 0.5000, -0.5000,  0.5000])
    """
    ends = torch.cat([knots.new_tensor([-1.0]), knots, knots.new_tensor([1.0])]).double()
    lengths = ends.diff()
    values = torch.cat([ends.new_zeros(1), (slopes * lengths).cumsum(0)])
    mean = ((values[:-1] + values[1:]) / 2 * lengths).sum() / 2

    def function(x: Tensor) -> Tensor:
        region = torch.bucketize(x.double(), ends[1:-1])
        return (values[region] - mean + slopes[region] * (x.double() - ends[region])).to(x.dtype)

    return function


def target(name: str, knots: int, seed: int) -> Callable[[Tensor], Tensor]:
    """One of the three functions of [fig:1d_functions]; f1 and f2 have random knots.

    f1 has the slopes +1 and -1 in turns; f2 has slope 0 in every other region, and +1 or -1 at random in between;
    f3 is sin(7πx)/7π. All have mean zero over [-1, 1].
    """
    if name == "f3":
        return lambda x: torch.sin(7 * math.pi * x) / (7 * math.pi)
    stream = generator(seed, name)
    places = (2 * torch.rand(knots, generator=stream, dtype=torch.float64) - 1).sort().values
    odd = torch.arange(knots + 1) % 2
    if name == "f1":
        return piecewise_linear(places, 1.0 - 2.0 * odd)
    signs = 2.0 * torch.randint(2, (knots + 1,), generator=stream) - 1.0
    return piecewise_linear(places, signs * (1 - odd))


def jobs(settings: FittingSettings) -> list[FittingJob]:
    """One job for each network, constraint and learning rate."""
    found = []
    for constraint in settings.constraints:
        for name, network in settings.networks.items():
            spec = NetworkSpec(**{field.name: getattr(network, field.name) for field in fields(NetworkSpec)})
            for lr in dict.fromkeys(network.lr[function] for function in settings.functions):
                functions = tuple(function for function in settings.functions if network.lr[function] == lr)
                found.append(FittingJob(name, constraint, functions, lr, spec, settings.protocol))
    return found


def run(job: FittingJob, context: Context) -> Outcome:
    """Train the members of a job as one ensemble, and score each on the test points."""
    protocol = job.protocol
    seeds = [context.seed * 1000 + number for number in range(protocol.seeds)]
    functions = [target(name, protocol.knots, protocol.function_seed) for name in job.functions]
    models = [job.spec.build(1, constraint=job.constraint, init=protocol.init, seed=seed) for seed in seeds]
    x = torch.stack([2 * torch.rand(protocol.points, 1, generator=generator(seed, "points")) - 1 for seed in seeds])
    test_x = torch.linspace(-1, 1, protocol.test_points).reshape(1, -1, 1).expand(len(seeds), -1, -1)
    test = test_x.repeat(len(functions), 1, 1), torch.cat([function(test_x) for function in functions])
    task = regressions(
        models * len(functions),
        x.repeat(len(functions), 1, 1),
        torch.cat([function(x) for function in functions]),
        *test,
        seeds=seeds * len(functions),
        batch=protocol.batch,
        lr=job.lr,
        tv2_weight=job.spec.tv2_weight,
        rotations=protocol.rotations if job.constraint == "orthonormal" else None,
    )
    schedule = SCHEDULES[protocol.schedule]
    plan = Plan(
        job.steps, schedule=schedule, log_every=max(1, job.steps // 200), checkpoint_every=max(1, job.steps // 20)
    )
    ensemble = task.model
    assert isinstance(ensemble, Ensemble)
    watching = context.observers(lambda: ensemble.member(0))
    evidence = fit(task, plan, folder=context.folder, config=to_json(job), observers=watching)
    ensemble.eval()
    with torch.no_grad():
        errors = member_mse(ensemble(test[0]), test[1]).reshape(len(functions), -1)
    panels = {name: _panel(ensemble, errors, number, context.folder) for number, name in enumerate(job.functions)}
    numbers = {name: panel for name, (panel, _) in panels.items()}
    return Outcome(numbers, evidence.seconds, {name: curve for name, (_, curve) in panels.items()})


def _panel(ensemble: Ensemble, errors: Tensor, number: int, folder: Path) -> tuple[dict[str, Any], list[float]]:
    """The test errors of the seeds for function `number`, and the curve of the median network, which is kept."""
    mse = errors[number]
    median = int(mse.argsort()[len(mse) // 2])
    network = ensemble.member(number * len(mse) + median)
    assert isinstance(network, Network)
    certificate = save(network, folder / f"median-{number}.safetensors")
    lower, middle, upper = mse.double().quantile(QUARTILES).tolist()
    curve = plain(network)(curve_points()).squeeze(1).tolist()
    scores = {"lower": lower, "median": middle, "upper": upper, "certificate": certificate.upper, "mse": mse.tolist()}
    return scores, [round(value, 6) for value in curve]


def curve_points() -> Tensor:
    """The points `(CURVE, 1)` at which fitted functions are drawn."""
    return torch.linspace(-1, 1, CURVE).unsqueeze(1)


def report(settings: FittingSettings, outcomes: Mapping[str, Outcome], expect: Expectation) -> Report:
    """Medians and quartiles in six panels, and the fitted functions [fig:1d_performances, fig:1d_functions]."""
    panels: Panels = {}
    curves: dict[str, dict[str, list[float]]] = {}
    for job in jobs(settings):
        for function in job.functions:
            panel = f"{job.constraint} {function}"
            panels.setdefault(panel, {})[job.network] = outcomes[job.name].numbers[function]
            curves.setdefault(panel, {})[job.network] = outcomes[job.name].drawing[function]
    order = [f"{constraint} {function}" for constraint in settings.constraints for function in settings.functions]
    panels = {panel: panels[panel] for panel in order}
    table = Table(
        "Test error: median over seeds (lower quartile / median / upper quartile in the results file)",
        "panel",
        {panel: {name: (scores["median"],) for name, scores in row.items()} for panel, row in panels.items()},
        best="min",
        digits=".2e",
    )
    x = curve_points()
    targets = {
        panel: target(panel.split()[1], settings.protocol.knots, settings.protocol.function_seed)(x).squeeze(1).tolist()
        for panel in order
    }
    return Report(
        (table,),
        _verdicts(panels),
        {
            "performance": lambda: figures.quartile_panels(panels, columns=len(settings.functions)),
            "functions": lambda: figures.curve_panels(
                x.squeeze(1).tolist(), targets, curves, columns=len(settings.functions)
            ),
        },
    )


def _verdicts(panels: Panels) -> dict[str, Verdict]:
    """Whether LLS New is the best, and better than LLS Old [sec:EvalExp]; no verdict without both."""
    best = [panel for panel, row in panels.items() if min(row, key=lambda name: row[name]["median"]) == "lls-new"]
    both = {panel: row for panel, row in panels.items() if {"lls-new", "lls-old"} <= row.keys()}
    ahead = [panel for panel, row in both.items() if row["lls-new"]["median"] < row["lls-old"]["median"]]
    return {
        "lls-best": Verdict(len(best) == len(panels), f"in {len(best)} of {len(panels)} panels"),
        "new-beats-old": Verdict(len(ahead) == len(both), f"in {len(ahead)} of {len(both)} panels"),
    }


EXPERIMENT = Experiment(FittingSettings, ("lls-best", "new-beats-old"), jobs, run, report)

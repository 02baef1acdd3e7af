"""Denoisers: trained, started from one another, written with their scores, and looked at [table:performance]."""

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lipspline.certification import certify
from lipspline.networks import denoiser, effective_regions, files, plain
from lipspline.networks.rescale import Rescaled
from lipspline.nn import LinearSpline
from lipspline.paper import denoising
from lipspline.paper.config import to_json
from lipspline.paper.denoiser_training import PARAMETERS, DenoiserTraining, Start, needs, start_from, trained_weights
from lipspline.paper.experiment import Context, Outcome
from lipspline.paper.recipe import load
from lipspline.paper.run import Run, chain, reproduce, run_job
from lipspline.priors import zoo
from lipspline.priors.denoisers import available
from lipspline.training.checkpoint import decode


@pytest.fixture(scope="module")
def needs_bsd():
    """Skip where the images are not at hand."""
    folder = os.environ.get("LIPSPLINE_DATA")
    if not folder or not (Path(folder) / "bsd").is_dir():
        pytest.skip("LIPSPLINE_DATA names no folder with bsd/ in it")


def train(recipe: str, out: Path, seed: int = 0) -> tuple[Run, Outcome]:
    run = Run(load(recipe, "smoke"), out, seed=seed)
    return run, run_job(run, run.jobs()[0], lambda record: None)


@pytest.mark.usefixtures("needs_bsd")
def test_the_smoke_scales_train_denoisers_and_count_their_regions(smoke, tmp_path):
    """[table:performance, table:nbr_knots]: the second recipe reads what the first has trained."""
    trained = smoke("table-denoising")
    assert len(trained.document["jobs"]) == 11
    assert {"psnr", "ssim", "set12_psnr", "certificate"} <= trained.document["jobs"]["relu-noise15"].keys()
    assert trained.document["claims"]["certified"]["holds"]
    assert [path.name.rpartition("-")[2] for path in trained.files[1:]] == [
        "lambda.png", "activations.png", "photograph.png"]  # fmt: skip
    counted = smoke("table-regions").document
    assert len(counted["jobs"]) == 6
    job = counted["jobs"]["lls-1e-6-noise15"]
    assert job["psnr"] == pytest.approx(trained.document["jobs"]["lls-1e-6-noise15"]["psnr"], abs=1e-4)
    assert 1 <= job["merged_regions"] <= max(job["regions"], 1.0)
    merged = files.load(tmp_path / "runs/table-regions-smoke/lls-1e-6-noise15/model.safetensors")
    assert effective_regions(merged).overall == job["merged_regions"]
    assert merged.provenance["merged"] == job["tolerance"]


@pytest.mark.usefixtures("needs_bsd")
def test_a_trained_denoiser_says_where_it_comes_from_and_how_good_it_is(tmp_path):
    run, outcome = train("denoiser-lls", tmp_path)
    model = files.load(trained_weights(run.folder, "denoiser-lls", "lls-noise15"))
    provenance = model.provenance
    assert provenance["noise"] == 15
    assert provenance["run"] == "denoiser-lls-smoke"
    assert provenance["seed"] == 0
    assert provenance["trained"]["training"]["steps"] == 2
    assert "non-commercial" in provenance["licence"]
    assert provenance["scores"]["bsd68"]["psnr"] == outcome.numbers["psnr"]
    assert provenance["scores"]["set12"].keys() == {"psnr", "ssim", "profile"}
    assert [step for step, _ in provenance["validation"]] == [1, 2]
    assert certify(model).upper <= 1


@pytest.mark.usefixtures("needs_bsd")
@pytest.mark.parametrize("slopes", [None, 0.5])
def test_slopes_learn_by_their_own_rate_and_coefficients_are_written(slopes, tmp_path):
    """With a learning rate of nearly nothing for all else, only slopes can move."""
    run = Run(load("denoiser-lls", "smoke"), tmp_path)
    (job,) = run.jobs()
    job = replace(job, training=replace(job.training, lr=1e-12, schedule="constant", slopes=slopes))
    run_job(run, job, lambda record: None)
    state = decode(run.folder / job.name / PARAMETERS)
    (learned,) = (value for name, value in state.items() if name.endswith("coefficients"))
    moved = (learned.diff(dim=-1) / LinearSpline(4).step - 1).abs().max()
    assert moved > 0.4 if slopes else moved < 1e-3


@pytest.mark.usefixtures("needs_bsd")
def test_training_again_with_the_same_seed_gives_the_same_curve(tmp_path):
    curves = [train("denoiser-lls", tmp_path / name, seed)[1] for name, seed in (("a", 0), ("b", 0), ("c", 1))]
    first, again, other = (outcome.drawing["validation"] for outcome in curves)
    assert first == again != other


@pytest.mark.usefixtures("needs_bsd")
def test_a_training_can_start_from_another_rescaled_to_its_noise(tmp_path, monkeypatch):
    """[sec:exp_pnp]: before its first step it is the other denoiser at the new noise level."""
    with pytest.raises(
        FileNotFoundError, match=r"does not exist. Run the training 'lls-noise15' of the recipe denoiser-lls first"
    ):
        train("denoiser-lls-10", tmp_path)
    run, _ = train("denoiser-lls", tmp_path)
    job = Run(load("denoiser-lls-10", "smoke"), tmp_path).jobs()[0]
    model = job.spec.build(seed=5)
    context = Context(tmp_path / "runs/x/job", None, 0, lambda record: None, run.sibling)
    start_from(model, job.spec.start, job.noise, context)
    trained = files.load(trained_weights(run.folder, "denoiser-lls", "lls-noise15"))
    x = torch.rand(1, 1, 12, 12)
    torch.testing.assert_close(model(x), Rescaled(trained, 10 / 15)(x), atol=1e-4, rtol=1e-4)
    further, outcome = train("denoiser-lls-10", tmp_path)
    assert outcome.numbers["certificate"] <= 1
    provenance = files.load(trained_weights(further.folder, "denoiser-lls-10", "lls-noise10")).provenance
    assert provenance["start"] == trained.provenance


RECIPE_OF_NO_STEPS = """
extends = "denoiser-lls-5"
[base]
noises = [{noise}]
[smoke.networks]
lls = {{ start = {{ recipe = "denoiser-lls-{{noise}}", network = "lls" }}, steps = 0 }}
"""


@pytest.mark.usefixtures("needs_bsd")
def test_a_network_of_no_steps_is_the_one_it_starts_from_and_that_is_trained_first(tmp_path):
    """The tables show networks that other recipes have trained, for each noise level those of a recipe of its own."""
    path = tmp_path / "own.toml"
    path.write_text(RECIPE_OF_NO_STEPS.format(noise=10))
    run = Run(load(str(path), "smoke"), tmp_path)
    (job,) = run.jobs()
    assert [(of.recipe.name, each.name) for of, each in chain(run, job)[:-1]] == [
        ("denoiser-lls", "lls-noise15"), ("denoiser-lls-10", "lls-noise10")]  # fmt: skip
    results = reproduce(run, lambda job: lambda record: None, workers=2)
    copy = files.load(trained_weights(run.folder, run.recipe.name, "lls-noise10"))
    trained = files.load(trained_weights(run.folder, "denoiser-lls-10", "lls-noise10"))
    x = torch.rand(1, 1, 12, 12)
    torch.testing.assert_close(copy(x), trained(x), atol=1e-6, rtol=1e-5)
    assert results.document["jobs"]["lls-noise10"]["psnr"] == pytest.approx(
        trained.provenance["scores"]["bsd68"]["psnr"]
    )


def test_denoisers_that_are_not_trained_are_one_sentence(tmp_path):
    with pytest.raises(
        FileNotFoundError, match=r"There is no trained denoiser .*: lipspline reproduce table-denoising"
    ):
        trained_weights(tmp_path, "table-denoising", "lls-0-noise15")


def test_a_start_of_the_same_recipe_is_trained_first():
    def job(start: Start | None) -> denoising.DenoiserJob:
        training = DenoiserTraining(1, 1e-3, 1, 40, "crops", "constant", 0.0, 1)
        spec = denoising.DenoiserSpec(activation="relu", channels=2, depth=2, padding_mode="zeros", start=start)
        return denoising.DenoiserJob("relu", spec, 10, training, 1, 1)

    assert needs(job(None)) == ()
    assert needs(job(Start("relu", 15))) == ("relu-noise15",)
    assert needs(job(Start("relu", 15, recipe="other"))) == ()


def test_a_start_without_a_noise_level_is_of_the_same_one():
    recipe = load("table-denoising", "laptop")
    starts = {job.name: job.spec.start for job in recipe.experiment.jobs(recipe.settings)}
    assert starts["lls-1e-4-noise5"] == Start("lls-0", 5)
    assert starts["gs-noise10"] == Start("gs", 10, "denoisers-10")
    assert len(starts) == 33


def test_the_networks_with_a_weight_go_on_with_the_proximal_step():
    recipe = load("table-denoising", "laptop")
    jobs = {job.name: job for job in recipe.experiment.jobs(recipe.settings)}
    first, then = jobs["lls-0-noise10"], jobs["lls-1e-5-noise10"]
    assert (first.steps, then.steps, needs(then)) == (0, 600, ("lls-0-noise10",))
    assert then.training.tv2_prox


def test_a_weight_per_patch_is_one_of_the_mean_over_pixels_divided_by_their_number():
    """The gradient of λ TV² + sum over a patch, divided by its pixels [eq:optim_network]."""
    training = load("table-denoising").settings.training
    assert training.lambda_per == "patch"
    assert training.tv2_weight(1e-3) == pytest.approx(1e-3 / 1600)
    assert replace(training, lambda_per="pixel").tv2_weight(1e-3) == 1e-3


# What the outcomes amount to


def settings(recipe: str):
    return load(recipe, "laptop").settings


def outcomes(scores: dict[str, float]) -> dict[str, Outcome]:
    return {
        f"{name}-noise{noise}": Outcome(
            {"psnr": psnr, "ssim": 0.8, "certificate": 1.0, "regions": 2.0}, 0.0, {"weights": ""}
        )
        for noise in settings("table-denoising").noises
        for name, psnr in scores.items()
    }


PAPER = {
    "relu": 29.76, "av": 30.09, "prelu": 30.11, "gs": 30.11, "hh": 30.11,
    "lls-0": 30.35, "lls-1e-6": 30.38, "lls-1e-5": 30.34, "lls-1e-4": 30.36, "lls-1e-3": 30.31, "lls-1e-2": 29.73,
}  # fmt: skip


@pytest.mark.parametrize(
    ("changes", "broken"),
    [
        ({}, set()),
        ({"gs": 30.4}, {"lls-best"}),
        ({"lls-0": 30.1}, {"lls-best"}),  # at this scale the other splines have been trained for longer
        ({"relu": 30.12}, {"relu-worst"}),
        ({"lls-1e-2": 30.3}, {"too-sparse"}),
    ],
)
def test_the_claims_hold_in_the_paper_and_fail_where_they_should(changes, broken):
    """[table:performance]"""
    report = denoising.report(settings("table-denoising"), outcomes(PAPER | changes), load("table-denoising").expect)
    assert {name for name, verdict in report.verdicts.items() if not verdict.holds} == broken


def region_outcomes(few: float, psnr: float, prefix: str = "") -> dict[str, Outcome]:
    made = settings("table-regions")
    numbers = {"psnr": 30.4, "regions": 9.0, "tolerance": 0.1, "merged_psnr": 30.0, "merged_regions": 8.0}
    changed = {**numbers, f"{prefix}psnr": psnr, f"{prefix}regions": few}
    return {
        f"{name}-noise{noise}": Outcome({**(changed if name == "lls-1e-4" else numbers), "certificate": 1.0}, 0.0)
        for noise in made.noises
        for name in made.networks
    }


@pytest.mark.parametrize(
    ("few", "psnr", "prefix", "holds"),
    [(1.9, 30.31, "", True), (2.1, 30.4, "", False), (1.2, 30.29, "", False), (1.2, 30.4, "merged_", False)],
)
def test_regions_are_free_below_two_as_trained_and_within_a_tenth_of_the_best(few, psnr, prefix, holds):
    """[table:nbr_knots]"""
    found = region_outcomes(few, psnr, prefix)
    verdict = denoising.region_report(settings("table-regions"), found, load("table-regions").expect).verdicts
    assert verdict["sparse-for-free"].holds is holds
    assert ("lls-1e-4" in verdict["sparse-for-free"].evidence) is (few < 2 and psnr > 30.3)


def test_the_tolerance_is_the_largest_that_costs_little(monkeypatch):
    model = plain(denoiser(channels=2, depth=2))
    scores = {0.0: 30.0, 0.1: 29.98, 0.2: 29.96, 0.3: 29.9, 0.4: 29.99}
    monkeypatch.setattr(denoising, "merge", lambda model, tolerance: tolerance)
    monkeypatch.setattr(denoising, "mean_quality", lambda it, images: {"psnr": scores[it if it in scores else 0.0]})
    assert denoising.choose_tolerance(model, [], (0.1, 0.2, 0.3, 0.4), loss=0.05) == 0.2  # type: ignore[arg-type]
    assert denoising.choose_tolerance(model, [], (0.3,), loss=0.05) == 0  # type: ignore[arg-type]
    assert denoising.choose_tolerance(model, [], (), loss=0.05) == 0  # type: ignore[arg-type]


# The shipped weights


@pytest.mark.parametrize(("activation", "noise"), sorted(available()))
def test_a_shipped_denoiser_was_trained_by_its_recipe(activation, noise):
    """What the file says of its training is what the recipe says today."""
    provenance = zoo(activation, noise).provenance
    recipe = f"denoiser-{activation}-{noise}"
    while True:
        (job,) = Run(load(recipe, "laptop")).jobs()
        assert provenance["run"] == f"{recipe}-laptop"
        assert provenance["trained"] == to_json(job)
        if job.spec.start is None:
            break
        provenance, recipe = provenance["start"], job.spec.start.recipe
    assert "start" not in provenance


class Enough(Exception):
    """Raised when a training has shown what was asked for."""


@pytest.mark.slow
@pytest.mark.usefixtures("needs_bsd")
@pytest.mark.parametrize(("activation", "noise"), [key for key in sorted(available()) if key[1] == 15])
def test_training_again_follows_the_validation_curve_of_the_shipped_weights(activation, noise, tmp_path):
    """Up to the first look at the validation images; other machines round differently."""
    seen = []

    def watch(record):
        if record.metrics:
            seen.append([record.step, record.metrics["psnr"]])
            raise Enough

    first = zoo(activation, noise).provenance
    while "start" in first:
        first = first["start"]
    run = Run(load(first["run"].removesuffix("-laptop"), "laptop"), tmp_path)
    with pytest.raises(Enough):
        run_job(run, run.jobs()[0], watch)
    step, psnr = first["validation"][0]
    assert seen[0][0] == step
    assert seen[0][1] == pytest.approx(psnr, abs=0.05)

"""Tuning on some images, testing on others: closed forms, interruptions, and the smoke scales on small phantoms."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from lipspline.formats import nifti
from lipspline.formats.volume import Volume
from lipspline.functional.quality import psnr
from lipspline.networks import denoiser, files, plain
from lipspline.operators import Identity, simulated_maps
from lipspline.paper import gains, networks, reconstruction, scans
from lipspline.paper.experiment import Context
from lipspline.paper.networks import Source
from lipspline.paper.recipe import load
from lipspline.paper.reconstruction import (
    DenoiserComparison,
    Final,
    Images,
    Kept,
    ReconstructionJob,
    ScanKind,
    Search,
    from_text,
    to_text,
    visible,
)
from lipspline.paper.run import Run, reproduce
from lipspline.pnp import ValidationProblem
from paper.toy import silent


class TestImages:
    def test_they_are_spread_evenly(self):
        assert Images("a", 4).numbers(8) == [1, 3, 5, 7]
        assert Images("a", 2, (10, 20)).numbers(128) == [12, 17]

    @pytest.mark.parametrize(("available", "images"), [(3, Images("a.h5", 4)), (9, Images("a.h5", 1, (5, 10)))])
    def test_too_few_are_an_error_that_names_the_file(self, available, images):
        with pytest.raises(ValueError, match=rf"a.h5 has {available} image\(s\), too few to take {images.count}"):
            images.numbers(available)

    @pytest.mark.parametrize("within", [(1,), (3, 3), (-1, 2), (1, 2, 3)])
    def test_a_range_has_two_ends(self, within):
        with pytest.raises(ValueError, match="within must be a first number and one past the last"):
            Images("a", 1, within)


@pytest.mark.skipif(not networks.WEIGHTS.is_dir(), reason="the weights of the paper's tables are in no wheel")
def test_tables_have_all_six_activations_at_three_levels():
    """[table:reconstruction_performance], and GS."""
    made = load("table-mri", "laptop").settings
    jobs = {job.method: job for job in gains.jobs(made, scans.SINGLE_COIL) if job.source is not None}
    assert set(jobs) == {"relu", "av", "prelu", "gs", "hh", "lls"}
    assert {tuple(job.weights) for job in jobs.values()} == {("5", "10", "15")}


def test_networks_use_the_levels_that_all_have(tmp_path, monkeypatch):
    """A table with one network at three levels and another at two would be unfair."""
    monkeypatch.setattr(networks, "WEIGHTS", tmp_path)
    made = load("table-mri", "laptop").settings
    assert made.comparison.search.levels == (5, 10, 15)
    jobs = {job.method: job for job in gains.jobs(made, scans.SINGLE_COIL) if job.source is not None}
    assert set(jobs) == {"relu", "av", "lls"}
    assert {job.search.levels for job in jobs.values()} == {(5, 15)}
    assert {tuple(sorted(job.weights)) for job in jobs.values()} == {("15", "5")}


def test_weights_of_the_equal_budgets_come_before_those_that_ship(tmp_path, monkeypatch):
    monkeypatch.setattr(networks, "WEIGHTS", tmp_path)
    source = networks.Source(activation="hh")
    assert source.load([5, 15]) is None
    files.save(plain(denoiser("hh", 4, 2)), tmp_path / "hh-15.safetensors")
    family = source.load([5, 15])
    assert family is not None
    assert list(family.trained) == [15]
    files.save(plain(denoiser("lls", 4, 2)), tmp_path / "lls-5.safetensors")
    both = networks.Source(activation="lls").load([5, 15])
    assert both is not None
    assert list(both.trained) == [5]


class TestKept:
    def test_results_survive(self, tmp_path):
        kept = Kept(tmp_path / "new" / "a.json", {"job": 1})
        before = kept.seconds
        kept["test/3"], kept["other"] = {"psnr": 30.0}, 1
        again = Kept(tmp_path / "new" / "a.json", {"job": 1})
        assert "test/3" in again
        assert again["test/3"] == {"psnr": 30.0}
        assert again.under("test") == {"3": {"psnr": 30.0}}
        assert again.seconds >= before > 0

    def test_results_of_another_job_are_not_believed(self, tmp_path):
        Kept(tmp_path / "a.json", {"job": 1})["x"] = 1
        assert "x" not in Kept(tmp_path / "a.json", {"job": 2})


def test_pictures_survive_in_eight_bit():
    image = torch.rand(1, 1, 5, 7)
    text = json.loads(json.dumps(to_text(image)))
    assert (from_text(text) - image[0, 0]).abs().max() <= 0.5 / 255 + 1e-6
    assert from_text(to_text(image + 2)).unique().tolist() == [1.0]


def test_complex_images_are_seen_by_their_magnitude():
    assert visible(torch.tensor([3 + 4j, -1])).tolist() == [5.0, 1.0]
    assert visible(torch.tensor([-1.0])).tolist() == [-1.0]


def noisy(image, scan: float, name: str, seed: int) -> ValidationProblem:
    """Denoising: with H = Id and α = 1 the fixed point is `β D(y) + (1 - β) y`."""
    noise = torch.randn(image.shape, generator=torch.Generator().manual_seed(len(name) + int(name[-1])))
    return ValidationProblem(image + scan * noise, Identity((1, 12, 12)), image)


def phantoms(path: Path):
    generator = torch.Generator().manual_seed(3)
    return [torch.rand(1, 1, 12, 12, generator=generator) for _ in range(6)]


DENOISING = ScanKind(phantoms, noisy, {"noisy": lambda problem: problem.y})


def job(**changes) -> ReconstructionJob:
    base = ReconstructionJob(
        case="a",
        scan=0.1,
        method="lls",
        source=Source(activation="lls", untrained=True),
        weights={},
        validation=Images("a", 2, (0, 2)),
        test={"main": Images("a", 3, (2, 5)), "other": Images("b", 1)},
        figure="other",
        search=Search((15,), (5, 15), (0.1, 0.4), 1, True, 9, 1e-5),
        final=Final(1e-6, 200),
    )
    return replace(base, **changes)


def context(folder: Path, observe=lambda record: None) -> Context:
    return Context(folder / "job", folder, 0, observe, lambda recipe: folder)


def test_the_best_pair_of_the_validation_images_is_used_on_the_test_images(tmp_path):
    """[sec:exp_pnp], against the fixed point in closed form."""
    found = reconstruction.run(job(), context(tmp_path), DENOISING).numbers
    best = max(found["trials"], key=lambda trial: trial["score"])
    assert (found["noise"], found["beta"]) == (best["noise"], best["beta"])
    family = job().source.load((15,))  # type: ignore[union-attr]
    assert family is not None
    for number in ("2", "3", "4"):
        truth = phantoms(tmp_path)[int(number)]
        y = noisy(truth, 0.1, f"a/{number}", 0).y
        with torch.no_grad():
            x = best["beta"] * family.at(best["noise"])(y) + (1 - best["beta"]) * y
        assert found["images"]["main"][number]["psnr"] == pytest.approx(psnr(x, truth).item(), abs=1e-3)
    assert list(found["images"]["other"]) == ["3"]
    evidence = [image for group in found["images"].values() for image in group.values()]
    assert all(image["guaranteed"] and image["converged"] for image in evidence)
    assert found["certificate"] <= 1


def test_validation_images_are_not_test_images(tmp_path):
    """The trials score two images each, numbers 0 and 1."""
    trial = reconstruction.run(job(), context(tmp_path), DENOISING).numbers["trials"][0]
    family = job().source.load((15,))  # type: ignore[union-attr]
    assert family is not None
    scores = []
    for number in (0, 1):
        truth = phantoms(tmp_path)[number]
        y = noisy(truth, 0.1, f"a/{number}", 0).y
        with torch.no_grad():
            scores.append(psnr(trial["beta"] * family.at(trial["noise"])(y) + (1 - trial["beta"]) * y, truth).item())
    assert trial["scores"] == pytest.approx(scores, abs=1e-3)


def test_a_baseline_is_scored_as_it_is(tmp_path):
    outcome = reconstruction.run(job(method="noisy", source=None), context(tmp_path), DENOISING)
    problem = noisy(phantoms(tmp_path)[3], 0.1, "b/3", 0)
    assert outcome.numbers["images"]["other"]["3"]["psnr"] == pytest.approx(psnr(problem.y, problem.truth).item())
    assert (from_text(outcome.drawing["truth"]) - problem.truth[0, 0]).abs().max() < 0.003
    assert (from_text(outcome.drawing["value"]) - problem.y[0, 0].clamp(0, 1)).abs().max() < 0.003


@pytest.mark.parametrize("solved", [1, 3, 8, 10])
def test_an_interrupted_job_goes_on_where_it_was(tmp_path, solved):
    """Nothing that was solved is solved again, and the outcome is the same."""
    (tmp_path / "whole").mkdir()
    whole = reconstruction.run(job(), context(tmp_path / "whole"), DENOISING).numbers
    records = []

    def interrupt(record):
        records.append(record)
        if len(records) == solved:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        reconstruction.run(job(), context(tmp_path, interrupt), DENOISING)
    kept = json.loads((tmp_path / "job" / "solved.json").read_text())["values"]
    measured = []

    def counting(image, scan, name, seed):
        measured.append(name)
        return noisy(image, scan, name, seed)

    rest = reconstruction.run(job(), context(tmp_path), replace(DENOISING, measure=counting)).numbers
    tests = {"a/2": "test/main/2", "a/3": "test/main/3", "a/4": "test/main/4", "b/3": "test/other/3"}
    assert [name for name in measured if name in tests] == [name for name, key in tests.items() if key not in kept]
    assert rest["trials"][: min(solved, 4)] == whole["trials"][: min(solved, 4)]
    assert (rest["noise"], rest["beta"]) == (whole["noise"], whole["beta"])
    for number, scores in whole["images"]["main"].items():
        assert rest["images"]["main"][number]["psnr"] == pytest.approx(scores["psnr"], abs=1e-3)


def test_progress_counts_images_and_ends_at_the_end(tmp_path):
    records = []
    reconstruction.run(job(), context(tmp_path, records.append), DENOISING)
    assert [record.step for record in records] == sorted(record.step for record in records)
    assert records[-1].step <= records[-1].steps == job().steps
    assert "psnr" in records[-1].metrics


def test_without_a_continuous_noise_level_every_level_must_be_trained(tmp_path):
    with pytest.raises(ValueError, match=r"no denoiser trained for noise 5, only for 15\. Train it, leave it out"):
        search = Search((15,), (5, 15), (0.1,), 0, False, 9, 1e-5)
        reconstruction.run(job(search=search), context(tmp_path), DENOISING)


def comparison(**sources: Source) -> DenoiserComparison:
    test = {"main": Images("a", 1)}
    return DenoiserComparison(Images("a", 1), test, "main", job().search, job().final, dict(sources))


def test_networks_without_weights_have_no_jobs(monkeypatch, tmp_path):
    monkeypatch.setattr("lipspline.paper.networks.WEIGHTS", tmp_path)
    monkeypatch.setattr("lipspline.paper.networks.available", dict)
    sources = {"av": Source(activation="av", untrained=True), "hh": Source(activation="hh")}
    found = reconstruction.jobs({"x": 1, "y": 2}, comparison(**sources), ("noisy",))
    assert [one.name for one in found] == ["x-noisy", "x-av", "y-noisy", "y-av"]
    assert found[0].source is None
    assert list(found[1].weights) == ["15"]


def test_the_figure_must_show_a_test_set():
    with pytest.raises(ValueError, match="figure names the test set 'brain'; known: main"):
        replace(comparison(), figure="brain")


@pytest.fixture(scope="module")
def phantom_data(tmp_path_factory) -> Path:
    """A data folder with small phantoms in place of the images that the recipes name."""
    h5py = pytest.importorskip("h5py")
    pytest.importorskip("nibabel")
    folder = tmp_path_factory.mktemp("data")
    (folder / "mri").mkdir()
    (folder / "ct").mkdir()
    y, x = torch.meshgrid(torch.linspace(-1, 1, 48), torch.linspace(-1, 1, 80), indexing="ij")
    discs = torch.stack([((x - 0.1 * i) ** 2 + y**2 < 0.5).float() * (1 + 0.3 * torch.sin(9 * x)) for i in range(5)])
    with h5py.File(folder / "mri" / "knee_stanford.h5", "w") as file:
        file["reconstruction_rss"] = 1000 * discs.numpy()
    square = torch.nn.functional.interpolate(discs[:, None], (48, 48))[:, 0]
    nifti.write(folder / "mri" / "brain_vsseg.nii.gz", Volume(700 * square))
    coils = discs[0] * simulated_maps(4, (48, 80))
    kspace = torch.fft.fftshift(torch.fft.fft2(torch.fft.ifftshift(coils, dim=(1, 2)), norm="ortho"), dim=(1, 2))
    with h5py.File(folder / "mri" / "brain_mprage_4ch.h5", "w") as file:
        file["kspace"] = kspace[None].numpy().astype(np.complex64)
    hounsfield = 1500 * torch.nn.functional.interpolate(discs[:, None], (32, 32))[:, 0] - 1000
    nifti.write(folder / "ct" / "torso_acrin.nii.gz", Volume(hounsfield.repeat(6, 1, 1)))
    return folder


@pytest.mark.parametrize(("name", "baselines"), [("table-mri", 1), ("table-multicoil", 1), ("table-ct", 2)])
def test_the_smoke_scales_run_on_phantoms(name, baselines, phantom_data, tmp_path):
    """[table:reconstruction_performance, table:reconstruction_performance_mri, table:reconstruction_performance_ct]"""
    recipe = load(name, "smoke")
    whole = recipe.settings.comparison
    two = replace(whole, networks={name: whole.networks[name] for name in ("relu", "lls")})
    one = dict(list(recipe.settings.scans.items())[:1])
    recipe = replace(recipe, settings=replace(recipe.settings, scans=one, comparison=two))
    results = reproduce(Run(recipe, tmp_path, phantom_data), silent)
    assert len(results.document["jobs"]) == len(results.report.tables[0].ours) == baselines + 2
    assert results.document["claims"]["certified"]["holds"]
    assert "other data than the paper's" in results.text
    for outcome in results.document["jobs"].values():
        assert {group: len(found) for group, found in outcome["images"].items()} == {
            group: images.count for group, images in two.test.items()
        }
    assert results.files[1].stat().st_size > 1000

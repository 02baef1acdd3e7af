"""The inception score, and the smoke scales of the two experiments on digits [sec:WGAN, tab:wasserstein_results]."""

import math

import pytest
import torch

from lipspline.paper import wgan
from lipspline.paper.recipe import load
from lipspline.paper.run import Run, run_job
from lipspline.paper.wgan import GeneratorSpec, inception_score, sample, trained_generator


def test_the_inception_score_counts_the_classes_that_are_hit_surely_and_evenly():
    """[tab:inception_scores]"""
    assert inception_score(torch.eye(10)[:4].repeat(3, 1)) == pytest.approx(4)
    assert inception_score(torch.eye(10)[:1].repeat(5, 1)) == pytest.approx(1)
    p = torch.tensor([[0.75, 0.25], [0.25, 0.75]])
    assert inception_score(p) == pytest.approx(math.exp(0.75 * math.log(1.5) + 0.25 * math.log(0.5)))


def test_an_epoch_shows_every_image_to_the_critic_once():
    training = wgan.GanTraining(60000, 2, 64, 5, 1e-3, 1e-4)
    assert training.steps == 2 * 60000 // (64 * 5)


def test_samples_do_not_depend_on_how_they_are_cut():
    generate = GeneratorSpec(5, 16, 8, 4).build()
    z = torch.randn(7, 5)
    assert torch.allclose(sample(generate, z, chunk=3), sample(generate, z), atol=1e-6)


def test_a_missing_generator_says_how_to_make_it(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"There is no trained generator .* lipspline reproduce wgan-mnist"):
        trained_generator(tmp_path, "wgan-mnist", "gs")


def test_missing_digits_are_one_sentence(tmp_path, monkeypatch):
    monkeypatch.delenv("LIPSPLINE_DATA", raising=False)
    run = Run(load("wgan-mnist", "smoke"), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"No data folder is named\. Give data, .*LIPSPLINE_DATA"):
        run_job(run, run.jobs()[0], lambda record: None)


@pytest.mark.usefixtures("needs_mnist")
def test_the_smoke_scales_train_six_gans_and_measure_their_distance_to_real_digits(smoke):
    """[tab:inception_scores, tab:wasserstein_results]"""
    gans = smoke("wgan-mnist")
    jobs = gans.document["jobs"]
    assert list(jobs) == ["classifier", "relu", "av", "prelu", "gs", "hh", "lls"]
    assert all(1 <= jobs[name]["inception_score"] <= 10 for name in list(jobs)[1:])
    assert all(jobs[name]["certificate"] <= 1 + 1e-5 for name in list(jobs)[1:])
    assert jobs["classifier"]["accuracy"] > 0.2
    distances = smoke("w1-mnist").document
    assert len(distances["jobs"]) == 6
    assert distances["claims"]["certified"]["holds"]
    assert {"validation", "test"} <= distances["jobs"]["depth3-lls-0"].keys()

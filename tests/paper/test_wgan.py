"""The inception score, and the smoke scales of the two experiments on digits [sec:WGAN, tab:wasserstein_results]."""

import math

import pytest
import torch

from lipspline.paper import w1_mnist, wgan
from lipspline.paper.experiment import Outcome
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


def test_lls_is_best_only_beyond_what_the_seeds_explain():
    """[tab:inception_scores]"""
    judged = {"classifier": Outcome({"accuracy": 0.995}, 0.0), "lls": Outcome({"certificate": 1.0}, 0.0)}
    rival, ahead, level = [8.0, 8.1, 8.2], [8.5, 8.5, 8.7], [8.6, 7.9, 8.2]
    claims = [wgan._verdicts({"relu": [7.0] * 3, "gs": rival, "lls": lls}, judged) for lls in (ahead, level)]
    assert [(claim["relu-lowest"].holds, claim["lls-best"].holds) for claim in claims] == [(True, True), (True, False)]
    assert "LLS minus gs: +0.467 ± 0.14" in claims[0]["lls-best"].evidence
    assert wgan._verdicts({"gs": [8.0], "lls": [8.1]}, judged)["lls-best"].evidence.endswith("one seed")


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


def test_deeper_networks_estimate_more_only_if_all_of_them_do():
    """[tab:wasserstein_results]"""
    rows = {"3": {"gs": (1.1,), "lls": (1.2,)}, "7": {"gs": (1.3,), "lls": (1.4,)}}
    assert w1_mnist.deeper_more(rows).holds
    assert not w1_mnist.deeper_more(rows | {"5": {"gs": (1.2,), "lls": (1.5,)}}).holds
    assert not w1_mnist.deeper_more({"3": rows["3"]}).holds


@pytest.mark.parametrize("generated", [0, 30])
def test_generated_digits_are_fresh_or_drawn_from_a_pool(generated):
    generate = GeneratorSpec(5, 16, 8, 4).build().eval()
    source = w1_mnist.fresh(generate, 5)
    pool = source(30, torch.Generator().manual_seed(1))
    draw = w1_mnist.sampler(torch.rand(9, 1, 28, 28), w1_mnist.drawn_from(pool) if generated else source)
    real, fake = draw(4, torch.Generator().manual_seed(2))
    assert real.shape == fake.shape == (4, 784)
    known = (fake.unsqueeze(1) == pool.flatten(1)).all(dim=2).any(dim=1)
    assert known.all() if generated else not known.any()


@pytest.mark.usefixtures("needs_mnist")
def test_the_smoke_scales_train_six_gans_and_measure_their_distance_to_real_digits(smoke):
    """[tab:inception_scores, tab:wasserstein_results]"""
    gans = smoke("wgan-mnist")
    jobs = gans.document["jobs"]
    networks = ["relu", "av", "prelu", "gs", "hh", "lls"]
    assert list(jobs) == ["classifier", *networks, *(f"{name}-1" for name in networks)]
    assert jobs["gs"]["w1"] != jobs["gs-1"]["w1"]  # another seed
    assert len(gans.document["tables"][0]["ours"]["score"]["gs"]) == 2  # a mean and its interval
    assert all(1 <= jobs[name]["inception_score"] <= 10 for name in list(jobs)[1:])
    assert all(jobs[name]["certificate"] <= 1 + 1e-5 for name in list(jobs)[1:])
    assert jobs["classifier"]["accuracy"] > 0.2
    distances = smoke("w1-mnist").document
    assert len(distances["jobs"]) == 6
    assert distances["claims"]["certified"]["holds"]
    assert {"validation", "test"} <= distances["jobs"]["depth3-lls-0"].keys()

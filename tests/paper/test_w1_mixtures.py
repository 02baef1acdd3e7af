"""Pairs with a known distance, and the smoke scale of the mixtures [tab:wasserstein_bigaussian]."""

import pytest
import torch

from lipspline._infra.randomness import generator
from lipspline.functional.transport import discrete_w1
from lipspline.paper import w1_mixtures
from lipspline.paper.experiment import Outcome
from lipspline.paper.networks import relu_lowest
from lipspline.paper.recipe import load
from lipspline.paper.w1_mixtures import DistributionPair, mixtures, mover, sampler

KNOWN = [DistributionPair(kind, 3, 0, distance=0.3, funnels=4) for kind in ("translation", "min-funnel")]


@pytest.mark.parametrize("pair", KNOWN, ids=lambda pair: pair.kind)
def test_the_mean_length_of_the_moves_is_the_exact_distance_of_samples_and_images(pair):
    """[wasserstein], against linear programming."""
    x = mixtures(pair)[0].sample(150, generator(0, "x")).double()
    y, length = mover(pair)(x.float())
    assert (y - x).norm(dim=1).mean().item() == pytest.approx(length.mean().item(), rel=1e-5)
    assert discrete_w1(x, y) == pytest.approx(length.mean().item(), rel=1e-5)
    assert length.max().item() == pytest.approx(0.3 * 3, rel=1e-5)


@pytest.mark.parametrize("pair", KNOWN, ids=lambda pair: pair.kind)
def test_training_draws_both_sets_independently(pair):
    x, y = sampler(pair)(50, generator(0, "x"))
    assert (torch.cdist(x, x[:1]) == 0).sum() == 1
    assert not torch.allclose(mover(pair)(x)[0], y)


def test_the_mixtures_have_the_moments_of_the_paper():
    """Half a Gaussian with covariance AᵀA each [sec:EvalExp]."""
    pair = DistributionPair("mixture", 4, 1)
    first, second = mixtures(pair)
    x, y = sampler(pair)(400_000, generator(0, "x"))
    for sample, mixture in ((x, first), (y, second)):
        assert torch.allclose(sample.mean(0), mixture.means.mean(0), atol=0.03)
        second_moment = (
            mixture.factors.mT @ mixture.factors + mixture.means.unsqueeze(2) * mixture.means.unsqueeze(1)
        ).mean(0)
        assert torch.allclose(sample.T @ sample / len(sample), second_moment, atol=0.1)


def test_the_pair_depends_on_its_seed_and_not_on_the_network():
    jobs = w1_mixtures.jobs(load("w1-mixtures", "laptop").settings)
    pairs = {job.pair for job in jobs if job.pair.dimension == 10 and job.pair.kind == "mixture"}
    assert len(pairs) == 1
    assert {job.pair.dimension for job in jobs if job.pair.kind == "min-funnel"} == {2, 5, 10, 20, 64}


def test_the_smoke_scale_estimates_certifies_and_stays_below_exact_transport(smoke):
    results = smoke("w1-mixtures")
    jobs = results.document["jobs"]
    assert len(jobs) == 2 * 6 + 6 + 2  # the paper's pairs have two trainings, with different seeds
    assert jobs["mixture-5-lls"]["estimates"] != jobs["mixture-5-lls-1"]["estimates"]
    assert len(results.document["tables"][1]["ours"]["5"]["lls"]) == 2
    assert all(numbers["certificate"] <= 1 + 1e-5 for numbers in jobs.values())
    checked = [numbers for numbers in jobs.values() if "discrete" in numbers]
    assert len(checked) == 2
    assert all(numbers["discrete_estimate"] <= numbers["discrete"] for numbers in checked)
    known = [numbers for numbers in jobs.values() if "truths" in numbers]
    assert all(e <= t + 1e-5 for numbers in known for e, t in zip(numbers["estimates"], numbers["truths"], strict=True))
    assert results.document["claims"]["below-truth"]["holds"]
    assert results.document["tables"][0]["paper"]["5"]["lls"] == [2.283, 0.006]


def test_verdicts_follow_the_numbers():
    outcomes = {
        "a": Outcome({"certificate": 1.0, "estimates": [2.0], "truths": [2.1]}, 0.0),
        "b": Outcome({"certificate": 1.1, "estimates": [2.0]}, 0.0),
    }
    estimates = {"5": {"relu": (1.0, 0.0), "lls": (2.0, 0.0)}}
    errors = {"translation": {"5": {"relu": (0.2,), "lls": (0.04,)}, "64": {"lls": (0.5,)}}}
    verdicts = w1_mixtures._verdicts(estimates, errors, outcomes)
    assert {name: verdict.holds for name, verdict in verdicts.items()} == {
        "relu-lowest": True,
        "below-truth": True,
        "best-within-5-percent": True,
        "certified": False,
    }
    outcomes["a"].numbers["estimates"] = [2.2]
    assert not w1_mixtures._verdicts(estimates, errors, outcomes)["below-truth"].holds
    estimates["10"] = {"relu": (3.0, 0.0), "lls": (2.0, 0.0)}
    assert not w1_mixtures._verdicts(estimates, errors, outcomes)["relu-lowest"].holds


def test_lls_is_best_only_beyond_what_the_seeds_explain():
    """[tab:wasserstein_bigaussian]"""
    seeds = {("5", "lls"): [2.0, 2.1, 2.2], ("5", "gs"): [1.9, 2.0, 2.15], ("10", "lls"): [3.0, 3.1, 3.2]}
    clear = w1_mixtures._lls_best(seeds | {("10", "gs"): [2.0, 2.15, 2.1]})
    assert clear.holds
    assert "N = 5: +0.0833 ± 0.072 over gs; N = 10: +1.02 ± 0.19 over gs" in clear.evidence
    noise = w1_mixtures._lls_best(seeds | {("5", "gs"): [1.0, 1.1, 1.25], ("10", "gs"): [3.2, 2.9, 3.1]})
    assert not noise.holds
    assert w1_mixtures._lls_best(seeds | {("5", "gs"): [1.0, 1.1, 1.25], ("10", "gs"): [2.0, 2.1, 2.25]}).holds
    assert not w1_mixtures._lls_best({("5", "lls"): [2.0], ("5", "gs"): [1.0]}).holds


def test_options_of_an_unknown_network_are_an_error(tmp_path):
    from lipspline.paper.recipe import shipped

    path = tmp_path / "mine.toml"
    path.write_text(shipped()["w1-mixtures"].read_text().replace("gs = { size = 4 }", "gz = { size = 4 }"))
    with pytest.raises(ValueError, match=r"options.10 names the unknown network 'gz'; known: relu, av"):
        load(path)


def test_relu_is_lowest_where_its_number_is_whatever_their_signs():
    """A ratio would call 0.5 lower than -0.2."""
    assert relu_lowest({"5": {"relu": (4.1, 0.0), "gs": (4.5, 0.0)}}).holds
    assert not relu_lowest({"5": {"relu": (0.5, 0.0), "gs": (-0.2, 0.0)}}).holds
    assert relu_lowest({"5": {"relu": (-0.5, 0.0), "gs": (-0.2, 0.0)}}).holds
    assert not relu_lowest({"5": {"relu": (1.0, 0.0), "gs": (2.0, 0.0)}, "9": {"relu": (2.0, 0), "gs": (1.0, 0)}}).holds

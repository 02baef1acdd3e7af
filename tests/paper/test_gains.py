"""Tables and verdicts of the reconstructions, on made-up scores."""

import pytest

from lipspline.paper import gains
from lipspline.paper.experiment import Expectation, Outcome, Value
from lipspline.paper.networks import Source
from lipspline.paper.reconstruction import DenoiserComparison, Final, Images, ReconstructionJob, Search, to_text

SEARCH, FINAL, IMAGES = Search((15,), (5,), (0.1,), 0, True, 9, 1e-4), Final(1e-4, 100), Images("a", 2)
PUBLISHED: dict[str, dict[str, Value]] = {"direct": {"psnr easy": (20.0,)}, "lls": {"psnr easy": (24.5,)}}


def picture():
    import torch

    return to_text(torch.rand(1, 1, 8, 8))


def outcome(scores: list[float], *, tuned: bool, beta: float = 0.3, good: bool = True) -> Outcome:
    evidence = {"guaranteed": True, "converged": good, "denoiser_calls": 7} if tuned else {}
    images = {str(i): {"psnr": score, "ssim": score / 64, **evidence} for i, score in enumerate(scores)}
    numbers = {"images": {"main": images, "other": {"0": images["0"]}}}
    if tuned:
        numbers |= {"noise": 5.0, "beta": beta, "certificate": 0.999}
    return Outcome(numbers, 1.0, {"truth": picture(), "value": picture()})


def report(scores: dict[str, list[float]], goal: float = 3.0, **options):
    """A report on made-up scores of a baseline and of networks, for one case and two images."""
    networks = {name: Source(activation=name, untrained=True) for name in scores if name != "direct"}  # type: ignore[arg-type]
    test = {"main": IMAGES, "other": Images("b", 1)}
    jobs = [
        ReconstructionJob("easy", 0, name, networks.get(name), {"15": "abc"}, IMAGES, test, "main", SEARCH, FINAL)
        for name in scores
    ]
    outcomes = {
        job.name: outcome(scores[job.method], tuned=job.source is not None, **(options if job.source else {}))
        for job in jobs
    }
    sources = {**networks, "hh": Source(activation="hh")}
    comparison = DenoiserComparison(IMAGES, test, "main", SEARCH, FINAL, sources)
    expect = Expectation({"main": PUBLISHED, "goals": {"lls": {"easy": (goal,)}}})
    return gains.assess(comparison, jobs, outcomes, expect, "direct")


GOOD = {"direct": [20.0, 30.0], "relu": [22.0, 31.0], "av": [23.0, 31.5], "lls": [24.0, 33.0]}


def test_scores_are_means_and_gains_are_over_the_baseline():
    """[table:reconstruction_performance]"""
    scores, gain, other, other_gain, tuned = report(GOOD).tables
    assert scores.ours["lls"] == {"psnr easy": (28.5,), "ssim easy": (28.5 / 64,)}
    assert gain.ours == {"relu": {"easy": (1.5,)}, "av": {"easy": (2.25,)}, "lls": {"easy": (3.5,)}}
    assert gain.paper == {"lls": {"easy": (4.5,)}}
    assert other.ours["av"]["psnr easy"] == (23.0,)
    assert other_gain.ours["av"]["easy"] == (3.0,)
    assert other.paper == {}
    assert tuned.ours["lls"] == {"noise easy": (5.0,), "beta easy": (0.3,)}


def test_every_comparison_says_that_the_data_are_others_and_what_was_left_out():
    tables = report(GOOD).tables
    assert all("other data than the paper's" in table.title for table in tables[:4])
    assert "mean over 2 image(s)" in tables[0].title
    assert "trained for 15, rescaled above these levels and averaged with the identity below" in tables[4].title
    assert tables[4].title.endswith("left out for lack of weights: hh")


def test_all_claims_hold_on_good_scores():
    verdicts = report(GOOD).verdicts
    assert all(verdict.holds for verdict in verdicts.values())
    assert "2 of 2 against relu, 2 of 2 against av" in verdicts["lls-best"].evidence
    assert verdicts["gain"].evidence == "lls at easy: +3.50 of +3.00 dB"
    assert "2 of 2" not in verdicts["certified"].evidence
    assert verdicts["certified"].evidence.startswith("9 of 9 reconstructions, at most 7 denoiser calls")


@pytest.mark.parametrize(
    ("claim", "scores", "options"),
    [
        ("lls-best", {**GOOD, "av": [24.5, 31.0]}, {}),
        ("order", {**GOOD, "relu": [23.0, 31.6]}, {}),
        ("gain", GOOD, {"goal": 3.6}),
        ("beta-below-half", GOOD, {"beta": 0.5}),
        ("certified", GOOD, {"good": False}),
        ("order", {"direct": [1.0, 1.0], "lls": [2.0, 2.0]}, {}),
        ("lls-best", {"direct": [1.0, 1.0], "lls": [2.0, 2.0]}, {}),
        ("gain", {"direct": [1.0, 1.0], "av": [9.0, 9.0]}, {}),
        ("certified", {"direct": [1.0, 1.0]}, {}),
        ("beta-below-half", {"direct": [1.0, 1.0]}, {}),
    ],
)
def test_a_claim_can_fail(claim, scores, options):
    assert not report(scores, **options).verdicts[claim].holds


def test_one_lost_image_is_counted():
    verdict = report({**GOOD, "av": [24.5, 31.0]}).verdicts["lls-best"]
    assert verdict.evidence == "images won by LLS: easy: 2 of 2 against relu, 1 of 2 against av"


def test_without_any_weights_the_baseline_is_reported():
    found = report({"direct": [20.0, 30.0]})
    assert [len(table.ours) for table in found.tables] == [1, 0, 1, 0]


def test_the_figure_shows_the_truth_and_every_method():
    """[fig:mri]"""
    figure = report(GOOD).figures["reconstructions"]()
    titles = [axes.get_title() for axes in figure.axes]
    assert titles[:2] == ["easy\ntruth", "easy\ndirect, 20.00 dB"]
    assert len(titles) == 5

"""Every line of a certificate has a value, a sentence, and says how we know."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from lipspline import declare, operators, pnp
from lipspline.pnp.batch import Status
from lipspline.priors.sparsity import TotalVariation
from lipspline.report import Agreement, DataMisfit
from lipspline.report.plain_words import (
    TELLING,
    at_most,
    certificate_lines,
    lines_text,
    one_part_in,
    percent,
)
from lipspline.report.section import headline


def solved(**options):
    H = operators.Identity((1, 4, 4))
    denoiser = options.pop("denoiser", nn.ReLU())
    return pnp.fbs(torch.rand(1, 1, 4, 4), H, denoiser, **{"tol": 1e-3, **options}).certificate


CERTIFICATES = {
    "proven": lambda: solved(),
    "accelerated": lambda: solved(accelerate=True),
    "contraction": lambda: solved(contraction=0.9),
    "without guarantee": lambda: solved(guarantee=False),
    "without bound": lambda: solved(denoiser=torch.relu, guarantee=False),
    "expansive": lambda: solved(denoiser=declare(lambda x: 1.1 * x, 1.1, "test"), guarantee=False, max_steps=3),
    "long step": lambda: solved(step=2.5, guarantee=False, max_steps=3),
    "ended early": lambda: solved(beta=0.1, step=0.1, max_steps=2),
}


@pytest.mark.parametrize("name", CERTIFICATES)
def test_every_line_is_a_sentence_with_a_value(name):
    groups = certificate_lines(CERTIFICATES[name]())
    assert [len(lines) for lines in groups.values()] == [6, 2, 5]
    for line in (line for lines in groups.values() for line in lines):
        assert line.name
        assert line.value
        assert line.sentence[0].isupper()
        assert line.sentence.endswith(".")


def lines(name):
    return told(CERTIFICATES[name]())


def told(certificate):
    return {line.name: line for group in certificate_lines(certificate).values() for line in group}


def test_what_is_proven_is_called_proven_and_nothing_else():
    """[eq:pnp_fbs], [eq:EstForward]: the standing follows the certificate."""
    standings = {name: line.standing for name, line in lines("proven").items()}
    assert standings == {
        "Convergence": "proven",
        "Data stability": "proven",
        "Image stability, by the scanner": "proven",
        "Image stability, by shrinking": "not claimed",
        "Image stability, sharper": "not claimed",
        "Distance to the answer": "proven",
        "Last change": "measured",
        "Steps": "measured",
        "Denoiser D": "proven",
        "Weight β": "chosen",
        "Step α": "proven",
        "Scanner model ‖H‖": "proven",
        "Model and its reverse": "measured",
    }


@pytest.mark.parametrize("name", ["without guarantee", "without bound", "expansive", "long step"])
def test_without_guarantee_nothing_is_promised(name):
    found = lines(name)
    assert found["Convergence"].standing == "violated"
    assert found["Convergence"].value == "not proven"
    promised = ("Data stability", "Image stability, by the scanner", "Image stability, by shrinking")
    assert all(found[name].standing == "not claimed" for name in promised)
    assert found["Distance to the answer"].standing == "not claimed"


@pytest.mark.parametrize(
    ("name", "line"), [("without bound", "Denoiser D"), ("expansive", "Denoiser D"), ("long step", "Step α")]
)
def test_the_broken_hypothesis_is_pointed_at(name, line):
    assert lines(name)[line].standing == "violated"


def test_an_unfinished_calculation_says_so():
    found = lines("ended early")["Last change"]
    assert found.standing == "violated"
    assert "ended early" in found.sentence


def test_constants_are_those_of_the_certificate():
    """[eq:EstCont]: α ‖H‖ K / (1 - K) with α = ‖H‖ = 1 and K = 0.9."""
    certificate = CERTIFICATES["contraction"]()
    found = told(certificate)
    assert float(found["Image stability, by shrinking"].value.removeprefix("≤ ")) == pytest.approx(9, rel=2e-6)
    assert "times as much" in found["Image stability, by shrinking"].sentence
    assert found["Convergence"].value == "to the only answer"
    distance = found["Distance to the answer"]
    share = float(distance.value.removeprefix("≤ ").removesuffix(" % of the image"))
    assert share / 100 >= certificate.relative_distance > 0
    assert float(distance.sentence.split("≤ ")[1].removesuffix(".")) >= certificate.distance


def test_a_loose_bound_on_the_distance_says_what_to_do():
    certificate = CERTIFICATES["contraction"]()
    loose = told(replace(certificate, relative_distance=0.4))["Distance to the answer"]
    assert loose.value == "≤ 40 % of the image"
    assert "a smaller tolerance makes the proof say so" in loose.sentence
    assert "tolerance" not in told(certificate)["Distance to the answer"].sentence


def test_an_image_of_zeros_has_a_distance_but_no_share():
    zero = told(replace(CERTIFICATES["contraction"](), relative_distance=None))["Distance to the answer"]
    assert "%" not in zero.value


@given(st.floats(1e-12, 1e12), st.integers(1, 8))
def test_a_bound_in_print_is_a_bound(bound, digits):
    """Rounded up, and by less than a unit in the last digit."""
    shown = float(at_most(bound, digits))
    assert bound <= shown * (1 + 1e-15)
    assert shown <= bound * (1 + 10.0 ** (1 - digits))


def test_infinity_has_a_sign():
    assert at_most(float("inf")) == "∞"


@pytest.mark.parametrize(
    ("share", "wanted"),
    [(1e-5, "1 part in 100,000"), (0.034, "1 part in 29"), (0.0, "nothing"), (0.9, "about all of itself")],
)
def test_shares_in_words(share, wanted):
    assert one_part_in(share) == wanted


def test_the_residual_shown_is_the_last_one():
    certificate = replace(CERTIFICATES["proven"](), residual=0.000123)
    assert certificate_lines(certificate)["What happened"][0].value == "0.00012"


@pytest.mark.parametrize(
    ("value", "noise", "explained"),
    [
        (0.0324, 0.0398, True),  # a head, four coils, 4 times accelerated
        (0.0299, 0.0298, True),  # the same, 8 times
        (0.0236, 0.0273, True),  # a torso, 120 angles
        (0.0695, 0.0708, True),  # the same, more noise
        (0.0032, 0.0023, True),  # next to no noise
        (0.0604, 0.0273, False),  # the torso in an image that is too small
        (0.0832, 0.0270, False),  # 360 degrees taken for 180
        (0.0588, 0.0272, False),  # the axis of rotation off by 4 detectors
        (0.64, 0.003, False),  # transposed
        (0.30, 0.10, False),  # whatever the noise
        (0.01, 0.0, True),
        (0.0100001, 0.0, False),
    ],
)
def test_a_misfit_beyond_noise_and_small_errors_of_the_model_is_called_one(value, noise, explained):
    misfit = DataMisfit(value, noise)
    line = certificate_lines(CERTIFICATES["proven"](), misfit)["What happened"][0]
    assert misfit.explained == explained
    assert line.standing == ("measured" if explained else "violated")
    assert percent(value) in line.sentence
    assert percent(noise) in line.sentence


MEASURED = {  # misfit, noise, what neighbours have in common; docs/guarantee.md
    "tooth": (0.0220, 0.0158, 0.34, Agreement.EXPLAINED),
    "disc, pixels of four detectors": (0.0101, 0.0057, 0.43, Agreement.EXPLAINED),
    "torso, 128 angles": (0.0039, 0.0117, 0.12, Agreement.EXPLAINED),
    "fan, noise 0.001": (0.0050, 0.0091, 0.0, Agreement.EXPLAINED),
    "head, four coils, maps estimated": (0.0419, 0.0404, 0.0, Agreement.EXPLAINED),
    "tooth, pixels of three detectors": (0.0264, 0.0158, 0.37, Agreement.DOUBTFUL),
    "a misfit of 1.3 % with noise of 0.56 %": (0.013, 0.0056, 0.0, Agreement.DOUBTFUL),
    "torso, axis half a detector off": (0.0076, 0.0097, 0.89, Agreement.DOUBTFUL),
    "torso, axis a detector off": (0.0156, 0.0097, 0.94, Agreement.DOUBTFUL),
    "torso, cropped": (0.0095, 0.0119, 0.76, Agreement.DOUBTFUL),
    "torso, axis two detectors off": (0.0310, 0.0097, 0.95, Agreement.UNEXPLAINED),
    "tooth, axis two detectors off": (0.0322, 0.0158, 0.61, Agreement.UNEXPLAINED),
    "tooth, 170 degrees taken for 180": (0.0417, 0.0158, 0.74, Agreement.UNEXPLAINED),
    "fan taken for parallel beams": (0.0466, 0.0117, 0.70, Agreement.UNEXPLAINED),
    "disc, 180 degrees taken for 90": (0.0354, 0.0057, 0.94, Agreement.UNEXPLAINED),
    "head, rows out of phase": (0.0823, 0.0559, 0.0, Agreement.UNEXPLAINED),
    "head, maps of other coils": (0.805, 0.040, 0.0, Agreement.UNEXPLAINED),
}


@pytest.mark.parametrize("scan", MEASURED)
def test_a_misfit_is_explained_doubtful_or_not_explained(scan):
    value, noise, common, fit = MEASURED[scan]
    misfit = DataMisfit(value, noise, estimated=True, common=common)
    line = certificate_lines(CERTIFICATES["proven"](), misfit)["What happened"][0]
    facts = dict(headline(CERTIFICATES["proven"](), misfit, None))
    assert misfit.fit is fit
    assert line.value.endswith("doubtful") == (fit is Agreement.DOUBTFUL)
    assert ("geometry that is a little wrong" in line.sentence) == (fit is Agreement.DOUBTFUL)
    assert ("More than half of this is no noise" in line.sentence) == (fit is Agreement.DOUBTFUL and common > 0.5)
    assert facts.get("Fit to the measurements doubtful") == ("moot" if fit is Agreement.DOUBTFUL else None)
    assert ("good" in facts.values()) == (fit is not Agreement.UNEXPLAINED)


def test_a_terminal_gets_the_words_of_the_page():
    lines = certificate_lines(CERTIFICATES["proven"](), DataMisfit(0.01, 0.01))
    text = lines_text(lines, 60)
    flat = " ".join(text.split())
    for line in (line for group in lines.values() for line in group):
        assert f"{line.name}: {line.value} ({line.standing}) {line.sentence}" in flat
    assert max(map(len, text.splitlines())) <= 60


def test_a_bound_that_somebody_vouches_for_is_called_so():
    """By `declare`, anywhere in the denoiser; what rests on it is not called proven."""
    vouched = nn.Sequential(nn.ReLU(), declare(lambda x: x.clamp_max(1), 1.0, "a projection"))
    found = told(solved(denoiser=vouched))
    assert found["Denoiser D"].standing == "vouched for"
    assert "(a projection)" in found["Denoiser D"].sentence
    assert found["Convergence"].standing == "vouched for"
    assert lines("proven")["Denoiser D"].standing == "proven"


def test_the_end_of_precision_is_no_violation():
    ended = replace(CERTIFICATES["ended early"](), status=Status.ROUND_OFF)
    assert told(ended)["Last change"].standing == "measured"
    assert "rounded too coarsely" in told(ended)["Last change"].sentence
    assert ("Settled", "good") in headline(ended, None, None)
    assert ("Not settled", "bad") in headline(CERTIFICATES["ended early"](), None, None)


def test_a_bound_that_tells_little_has_no_tick():
    """Of two passes the bound on data is often above a hundred."""
    one_pass = pnp.minimize(torch.rand(1, 1, 4, 4), operators.Identity((1, 4, 4)), TotalVariation(), 0.1).certificate
    assert any(text.startswith("Data stability") and kind == "good" for text, kind in headline(one_pass, None, None))
    moving = replace(one_pass, setting=replace(one_pass.setting, moving=50.0, smallest=None, convexity=1e-3))
    (data,) = (pair for pair in headline(moving, None, None) if pair[0].startswith("Data stability"))
    assert data[1] == "moot"
    found = told(moving)["Data stability"]
    assert found.sentence.endswith(
        "So large a bound holds, but says little in practice; the prior ridge has smaller ones."
    )


def test_only_a_large_bound_is_called_large_and_only_two_passes_are_compared_with_one():
    one_pass = pnp.minimize(torch.rand(1, 1, 4, 4), operators.Identity((1, 4, 4)), TotalVariation(), 0.1).certificate
    gentle = replace(one_pass, setting=replace(one_pass.setting, moving=0.1, smallest=None, convexity=1e-3))
    constants = {estimate.label: estimate.constant for estimate in gentle.setting.estimates()}
    assert TELLING < constants["minimiser:data"] < 3
    assert "large" not in told(gentle)["Data stability"].sentence
    weak = replace(one_pass, setting=replace(one_pass.setting, smallest=None, convexity=1e-5))
    assert told(weak)["Image stability"].sentence.endswith("So large a bound holds, but says little in practice.")


def test_an_image_that_does_not_fit_has_no_ticks():
    kinds = {kind for _, kind in headline(CERTIFICATES["proven"](), DataMisfit(0.5, 0.01), True)}
    assert kinds == {"bad", "moot"}


def test_an_estimate_of_noise_that_is_too_large_explains_nothing():
    """Signal was taken for noise; in a simulation, and where noise was measured, it is what it is."""
    assert DataMisfit(0.35, 0.38).explained
    misfit = DataMisfit(0.35, 0.38, estimated=True)
    line = certificate_lines(CERTIFICATES["proven"](), misfit)["What happened"][0]
    assert not misfit.explained
    assert line.standing == "violated"
    assert "estimated at 38 %, which is hardly possible" in line.sentence
    assert "frequency zero lies in the middle" in line.sentence
    assert DataMisfit(0.2, 0.24, estimated=True).explained

"""Certified radii that are reached, accuracies, and losses beside their definitions."""

import math
from fractions import Fraction

import pytest
import torch
from torch.nn import functional as F

import lipspline
from lipspline import robust


def nearest_change(logits: torch.Tensor) -> float:
    """For the identity as classifier: the distance to the nearest point where another class is as large."""
    top = int(logits.argmax())
    others = [i for i in range(len(logits)) if i != top]
    distances = []
    for i in others:  # the projection on the plane z_top = z_i
        normal = torch.zeros(len(logits), dtype=logits.dtype)
        normal[top], normal[i] = 1.0, -1.0
        moved = logits - normal * (logits @ normal) / (normal @ normal)
        assert moved[top] == pytest.approx(float(moved[i]))
        distances.append(float((moved - logits).norm()))
    return min(distances)


def test_the_radius_is_reached_by_the_identity():
    """The identity is 1-Lipschitz, and an adversary knows its logits: no larger radius is true."""
    logits = torch.randn(50, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    exact = torch.tensor([nearest_change(row) for row in logits])
    assert torch.allclose(robust.certified_radius(logits).double(), exact.double())


def test_a_constant_for_each_logit_gives_a_smaller_radius():
    """Two logits x and -x are each 1-Lipschitz, and tie at 0: radius margin / 2, not margin / √2."""
    logits = torch.tensor([[0.3, -0.3]])
    assert robust.certified_radius(logits, bound_of="each") == pytest.approx(0.3)
    assert robust.certified_radius(logits, lipschitz=math.sqrt(2)) == pytest.approx(0.3)


def test_a_binary_classifier_decides_by_the_sign():
    assert robust.certified_radius(torch.tensor([[-2.0], [0.5]]), lipschitz=2.0).tolist() == pytest.approx([1.0, 0.25])
    assert robust.certified_accuracy(torch.tensor([-2.0, 0.5]), torch.tensor([-1, 1]), 1.0) == 0.5


@pytest.mark.parametrize("upper", [1.0, 0.3])
def test_the_radius_of_what_rounds_is_reached(upper: float):
    """Errors of length d for the class at the input, and against it at the perturbed one, make it tie there."""
    d, direction = 0.1, torch.tensor([1.0, -1.0], dtype=torch.float64) / math.sqrt(2)
    shown = torch.tensor([[2.0, 0.5], [0.6, 0.5]], dtype=torch.float64)
    radius = robust.certified_radius(shown, upper, rounding=d)
    exact = shown - d * direction  # of the Lipschitz function at the input
    tied = exact - upper * radius[:, None] * direction - d * direction  # what runs at the end of the radius
    assert float(tied[0, 0] - tied[0, 1]) == pytest.approx(0, abs=1e-12)
    assert radius[1] == 0  # rounding alone may change this class
    binary = robust.certified_radius(torch.tensor([1.0, -0.1]), upper, rounding=d)
    assert binary.tolist() == pytest.approx([0.8 / upper, 0.0])
    labels = torch.tensor([0, 0])
    assert robust.certified_accuracy(shown, labels, 0.8, upper, rounding=d) == 0.5
    assert robust.certified_accuracy(shown, labels, float(radius[0]) + 1e-9, upper, rounding=d) == 0


def test_the_radius_of_a_network_in_half_precision_holds_for_what_runs():
    """In bfloat16, by gradient steps against the margin, within the certified radius: no class changes."""
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 3)).bfloat16().eval()
    certificate = lipspline.certify(model, (4,), input_bound=4.0, accumulator=torch.float32)
    assert certificate.rounding is not None
    assert certificate.rounding.error is not None
    x = (torch.rand(200, 4) * 6 - 3).bfloat16()
    with torch.no_grad():
        logits = model(x)
    radius = robust.certified_radius(logits, certificate.upper, rounding=certificate.rounding.error)
    assert 0 < int((radius > 0).sum()) < len(x)
    moved = x.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad(robust._margins(model(moved), logits.argmax(1)).sum(), moved)
    step = gradient.float() / gradient.float().norm(dim=1, keepdim=True).clamp(min=1e-9)
    attacked = (x.float() - radius.clamp(max=1.0)[:, None] * 0.98 * step).bfloat16()
    near = ((attacked.double() - x.double()).norm(dim=1) < radius) & (attacked.abs() <= 4).all(dim=1)
    with torch.no_grad():
        same = model(attacked).argmax(1) == logits.argmax(1)
    assert bool(same[near].all())
    assert int(near.sum()) > 10


def test_accuracy_at_no_perturbation_is_accuracy():
    logits = torch.randn(100, 10, generator=torch.Generator().manual_seed(1))
    labels = torch.randint(10, (100,), generator=torch.Generator().manual_seed(2))
    assert robust.certified_accuracy(logits, labels, 0.0) == float((logits.argmax(1) == labels).double().mean())
    curve = [robust.certified_accuracy(logits, labels, e) for e in (0.0, 0.1, 0.3, 1.0, 10.0)]
    assert curve == sorted(curve, reverse=True)
    assert curve[-1] == 0


def test_an_attack_of_the_certified_length_is_needed():
    """For the identity: at exactly the radius the classes tie, so the certified accuracy does not count it."""
    logits, labels = torch.tensor([[math.sqrt(2), 0.0]], dtype=torch.float64), torch.tensor([0])
    assert robust.certified_accuracy(logits, labels, 1.0 + 1e-12) == 0
    assert robust.certified_accuracy(logits, labels, 1.0 - 1e-12) == 1


def test_hkr_is_hinge_minus_the_distance_of_the_means():
    outputs = torch.tensor([0.2, 3.0, -0.5, 1.0])
    labels = torch.tensor([1, 1, -1, -1])
    by_hand = (0.25 - 1.6) + 5.0 * (0.8 + 0 + 0.5 + 2.0) / 4
    assert float(robust.hkr_loss(outputs, labels, alpha=5.0)) == pytest.approx(by_hand)


def test_hkr_of_classes_is_the_mean_of_one_against_all():
    outputs = torch.randn(12, 3, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(12) % 3
    single = [robust.hkr_loss(outputs[:, k], torch.where(labels == k, 1, -1)) for k in range(3)]
    assert float(robust.hkr_loss(outputs, labels)) == pytest.approx(float(sum(single)) / 3, rel=1e-5)


def test_the_margin_loss_is_zero_exactly_where_the_radius_is_certified():
    logits = torch.randn(200, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    labels = logits.argmax(1)
    epsilon = 0.4
    radius = robust.certified_radius(logits)
    losses = torch.stack(
        [
            robust.multi_margin_loss(z[None], y[None], margin=math.sqrt(2) * epsilon)
            for z, y in zip(logits, labels, strict=True)
        ]
    )
    assert torch.equal(losses <= 0, radius >= epsilon)
    assert torch.allclose(losses, math.sqrt(2) * (epsilon - radius).clamp(min=0))


def test_cross_entropy_at_temperature_one_is_torchs():
    logits, labels = torch.randn(6, 4), torch.arange(6) % 4
    assert torch.allclose(
        robust.temperature_cross_entropy(logits, labels, temperature=1.0), F.cross_entropy(logits, labels)
    )
    hot = robust.temperature_cross_entropy(logits, labels, temperature=1e4)
    worst = (logits.amax(1) - logits.gather(1, labels[:, None])[:, 0]).mean()
    assert float(hot) == pytest.approx(float(worst), abs=1e-3)


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: robust.certified_radius(torch.zeros(2, 3, 4)), "must have the shape"),
        (lambda: robust.certified_radius(torch.zeros(2, 3), 0.0), "lipschitz must be"),
        (lambda: robust.certified_radius(torch.zeros(2, 3), bound_of="none"), "bound_of"),  # type: ignore[arg-type]
        (lambda: robust.certified_radius(torch.zeros(2, 3), rounding=-1.0), "rounding must be a length"),
        (lambda: robust.certified_radius(torch.zeros(2, 3), rounding=None), "`rounding.reason` says why"),  # type: ignore[arg-type]
        (lambda: robust.certified_accuracy(torch.zeros(2, 3), torch.zeros(3), 1.0), "2 rows of logits, but 3 labels"),
        (lambda: robust.certified_accuracy(torch.zeros(2, 3), torch.zeros(2), -1.0), "epsilon must be"),
    ],
)
def test_what_makes_no_sense_is_refused(call, sentence: str):
    with pytest.raises(ValueError, match=sentence):
        call()


def test_the_ramp_counts_what_misses_the_margin_and_gives_up_on_the_rest():
    """Narrow, it is 1 minus the certified accuracy. Hopeless logits have no gradient; the hinge gives them one."""
    logits = torch.randn(200, 5, generator=torch.Generator().manual_seed(0)) * 3
    labels = torch.arange(200) % 5
    share = robust.certified_accuracy(logits, labels, 0.5)
    assert float(robust.ramp_loss(logits, labels, margin=2**0.5 * 0.5, width=1e-4)) == pytest.approx(1 - share)
    hopeless = torch.tensor([[-9.0, 9.0]], requires_grad=True)
    (ramp,) = torch.autograd.grad(robust.ramp_loss(hopeless, torch.tensor([0])), hopeless)
    (hinge,) = torch.autograd.grad(robust.multi_margin_loss(hopeless, torch.tensor([0])), hopeless)
    assert float(ramp.abs().max()) < 1e-9
    assert float(hinge.abs().max()) == 1


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("shape", [(2000, 3), (2000,)])
def test_no_rounding_makes_a_radius_longer(dtype, shape):
    """In bfloat16 a quotient may be 0.4 % too long, and nobody has proved these."""
    logits = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0)).to(dtype)
    radius = robust.certified_radius(logits, 0.7)
    for row, found in zip(logits.double().tolist(), radius.double().tolist(), strict=True):
        if isinstance(row, list):
            first, second = (Fraction(z) for z in sorted(row)[:-3:-1])
            assert 2 * Fraction(found) ** 2 * Fraction(0.7) ** 2 <= (first - second) ** 2
            assert found == pytest.approx(float(first - second) / (math.sqrt(2) * 0.7), rel=1e-6)
        else:
            assert Fraction(found) * Fraction(0.7) <= abs(Fraction(row))
            assert found == pytest.approx(abs(row) / 0.7, rel=1e-6)


@pytest.mark.parametrize(
    ("labels", "sentence"),
    [
        (torch.tensor([[0], [1]]), r"labels must have the shape \(2,\), one class a row of logits, but have \(2, 1\)"),
        (torch.tensor([0.0, 1.0]), r"labels must be integers, the numbers of classes, but are torch\.float32"),
        (torch.tensor([0]), "2 rows of logits, but 1 labels"),
    ],
)
@pytest.mark.parametrize(
    "of",
    [
        lambda logits, labels: robust.certified_accuracy(logits, labels, 0.1),
        robust.multi_margin_loss,
        robust.hkr_loss,
        robust.ramp_loss,
    ],
)
def test_labels_that_do_not_fit_are_refused(of, labels, sentence):
    """(B, 1) labels were spread over all rows, and gave an accuracy of nothing."""
    with pytest.raises(ValueError, match=sentence):
        of(torch.tensor([[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]), labels)


@pytest.mark.parametrize(("labels", "words"), [([0, 3], "0 to 3"), ([-1, 0], "-1 to 0")])
def test_labels_of_other_classes_are_no_mistakes_of_the_classifier(labels, words):
    with pytest.raises(ValueError, match=f"labels must be classes from 0 to 2, but go from {words}"):
        robust.certified_accuracy(torch.zeros(2, 3), torch.tensor(labels), 0.1)


def test_logits_that_are_no_numbers_certify_nothing():
    for value in (math.nan, math.inf):
        with pytest.raises(ValueError, match=r"logits has 1 NaN or infinite value\(s\) of 3"):
            robust.certified_radius(torch.tensor([[value, 0.0, 1.0]]))


def test_no_accuracy_of_nothing():
    with pytest.raises(ValueError, match="There are no logits"):
        robust.certified_accuracy(torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), 0.1)


def test_a_column_of_labels_is_one_label_an_input():
    """Each with its own output, not with all of them."""
    outputs, labels = torch.tensor([2.0, -2.0, 0.5]), torch.tensor([1, -1, -1])
    expected = robust.hkr_loss(outputs, labels)
    for shaped in (outputs, outputs[:, None]):
        assert torch.equal(robust.hkr_loss(shaped, labels[:, None]), expected)
    with pytest.raises(ValueError, match="3 rows of logits, but 2 labels"):
        robust.hkr_loss(outputs, labels[:2])


def test_cross_entropy_takes_probabilities_of_classes():
    """As torch does."""
    logits, labels = torch.randn(4, 3), torch.tensor([0, 2, 1, 1])
    soft = F.one_hot(labels, 3).float()
    expected = robust.temperature_cross_entropy(logits, labels)
    torch.testing.assert_close(robust.temperature_cross_entropy(logits, soft), expected)


LOSSES = [robust.multi_margin_loss, robust.ramp_loss, robust.temperature_cross_entropy, robust.hkr_loss]


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    ("logits", "labels", "sentence"),
    [
        (torch.zeros(0, 3), torch.zeros(0, dtype=torch.long), r"There are no logits: their shape is \(0, 3\)"),
        (torch.zeros(2, 3), [0, 1], "labels must be a tensor with a row for each input, but is a list"),
        (torch.zeros(2, 3), torch.tensor(1), "labels must be a tensor with a row .* but is a single number"),
        (torch.zeros(2, 3), torch.tensor([True, False]), r"labels must be integers, .* are torch\.bool"),
        (torch.zeros(2, 3), torch.tensor([0.0, 1.0]), r"labels must be integers, .* are torch\.float32"),
        (torch.zeros(2, 3), torch.tensor([[0], [1]]), r"labels must have the shape \(2,\)"),
        ([0.0, 1.0], torch.tensor([0, 1]), "logits must be a tensor with a row for each input, but is a list"),
    ],
)
def test_losses_refuse_what_does_not_fit(loss, logits, labels, sentence: str):
    """Without a batch a mean is NaN, and torch speaks of its own functions."""
    with pytest.raises(ValueError, match=f"^{sentence}"):
        loss(logits, labels)


@pytest.mark.parametrize("loss", LOSSES[:-1])
@pytest.mark.parametrize("shape", [(2, 1), (2,)])
def test_a_margin_needs_a_second_class(loss, shape: tuple[int, ...]):
    """It was 0, whatever the logits."""
    with pytest.raises(ValueError, match=r"^The logits of shape .* are of one class alone, .* has hkr_loss"):
        loss(torch.randn(*shape), torch.zeros(2, dtype=torch.long))


def test_a_radius_needs_a_tensor():
    """Lists have no rows."""
    with pytest.raises(ValueError, match=r"^logits must be a tensor with a row for each input, but is a list"):
        robust.certified_radius([[1.0, 0.0]])  # type: ignore[arg-type]

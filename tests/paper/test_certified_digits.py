"""Certified classifiers of digits, at the smoke scale."""

import pytest
import torch

import lipspline as ls
from lipspline.paper.certified_digits import ClassifierActivation, classifier


def test_the_classifier_is_proved_to_be_1_lipschitz():
    """Flattening behind convolutions included; and a ratio was seen beside the bound."""
    torch.manual_seed(0)
    certificate = ls.certify(classifier(ClassifierActivation("maxmin"), 4, 8, 16), (1, 28, 28))
    assert certificate.upper <= 1 + 1e-5
    assert certificate.lower is not None
    assert certificate.lower > 0.1


@pytest.mark.usefixtures("needs_mnist")
def test_the_smoke_scale_certifies_each_activation(smoke):
    document = smoke("certified-mnist").document
    jobs = document["jobs"]
    assert {name.split("-")[0] for name in jobs} == {"relu", "maxmin", "gs", "hh", "lls"}
    for numbers in jobs.values():
        curve = [numbers[key] for key in ("0", "0.1412", "0.2824", "0.4235", "1.58")]
        assert curve == sorted(curve, reverse=True)
        assert numbers["certificate"] <= 1 + 1e-5
    assert document["claims"]["certified"]["holds"]

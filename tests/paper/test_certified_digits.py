"""Certified classifiers of digits, at the smoke scale."""

import pytest
import torch

import lipspline as ls
from lipspline.paper.certified_digits import ClassifierActivation, classifier, dense_classifier, principal_components


def test_the_classifier_is_proved_to_be_1_lipschitz():
    """Flattening behind convolutions included; and a ratio was seen beside the bound."""
    torch.manual_seed(0)
    certificate = ls.certify(classifier(torch.zeros(1, 784), ClassifierActivation("maxmin"), 4, 8, 16), (1, 28, 28))
    assert certificate.upper <= 1 + 1e-5
    assert certificate.lower is not None
    assert certificate.lower > 0.1


def test_dense_classifiers_see_the_directions_that_hold_most_of_the_images():
    """As the SVD has them; orthonormal, not trained, and the network stays 1-Lipschitz."""
    images = torch.randn(50, 784, generator=torch.Generator().manual_seed(0)) * torch.linspace(0, 1, 784)
    layer = principal_components(images, 5)
    _, _, vh = torch.linalg.svd(images.double(), full_matrices=False)
    kept = layer.weight.double()
    torch.testing.assert_close(kept.mT @ kept, vh[:5].mT @ vh[:5], atol=1e-5, rtol=0)
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    torch.manual_seed(0)
    model = dense_classifier(images, ClassifierActivation("lls"), 5, 8, 8)
    assert ls.certify(model).upper <= 1 + 1e-5


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

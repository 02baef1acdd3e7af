"""What a certificate says, as a table and as JSON."""

import json

import pytest
import torch
from certified_denoisers import soft_threshold
from torch import nn

from lipspline.operators import Matrix
from lipspline.pnp import fbs

H = Matrix(torch.diag(torch.tensor([2.0, 1.0])))
Y = torch.tensor([[2.0, 1.0]])


def test_the_table_has_every_number():
    text = str(fbs(Y, H, nn.ReLU(), beta=0.4, contraction=0.9).certificate)
    for words in ("Lipschitz bound of D  <= 1", "0.4, 0.9", "step α", "0.25 of at most 0.5", "between 2 and 2"):
        assert words in text
    for words in ("adjoint error", "converged, tol 1e-06", "plain, 0 accelerated", "distance to x*        <="):
        assert words in text
    for words in ("[eq:EstForward]", "c = 1", "[eq:H_invert]", "[eq:EstCont]", "c = 4.5"):
        assert words in text


def test_json_has_the_same_and_parses():
    solution = fbs(Y, H, nn.ReLU(), beta=0.4, contraction=0.9)
    document = json.loads(solution.certificate.to_json())
    assert document["guaranteed"] is True
    assert document["setting"] == {**solution.certificate.setting.__dict__, "norm": list(H.norm_bounds())}
    assert [estimate["label"] for estimate in document["estimates"]] == [
        "eq:EstForward",
        "eq:H_invert",
        "eq:EstCont",
        "firm contraction",
    ]
    assert document["residual"] == solution.residuals[-1]
    assert document["plain_steps"] == solution.steps


def test_the_distance_is_also_a_share_of_the_worst_image():
    """Of a batch, each distance is divided by the norm of its own image."""
    data = torch.tensor([[2.0, 1.0], [2e-3, 1e-3]])
    both = fbs(data, H, nn.ReLU(), beta=0.4, contraction=0.9, tol=1e-3)
    each = [fbs(row, H, nn.ReLU(), beta=0.4, contraction=0.9, tol=1e-3).certificate for row in data.split(1)]
    assert both.certificate.relative_distance == pytest.approx(max(one.relative_distance for one in each))
    assert each[0].relative_distance == pytest.approx(each[0].distance / float(both.value[0].norm()))
    document = json.loads(both.certificate.to_json())
    assert document["relative_distance"] == both.certificate.relative_distance
    assert "% of ‖x‖" in str(both.certificate)


def test_an_image_of_zeros_has_no_share():
    certificate = fbs(torch.zeros(1, 2), H, nn.ReLU(), beta=0.4, contraction=0.9).certificate
    assert certificate.distance is not None
    assert certificate.relative_distance is None


def test_without_guarantee_nothing_is_claimed_anywhere():
    solution = fbs(Y, H, torch.relu, guarantee=False)
    document = json.loads(solution.certificate.to_json())
    assert document["guarantee"].startswith("no guarantee")
    assert document["guaranteed"] is False
    assert document["lipschitz"] is None
    assert document["distance"] is None
    assert all(estimate["constant"] is None for estimate in document["estimates"])
    assert str(solution.certificate).count("no guarantee") == 6
    assert "no guarantee" in str(solution)


def test_a_certified_run_without_guarantee_claims_nothing_either():
    certificate = fbs(Y, H, nn.ReLU(), guarantee=False).certificate
    assert not certificate.guaranteed
    assert "guarantee=False was passed" in certificate.guarantee


def test_accelerated_and_plain_steps_are_counted():
    y = torch.randn(1, 6, dtype=torch.float64)
    solution = fbs(y, Matrix(torch.randn(6, 6, dtype=torch.float64)), soft_threshold(0.1), accelerate=True)
    certificate = solution.certificate
    assert certificate.accelerated_steps == solution.images[0].accelerated > 0
    assert certificate.plain_steps + certificate.accelerated_steps == solution.steps

"""Turning orthonormal matrices by angles."""

import pytest
import torch
from torch import nn

from lipspline.functional.matrices import orthonormalize
from lipspline.nn import LinearSpline, conv2d, linear
from lipspline.training import Player, param_groups
from lipspline.training.rotations import Rotating, nearly_polar, orthonormal_parameters, orthonormalize_


def network(**options) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(conv2d(1, 6, 3, **options), LinearSpline(6), conv2d(6, 6, 3, **options))


def defect(matrix):
    tall = matrix if matrix.shape[-2] >= matrix.shape[-1] else matrix.mT
    return float((tall.mT @ tall - torch.eye(tall.shape[-1])).detach().abs().max())


@pytest.mark.parametrize("shape", [(5, 5), (3, 8, 4), (2, 2, 4, 8), (7, 1)])
def test_a_matrix_turns_by_its_angle_and_stays_orthonormal(shape):
    torch.manual_seed(1)
    matrix = nn.Parameter(torch.empty(shape))
    with torch.no_grad():
        for block in matrix.reshape(-1, *shape[-2:]):
            nn.init.orthogonal_(block)
    optimizer = Rotating([{"params": [matrix], "lr": 0.02, "rotates": True}], lr=1.0, fused=True)
    for scale in (1e-6, 1.0, 1e6):
        before = matrix.detach().clone()
        matrix.grad = scale * torch.randn(shape)
        optimizer.step()
        assert defect(matrix) < 1e-6
        turned = torch.linalg.matrix_norm(matrix.detach() - before, 2)
        assert turned.max() < 0.03
        if shape[-2:] != (7, 1):  # whose gradient may be along itself
            assert turned.min() > 0.004


def test_a_turn_goes_downhill_and_to_the_end():
    """From a random rotation to a wanted one, the minimum of a quadratic function."""
    torch.manual_seed(2)
    wanted, matrix = (torch.linalg.qr(torch.randn(6, 6))[0] for _ in range(2))
    matrix[:, 0] *= torch.sign(torch.det(matrix) * torch.det(wanted))  # a rotation apart
    matrix = nn.Parameter(matrix)
    optimizer = Rotating([{"params": [matrix], "lr": 0.05, "rotates": True}], lr=1.0, fused=True)
    distances = []
    for step in range(200):
        optimizer.param_groups[0]["lr"] = 0.05 * (1 - step / 200)
        (orthonormalize(matrix) - wanted).square().sum().backward()
        optimizer.step()
        distances.append(float((matrix.detach() - wanted).norm()))
    assert distances[20] < distances[0]
    assert distances[-1] < 0.01


def test_nothing_turns_without_a_gradient():
    matrix = nn.Parameter(torch.eye(3))
    optimizer = Rotating([{"params": [matrix], "lr": 0.1, "rotates": True}], lr=1.0, fused=True)
    optimizer.step()
    matrix.grad = torch.zeros(3, 3)
    optimizer.step()
    assert (matrix == torch.eye(3)).all()


def test_the_polar_factor_of_a_gradient_is_met_where_it_has_a_size():
    torch.manual_seed(3)
    u, s, v = torch.linalg.svd(torch.randn(2, 9, 5), full_matrices=False)
    found = u.mT @ nearly_polar(u @ torch.diag_embed(s) @ v) @ v.mT
    assert found.diagonal(dim1=-2, dim2=-1).min() > 0.8
    assert found.diagonal(dim1=-2, dim2=-1).max() < 1.1
    assert (found - torch.diag_embed(found.diagonal(dim1=-2, dim2=-1))).abs().max() < 1e-4
    assert (nearly_polar(torch.zeros(3, 2)) == 0).all()


def test_only_orthonormal_matrices_turn():
    model = nn.Sequential(network(), nn.Linear(6, 6), linear(6, 6), linear(6, 6, constraint="spectral"))
    turning = {id(raw) for raw, _ in orthonormal_parameters(model)}
    assert len(turning) == 5
    groups = param_groups(model, lr=0.4, rotations=0.05)
    assert [group["lr"] for group in groups] == [0.4, 0.1, 0.01, 0.05]
    assert {id(p) for p in groups[-1]["params"]} == turning
    assert sum(len(group["params"]) for group in groups) == len(list(model.parameters()))
    assert len(param_groups(model, lr=0.4)) == 3


def test_cayley_has_no_matrix_to_turn():
    assert not list(orthonormal_parameters(linear(4, 4, method="cayley")))


@pytest.mark.parametrize("method", ["qr", "polar", "bjorck"])
def test_a_network_is_the_same_when_its_matrices_become_orthonormal(method):
    model, x = network(method=method), torch.randn(1, 1, 8, 8)
    with torch.no_grad():
        for raw, _ in orthonormal_parameters(model):
            raw.add_(0.2 * torch.randn_like(raw))
    before = model(x)
    assert max(defect(raw) for raw, _ in orthonormal_parameters(model)) > 0.1
    orthonormalize_(model)
    assert max(defect(raw) for raw, _ in orthonormal_parameters(model)) < 1e-6
    assert (model(x) - before).abs().max() < 1e-5


def test_a_player_turns_matrices_and_moves_the_rest_as_adam_does():
    torch.manual_seed(0)
    x = torch.randn(4, 1, 8, 8)
    models = [network(), network()]
    optimizers = [Player(models[0], lr=1e-3, rotations=0.01).optimizer(), Player(models[1], lr=1e-3).optimizer()]
    for model, optimizer in zip(models, optimizers, strict=True):
        model(x).square().mean().backward()
        optimizer.step()
    for (name, ours), adam in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        same = bool((ours - adam).abs().max() < 1e-6)
        assert same != name.startswith(("0.parametrizations", "2.parametrizations")), name

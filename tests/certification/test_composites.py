"""Rules of modules made of modules, against dense matrices; and wrappers that are looked into."""

import math

import pytest
import torch
from layer_norms import norm, upper
from torch import nn

from lipspline.certification import certify
from lipspline.nn import Averaged, Concatenated, Scaled, Sum


def matrix(*rows: list[float]) -> nn.Linear:
    layer = nn.Linear(len(rows[0]), len(rows), bias=False)
    with torch.no_grad():
        layer.weight.copy_(torch.tensor(rows))
    return layer


def test_sums_add_and_reach_it():
    """Branches that stretch the same direction."""
    model = Sum(matrix([3.0, 0.0], [0.0, 1.0]), Scaled(0.5), nn.Sequential(Scaled(2.0), nn.Identity()))
    assert norm(model, 2) == pytest.approx(5.5)
    assert 5.5 <= upper(model) <= 5.5 * (1 + 1e-9)
    assert certify(model).layers[0].rule == "sum of 3, 0.5, 2"


def test_a_residual_block_is_a_sum_with_the_identity():
    """1 + L."""
    assert upper(Sum(nn.Identity(), nn.ReLU())) == 2.0


def test_concatenations_have_the_root_of_the_sum_of_squares_and_reach_it():
    """Two copies stretch by sqrt(2)."""
    model = Concatenated(Scaled(3.0), Scaled(4.0))
    assert norm(model, 2) == pytest.approx(5.0)
    assert 5.0 <= upper(model) <= 5.0 * (1 + 1e-14)
    assert upper(Concatenated(nn.Identity(), nn.Identity())) == pytest.approx(math.sqrt(2), rel=1e-15)
    assert upper(Concatenated(nn.ReLU())) == 1.0


def test_composites_nest():
    """A U-shaped network in small: every part is named by its path."""
    block = Concatenated(nn.Sequential(Scaled(2.0), Averaged(Scaled(3.0), 0.5)), nn.Identity())
    certificate = certify(nn.Sequential(block, Sum(nn.Identity(), Scaled(0.5))))
    assert certificate.upper == pytest.approx(math.sqrt(17) * 1.5, rel=1e-14)
    assert [(layer.name, layer.kind) for layer in certificate.layers] == [("0", "Concatenated"), ("1", "Sum")]
    with pytest.raises(ValueError, match=r"^certify has no rule for Fold \(layer '0\.branches\.1'\)"):
        certify(nn.Sequential(Sum(nn.Identity(), nn.Fold(2, 1))))


def test_branches_written_later_are_those_that_count():
    """The rule reads what forward reads."""
    model = Sum(nn.Identity(), nn.ReLU())
    model.branches[1] = Scaled(-7.0)
    assert upper(model) == 8.0
    model.branches = nn.ModuleList([Scaled(3.0)])
    assert upper(model) == 3.0


def test_networks_on_several_devices_are_looked_into():
    """nn.DataParallel runs copies of its module."""
    certificate = certify(nn.DataParallel(nn.Sequential(Scaled(2.0), nn.ReLU())))
    assert certificate.upper == 2.0
    assert [layer.name for layer in certificate.layers] == ["0", "1"]


def test_networks_of_distributed_training_are_looked_into(group):
    model = nn.parallel.DistributedDataParallel(nn.Sequential(matrix([3.0]), nn.ReLU()))
    assert certify(model).upper == pytest.approx(3.0)
    assert certify(model.eval()).layers[1].name == "1"


def test_compiled_networks_are_looked_into():
    """As a whole, in part, and not if something else was put in the place of what was compiled."""
    model = torch.compile(nn.Sequential(Scaled(2.0), nn.ReLU()), backend="eager")
    assert certify(model).upper == 2.0
    assert [layer.name for layer in certify(nn.Sequential(model, Scaled(3.0))).layers] == ["0.0", "0.1", "1"]
    model(torch.ones(1, 2))
    assert certify(model).upper == 2.0
    with pytest.raises(ValueError, match="writes over its input"):
        certify(Averaged(torch.compile(nn.LeakyReLU(3.0, inplace=True), backend="eager"), 0.5))
    model.register_forward_hook(lambda *arguments: None)
    with pytest.raises(ValueError, match="has forward hooks"):
        certify(model)
    model = torch.compile(nn.ReLU(), backend="eager")
    model.forward = lambda x: 7 * x
    with pytest.raises(ValueError, match="was compiled, but its forward was replaced afterwards"):
        certify(model)

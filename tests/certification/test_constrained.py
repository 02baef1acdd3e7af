"""Certificates of layers that are 1-Lipschitz by construction."""

import itertools

import pytest
from layer_norms import SAMPLED, learned, upper
from torch import nn

from lipspline.certification.proof import certify
from lipspline.nn.convolutions import conv1d, conv2d
from lipspline.nn.matrices import linear


@pytest.mark.parametrize("constraint", ["orthonormal", "spectral"])
@pytest.mark.parametrize("shape", [(6, 6), (4, 9), (9, 4)])
@pytest.mark.parametrize("lipschitz", [1.0, 0.5, 3.0])
def test_constrained_dense_layers_reach_their_target(constraint, shape: tuple[int, int], lipschitz: float):
    """[lip_linear_layers]: the bound is the target, to rounding of float32."""
    layer = linear(*shape, constraint=constraint, lipschitz=lipschitz)
    assert upper(layer) == pytest.approx(lipschitz, rel=1e-6)


@pytest.mark.parametrize("make", [conv1d, conv2d])
@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
@pytest.mark.parametrize("kernel", [1, 2, 3])
@pytest.mark.parametrize("stride", [1, 2])
def test_orthogonal_convolutions_are_certified_one(make, padding_mode, kernel: int, stride: int):
    """[lip_linear_layers]: BCOP kernels, to 1e-5 and on both sides."""
    layer = make(4, 4, kernel, padding_mode=padding_mode, stride=stride)
    assert upper(layer) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("padding_mode", ["zeros", "circular"])
def test_spectral_convolutions_are_certified_at_most_one_and_not_much_below(padding_mode):
    """[lip_linear_layers]: divided by an upper bound."""
    layer = conv2d(3, 5, 3, constraint="spectral", padding_mode=padding_mode)
    assert 1 / SAMPLED <= upper(layer) <= 1 + 1e-6


def test_the_bound_of_an_orthogonal_stack_is_one():
    """Eight orthogonal convolutions and learned splines, as in [sec:PnPReconstruction]: 1 to 1e-5."""
    widths = [1, 16, 16, 16, 16, 16, 16, 16, 1]
    layers = [layer for c, d in itertools.pairwise(widths) for layer in (conv2d(c, d, 3), learned(d))]
    certificate = certify(nn.Sequential(*layers[:-1]), steps=0)
    assert certificate.upper == pytest.approx(1.0, abs=1e-5)
    assert len(certificate.layers) == 15

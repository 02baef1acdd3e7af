"""The networks of the Wasserstein GAN: shapes, the critic's constraint, the generator's range [sec:WGAN]."""

import inspect

import pytest
import torch
from torch import nn

from lipspline.certification import certify
from lipspline.networks.builders import ACTIVATIONS
from lipspline.networks.gan import critic, digit_classifier, generator


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_every_critic_is_proved_to_be_1_lipschitz(activation):
    certificate = certify(critic(activation, channels=(8, 16), width=12), (1, 28, 28))
    assert certificate.upper <= 1 + 1e-5
    assert 0 < certificate.lower <= certificate.upper


def test_a_critic_that_keeps_gradient_norms_has_gradients_of_norm_one_inside():
    """Absolute values between isometries: the gradient at a random image has norm 1, but for the border."""
    torch.manual_seed(0)
    x = torch.rand(4, 1, 28, 28, requires_grad=True)
    critic("av", channels=(4, 16), width=16)(x).sum().backward()
    norms = x.grad.flatten(1).norm(dim=1)
    assert (norms <= 1 + 1e-5).all()
    assert (norms > 0.8).all()


def test_the_critic_is_infogans_with_convolutions_of_four_pixels_and_stride_two():
    """In small: to make 6272 x 1024 weights orthonormal takes as long as a hundred tests."""
    network = critic(channels=(6, 12), width=20, activation="relu")
    convolutions = [layer for layer in network.modules() if isinstance(layer, nn.Conv2d)]
    assert [tuple(layer.weight.shape) for layer in convolutions] == [(6, 4, 2, 2), (12, 24, 2, 2)]
    dense = [layer for layer in network.modules() if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in dense] == [(12 * 49, 20), (20, 1)]
    usual = inspect.signature(critic).parameters
    assert (usual["channels"].default, usual["width"].default) == ((64, 128), 1024)


def test_the_generator_is_infogans_with_batch_normalisation():
    network = generator()
    sizes = [tuple(layer.weight.shape) for layer in network if hasattr(layer, "weight") and layer.weight.ndim > 1]
    assert sizes == [(1024, 62), (6272, 1024), (128, 64, 4, 4), (64, 1, 4, 4)]
    assert sum("BatchNorm" in type(layer).__name__ for layer in network) == 3


def test_generated_images_have_values_between_zero_and_one():
    images = generator(10, width=16, channels=(8, 4))(100 * torch.randn(6, 10))
    assert images.shape == (6, 1, 28, 28)
    assert images.min() >= 0
    assert images.max() <= 1


def test_the_classifier_gives_ten_logits():
    assert digit_classifier((2, 4), width=8)(torch.rand(3, 1, 28, 28)).shape == (3, 10)

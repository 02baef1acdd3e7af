"""The two networks of the Wasserstein GAN for 28x28 digits [sec:WGAN], and the classifier that scores its digits."""

from collections.abc import Mapping
from typing import Any

from torch import nn

from lipspline._infra import checks
from lipspline.networks import builders
from lipspline.nn.convolutions import conv2d
from lipspline.nn.matrices import linear

SIDE = 28


def generator(latent: int = 62, *, width: int = 1024, channels: tuple[int, int] = (128, 64)) -> nn.Sequential:
    """InfoGAN's generator: dense, dense, two transposed convolutions, with ReLU and batch normalisation [sec:WGAN].

    It is unconstrained. Latent vectors `(B, latent)` become images `(B, 1, 28, 28)` with values in [0, 1].

    Args:
        latent: size of a latent vector.
        width: neurons of the first layer.
        channels: feature maps of 7x7 and 14x14 pixels.

    Example:
        >>> import torch
        >>> generator(width=32, channels=(8, 4))(torch.randn(2, 62)).shape
        torch.Size([2, 1, 28, 28])
    """
    checks.at_least("latent", latent, 1)
    coarse, fine = channels
    pixels = (SIDE // 4) ** 2
    return nn.Sequential(
        nn.Linear(latent, width),
        nn.BatchNorm1d(width),
        nn.ReLU(),
        nn.Linear(width, coarse * pixels),
        nn.BatchNorm1d(coarse * pixels),
        nn.ReLU(),
        nn.Unflatten(1, (coarse, SIDE // 4, SIDE // 4)),
        nn.ConvTranspose2d(coarse, fine, 4, stride=2, padding=1),
        nn.BatchNorm2d(fine),
        nn.ReLU(),
        nn.ConvTranspose2d(fine, 1, 4, stride=2, padding=1),
        nn.Sigmoid(),
    )


def critic(
    activation: str = "lls",
    *,
    channels: tuple[int, int] = (64, 128),
    width: int = 1024,
    activation_options: Mapping[str, Any] | None = None,
) -> nn.Sequential:
    """InfoGAN's discriminator as a 1-Lipschitz critic: images `(B, 1, 28, 28)` to numbers `(B, 1)` [sec:WGAN].

    Two orthogonal convolutions of 4x4 pixels with stride 2 and two orthonormal dense layers, 1-Lipschitz activations
    between them, no normalisation.

    Args:
        activation: relu, av, prelu, gs, hh or lls.
        channels: feature maps of 14x14 and 7x7 pixels.
        width: neurons of the dense layer.
        activation_options: arguments of the activation.

    Example:
        >>> import torch
        >>> critic(channels=(4, 8), width=16)(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 1])
    """
    options = dict(activation_options or {})
    fine, coarse = channels
    return nn.Sequential(
        conv2d(1, fine, 2, stride=2),
        builders.activation(activation, fine, **options),
        conv2d(fine, coarse, 2, stride=2),
        builders.activation(activation, coarse, **options),
        nn.Flatten(),
        linear(coarse * (SIDE // 4) ** 2, width),
        builders.activation(activation, width, **options),
        linear(width, 1),
    )


def digit_classifier(channels: tuple[int, int] = (16, 32), width: int = 128) -> nn.Sequential:
    """An ordinary convolutional classifier of digits, `(B, 1, 28, 28)` to 10 logits, for the inception score.

    Example:
        >>> import torch
        >>> digit_classifier()(torch.rand(2, 1, 28, 28)).shape
        torch.Size([2, 10])
    """
    fine, coarse = channels
    return nn.Sequential(
        nn.Conv2d(1, fine, 5, padding=2),
        nn.BatchNorm2d(fine),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(fine, coarse, 5, padding=2),
        nn.BatchNorm2d(coarse),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(coarse * (SIDE // 4) ** 2, width),
        nn.ReLU(),
        nn.Linear(width, 10),
    )

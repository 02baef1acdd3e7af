"""Small networks whose parameters are away from where they start."""

import torch

from lipspline.models import Network
from lipspline.networks import denoiser


def trained(model: Network) -> Network:
    """Move all parameters a little away from where they start."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return model.eval()


def small_denoiser(activation: str = "lls", **options) -> Network:
    return trained(denoiser(activation, channels=4, depth=3, **options))

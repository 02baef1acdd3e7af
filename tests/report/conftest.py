"""A small reconstruction that all tests of the page show."""

import pytest
import torch

from browser import chromium
from lipspline import models, operators, pnp
from lipspline.report import Case, Picture


@pytest.fixture(scope="session")
def denoiser():
    torch.manual_seed(0)
    return models.plain(models.denoiser(channels=4, depth=3, activation_options={"init": "relu"}))


@pytest.fixture(scope="session")
def case(denoiser):
    """MRI of a square with noise: zero-filling, two solutions, stability."""
    torch.manual_seed(0)
    truth = torch.zeros(1, 1, 24, 32)
    truth[..., 6:18, 8:24] = 0.8
    H = operators.MRI(operators.cartesian_mask(32, acceleration=2))
    y = H.forward(truth + 0.02 * torch.randn(truth.shape))
    plain, fast = (pnp.fbs(y, H, denoiser, 0.3, tol=1e-4, accelerate=how) for how in (False, True))
    evidence = pnp.stability(y, H, denoiser, 0.3, perturbations=2, ascents=2, ascent_steps=1, tol=1e-4)
    pictures = (
        Picture("Zero-filled", H.adjoint(y)),
        Picture("Plain", plain.value, plain, seconds=1.25),
        Picture("Fast", fast.value, fast, seconds=0.5),
    )
    return Case("A square", pictures, truth, "Every second column was measured.", evidence)


@pytest.fixture(scope="session")
def browser():
    with chromium() as window:
        yield window

"""A small training run in a process of its own, to be killed by the tests."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import nn

from lipspline.formats.datasets import NamedImage, RandomCrops, noisy_images
from lipspline.nn import LinearSpline, conv2d
from lipspline.training import Plan, fit
from lipspline.training.checkpoint import encode
from lipspline.training.schedules import one_cycle
from lipspline.training.tasks import Minimize, denoising


def images(count: int = 4, size: int = 64) -> list[NamedImage]:
    """Smooth random images."""
    rng = np.random.default_rng(0)
    coarse = rng.uniform(0, 255, (count, 8, 8))
    return [
        NamedImage(f"image{i}", np.kron(c, np.ones((size // 8, size // 8))).astype(np.uint8))
        for i, c in enumerate(coarse)
    ]


def model() -> nn.Module:
    """A network with every kind of state.

    Splines, running statistics, dropout that draws from torch's stream, and an orthogonal kernel, to be rotated.
    """
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        LinearSpline(4),
        nn.BatchNorm2d(4),
        nn.Dropout(0.1),
        conv2d(4, 1, 3),
    )


def task(network: nn.Module, batch: int = 4, lr: float = 1e-2, wrap=lambda patches: patches) -> Minimize:
    """Denoising of 16x16 crops."""
    crops = wrap(RandomCrops(images(), size=16))
    dtype = next(network.parameters()).dtype
    validation = [replace(image, noisy=image.noisy.to(dtype)) for image in noisy_images(images(2), noise=0.1)]
    rates = {"lr": lr, "rotations": 0.02}
    return denoising(network, crops, validation, noise=0.1, batch=batch, tv2_weight=1e-5, **rates)


def plan(steps: int) -> Plan:
    """A checkpoint every third step, so that a kill often hits one being written."""
    return Plan(steps, schedule=one_cycle, average=0.9, log_every=7, evaluate_every=20, checkpoint_every=3)


def run(folder: str, steps: int) -> None:
    """Train and leave the final weights in `final`."""
    torch.set_num_threads(1)
    network = model()
    fit(task(network), plan(steps), folder=folder, config={"lr": 1e-2})
    temporary = Path(folder) / "final.tmp"
    temporary.write_bytes(encode(dict(network.state_dict())))
    os.replace(temporary, Path(folder) / "final")

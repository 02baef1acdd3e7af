"""The one-liner of docs/adapters.md: every shipped denoiser in onnxruntime, for any batch and image size."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from lipspline.models import to_onnx
from lipspline.networks import denoiser
from lipspline.priors import zoo
from lipspline.priors.denoisers import available

SIZES = [(1, 1, 8, 8), (3, 1, 17, 10), (2, 1, 33, 64)]


def same_in_onnxruntime(model: nn.Module, file: Path) -> None:
    """Export, run and compare on images of several sizes, none of them the size of the export."""
    onnxruntime = pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    to_onnx(model, file, (1, 64, 64))
    session = onnxruntime.InferenceSession(str(file))
    for size in SIZES:
        x = torch.rand(size)
        (y,) = session.run(None, {session.get_inputs()[0].name: x.numpy()})
        with torch.no_grad():
            np.testing.assert_allclose(y, model(x), atol=5e-6, rtol=5e-6)


@pytest.mark.slow
@pytest.mark.parametrize(("activation", "noise"), list(available()))
def test_every_shipped_denoiser_runs_in_onnxruntime(tmp_path: Path, activation: str, noise: int):
    """With equal outputs; nothing to do while none ships."""
    same_in_onnxruntime(zoo(activation, noise), tmp_path / "net.onnx")


def test_a_denoiser_of_the_shipped_kind_runs_in_onnxruntime(tmp_path: Path):
    """With the depth of the shipped ones and fewer channels."""
    same_in_onnxruntime(denoiser("lls", channels=4, depth=8).eval(), tmp_path / "net.onnx")

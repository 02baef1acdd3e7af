"""A lab that really listens, with a small denoiser."""

import time

import pytest
import torch

from browser import chromium
from lipspline import models
from lipspline.formats import builtin
from lipspline.lab import Session
from lipspline.lab import session as session_module
from live_lab import PIXELS, opened


@pytest.fixture(scope="session")
def session(tmp_path_factory):
    """Small images, and a denoiser of two layers."""
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("weights") / "small.safetensors"
    models.save(models.denoiser(channels=4, depth=2), path)
    patch = pytest.MonkeyPatch()
    patch.setitem(builtin.BUILTIN, "phantom", lambda: builtin.shepp_logan(PIXELS))
    yield Session([path])
    patch.undo()


@pytest.fixture(scope="session")
def running_lab(session):
    with opened(session) as lab:
        yield lab


@pytest.fixture
def lab(running_lab):
    """The lab with nothing running, before and after."""
    running_lab.quiet()
    yield running_lab
    running_lab.quiet()


@pytest.fixture
def slow(monkeypatch):
    """Every step takes a third of a second."""
    watch = session_module._Watch.__call__

    def sleepy(self, progress):
        time.sleep(0.3)
        watch(self, progress)

    monkeypatch.setattr(session_module._Watch, "__call__", sleepy)


@pytest.fixture(scope="session")
def browser():
    with chromium() as window:
        yield window

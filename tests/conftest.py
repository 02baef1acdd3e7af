"""What all tests share: the same examples on every run, and the same random numbers in every test."""

import errno
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hypothesis import settings

settings.register_profile("everyday", derandomize=True, max_examples=40, deadline=None, database=None)
settings.load_profile("everyday")


@pytest.fixture(autouse=True)
def _same_random_numbers_in_every_test():
    """A test must not depend on which tests ran before it."""
    torch.manual_seed(0)


@pytest.fixture
def no_space(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """`no_space(name)`: from now on the disk is full for files with `name` in their own, temporary ones included."""
    sync = os.fsync

    def fill(name: str) -> None:
        def full(descriptor: int) -> None:
            if name in Path(os.readlink(f"/proc/self/fd/{descriptor}")).name:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            sync(descriptor)

        monkeypatch.setattr(os, "fsync", full)

    return fill


@pytest.fixture(scope="session")
def processes():
    """Processes that start in milliseconds, from a server that has imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lipspline.training.tasks"])
    return context

"""What several tests of training share."""

import multiprocessing

import pytest


@pytest.fixture(scope="session")
def processes():
    """Processes that start in milliseconds, from a server that has imported torch already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["lipspline.training.tasks"])
    return context

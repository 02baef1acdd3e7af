"""What the tests of the experiments share."""

import os
from pathlib import Path

import pytest

from lipspline.paper.recipe import load
from lipspline.paper.run import Run, reproduce
from paper.toy import silent


@pytest.fixture
def smoke(tmp_path):
    """Run the smoke scale of a recipe in a fresh folder."""

    def run(name: str, out: Path = tmp_path):
        return reproduce(Run(load(name, "smoke"), out), silent)

    return run


@pytest.fixture
def needs_mnist():
    """Skip where the digits are not at hand."""
    folder = os.environ.get("LIPSPLINE_DATA")
    if not folder or not (Path(folder) / "mnist").is_dir():
        pytest.skip("LIPSPLINE_DATA names no folder with mnist/ in it")

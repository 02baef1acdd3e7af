"""Puts `kernel_cases` on the path: the scripts that tests start in other processes need it too."""

import sys
from pathlib import Path

import pytest

from lipspline.kernels import native

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(params=["eager", "c"])
def implementation(request: pytest.FixtureRequest) -> str:
    """Every implementation that runs in this process."""
    if request.param == "c" and native.library is None:
        pytest.skip("the C kernels are not built")
    return request.param

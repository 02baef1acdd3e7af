"""Puts the reference norms of this folder's tests on its path."""

import sys
import time
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture
def group(tmp_path):
    """One process is a group of torch.distributed, too."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/group", rank=0, world_size=1)
    yield
    time.sleep(
        0.3
    )  # torch waits for the thread of a group while it holds the lock of Python, which that thread may need
    torch.distributed.destroy_process_group()

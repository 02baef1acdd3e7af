"""Memory that a process keeps."""

import subprocess
import sys

import pytest

from lipspline._infra.devices import keep_memory

FAULTS = """
import resource, torch
from lipspline._infra.devices import keep_memory

def faults():
    for _ in range(3):
        torch.ones(2**24)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        torch.ones(2**24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

returned = faults()
keep_memory()
print(returned, faults())
"""


def test_kept_memory_is_not_cleared_again():
    """A page that the system clears is a page fault, and 64 MB are up to 2^14 pages."""
    if not keep_memory():
        pytest.skip("the C library is not glibc")
    run = subprocess.run([sys.executable, "-c", FAULTS], capture_output=True, text=True, check=True)
    returned, kept = map(int, run.stdout.split())
    assert kept < 1000 < 5 * 2**13 <= returned

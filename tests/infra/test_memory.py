"""Memory that a process keeps."""

import subprocess
import sys

import pytest

from lipspline._infra.memory import keep_memory

FAULTS = """
import resource, sys, torch
from lipspline._infra.memory import keep_memory

if sys.argv[1] == "kept":
    keep_memory()
for _ in range(3):
    torch.ones(2**24)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    torch.ones(2**24)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.parametrize(("memory", "pages"), [("kept", range(1000)), ("returned", range(5 * 2**13, 10**6))])
def test_kept_memory_is_not_cleared_again(memory, pages):
    """A page that the system clears is a page fault, and 64 MB are up to 2^14 pages."""
    if not keep_memory():
        pytest.skip("the C library is not glibc")
    run = subprocess.run([sys.executable, "-c", FAULTS, memory], capture_output=True, text=True, check=True)
    assert int(run.stdout) in pages

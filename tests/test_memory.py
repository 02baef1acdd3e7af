"""Memory that a process keeps."""

import pytest
import torch

from lipspline._memory import keep_memory


def test_a_large_tensor_made_again_finds_its_memory_where_it_was():
    """Cleared pages show as page faults: a fresh 64 MB take sixteen thousand of them."""
    if not keep_memory():
        pytest.skip("the C library is not glibc")

    import resource  # which Windows does not have

    def faults() -> int:
        return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

    for _ in range(3):
        torch.ones(16 * 2**20)
    before = faults()
    for _ in range(5):
        torch.ones(16 * 2**20)
    assert faults() - before < 5000

"""How kernels see the memory of a tensor."""

import pytest
import torch

from lipspline.kernels.layout import densely, like, working_dtype


@pytest.mark.parametrize(
    ("x", "channel_dim", "sizes"),
    [
        (torch.zeros(2, 3, 4, 5), 1, (1, 2, 3, 20)),
        (torch.zeros(2, 3, 4, 5), 3, (1, 24, 5, 1)),
        (torch.zeros(7), 0, (1, 1, 7, 1)),
        (torch.zeros(2, 3, 4, 5).to(memory_format=torch.channels_last), 1, (1, 40, 3, 1)),
        (torch.zeros(4, 6).t(), 1, (1, 1, 4, 6)),
        (torch.zeros(4, 6).t(), 0, (1, 4, 6, 1)),
        (torch.zeros(5, 1, 6).transpose(0, 2), 1, (1, 30, 1, 1)),
    ],
)
def test_dense_tensors_are_taken_as_they_are(x, channel_dim, sizes):
    dense, found = densely(x, channel_dim)
    assert dense is x
    assert found == sizes


@pytest.mark.parametrize(
    "x", [torch.randn(2, 3, 8)[..., ::2], torch.randn(2, 1, 4).expand(2, 3, 4), torch.randn(6, 3, 4)[::2]]
)
def test_tensors_with_gaps_are_copied(x):
    dense, (groups, outer, channels, inner) = densely(x, 1)
    assert torch.equal(dense, x)
    assert groups * outer * channels * inner == x.numel()
    assert dense.stride() == torch.empty_like(x).stride()


def test_groups_are_the_first_dimension():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    dense, sizes = densely(x, 2, grouped=True)
    assert dense.is_contiguous()
    assert sizes == (2, 3, 4, 5)


def test_like_copies_only_what_lies_otherwise():
    x = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    g = torch.randn(2, 3, 4, 5)
    assert like(g, x).stride() == x.stride()
    assert torch.equal(like(g, x), g)
    assert like(x, x) is x
    assert like(g, g[..., :]) is g


def test_work_is_done_in_single_or_double_precision():
    single, double, half = (torch.zeros(1, dtype=d) for d in (torch.float32, torch.float64, torch.float16))
    assert working_dtype(single, single) is None
    assert working_dtype(double, double) is None
    assert working_dtype(half, half) == working_dtype(half, single) == working_dtype(single, half) == torch.float32
    assert working_dtype(double, single) == torch.float64

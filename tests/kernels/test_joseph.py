"""Sums along sheared lines and their transpose, in C and in plain torch."""

import pytest
import torch

from lipspline import kernels
from lipspline.kernels import native
from lipspline.kernels.joseph import (
    eager_line_spread,
    eager_line_sums,
    eager_ray_spread,
    eager_ray_sums,
    line_spread,
    line_sums,
    ray_spread,
    ray_sums,
)

needs_c = pytest.mark.skipif(native.library is None, reason="the C kernels are not built")
SIZES = [(1, 1, 1, 1, 2), (2, 3, 5, 4, 6), (1, 7, 9, 2, 3), (3, 2, 20, 5, 11)]  # B, I, J, K, L


def lines(I, K, L):  # noqa: E741
    """Lines that start before, inside and after the row."""
    start = torch.rand(I, K, dtype=torch.float64) * 2 * L - L / 2
    return start, torch.rand(I, K, dtype=torch.float64) * 2 + 0.1


def fading(B, K, L, dtype):
    """Random numbers with zeros at both ends."""
    src = torch.randn(B, K, L, 4, dtype=dtype)
    src[:, :, 0] = src[:, :, -1] = 0
    return src


def one_by_one(src, start, step, count):
    """The definition, written as loops."""
    B, K, L, _ = src.shape
    out = src.new_zeros(B, len(start), count, 4)
    for i in range(len(start)):
        for j in range(count):
            for k in range(K):
                position = float(start[i, k] + j * step[i, k])
                if 0 <= position <= L - 1:
                    n = min(int(position), L - 2)
                    f = position - n
                    out[:, i, j] += (1 - f) * src[:, k, n] + f * src[:, k, n + 1]
    return out


@pytest.mark.parametrize("sizes", SIZES)
def test_eager_sums_follow_the_definition(sizes):
    B, I, J, K, L = sizes  # noqa: E741
    start, step = lines(I, K, L)
    src = fading(B, K, L, torch.float64)
    torch.testing.assert_close(
        eager_line_sums(src, start, step, J), one_by_one(src, start, step, J), rtol=0, atol=1e-12
    )


@needs_c
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-13)], ids=str)
@pytest.mark.parametrize("instruction_set", range(len(native.INSTRUCTION_SETS)), ids=native.INSTRUCTION_SETS)
def test_c_and_eager_agree(sizes, dtype, atol, instruction_set):
    B, I, J, K, L = sizes  # noqa: E741
    start, step = lines(I, K, L)
    src, y = fading(B, K, L, dtype), torch.randn(B, I, J, 4, dtype=dtype)
    assert native.library is not None
    native.library.lipspline_limit_instruction_set(instruction_set)
    try:
        with kernels.using("c"):
            sums, spread = line_sums(src, start, step, J), line_spread(y, start, step, L)
    finally:
        native.library.lipspline_limit_instruction_set(len(native.INSTRUCTION_SETS))
    torch.testing.assert_close(sums, eager_line_sums(src, start, step, J), rtol=0, atol=atol)
    torch.testing.assert_close(spread, eager_line_spread(y, start, step, L), rtol=0, atol=atol)


@needs_c
def test_the_result_does_not_depend_on_the_number_of_threads():
    start, step = lines(9, 40, 30)
    src, y = fading(2, 40, 30, torch.float32), torch.randn(2, 9, 50, 4)
    before = torch.get_num_threads()
    try:
        results = []
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            results.append((line_sums(src, start, step, 50), line_spread(y, start, step, 30)))
    finally:
        torch.set_num_threads(before)
    for sums, spread in results[1:]:
        assert torch.equal(sums, results[0][0])
        assert torch.equal(spread, results[0][1])


@pytest.mark.parametrize("implementation", ["eager", pytest.param("c", marks=needs_c)])
def test_spread_is_the_transpose_of_sums(implementation):
    start, step = lines(4, 5, 8)
    src, y = fading(2, 5, 8, torch.float64), torch.randn(2, 4, 6, 4, dtype=torch.float64)
    with kernels.using(implementation):
        left, right = (line_sums(src, start, step, 6) * y).sum(), (src * line_spread(y, start, step, 8)).sum()
    torch.testing.assert_close(left, right, rtol=1e-12, atol=0)


def test_both_directions_pass_gradcheck_in_every_mode():
    start, step = lines(2, 3, 4)
    src = fading(1, 3, 4, torch.float64).requires_grad_()
    y = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    options = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(lambda t: line_sums(t, start, step, 5), src, **options)
    assert torch.autograd.gradcheck(lambda t: line_spread(t, start, step, 4), y, **options)
    assert torch.autograd.gradgradcheck(lambda t: line_sums(t, start, step, 5).square(), src)


def test_a_vmapped_call_equals_a_loop():
    start, step = lines(2, 3, 4)
    src = torch.stack([fading(2, 3, 4, torch.float64) for _ in range(3)], dim=1)
    looped = torch.stack([line_sums(src[:, k], start, step, 5) for k in range(3)])
    torch.testing.assert_close(torch.func.vmap(lambda t: line_sums(t, start, step, 5), in_dims=1)(src), looped)


def test_half_precision_and_empty_batches_are_served():
    start, step = lines(2, 3, 4)
    src = fading(1, 3, 4, torch.float64)
    half = line_sums(src.bfloat16(), start, step, 5)
    assert half.dtype == torch.bfloat16
    torch.testing.assert_close(half.double(), line_sums(src, start, step, 5), rtol=0, atol=0.1)
    assert line_sums(src[:0], start, step, 5).shape == (0, 2, 5, 4)
    assert line_spread(torch.zeros(0, 2, 5, 4), start, step, 4).shape == (0, 3, 4, 4)


# Rays that fan out


def rays(I, J, K, L):  # noqa: E741
    """Rays of either direction that cross the rows before, inside and after them; some are vertical."""
    start = torch.rand(I, J, dtype=torch.float64) * 2 * L - L / 2
    step = (torch.rand(I, J, dtype=torch.float64) - 0.5) * 3 * L / K
    step[0, 0], start[0, 0] = 0, min(1.25, L - 1)
    return start, step


def ray_by_ray(src, start, step):
    """The definition, written as loops."""
    B, K, L, _ = src.shape
    out = src.new_zeros(B, *start.shape, 4)
    for i in range(len(start)):
        for j in range(start.shape[1]):
            for k in range(K):
                position = float(start[i, j] + k * step[i, j])
                if 0 <= position <= L - 1:
                    n = min(int(position), L - 2)
                    f = position - n
                    out[:, i, j] += (1 - f) * src[:, k, n] + f * src[:, k, n + 1]
    return out


@pytest.mark.parametrize("sizes", SIZES)
def test_eager_sums_of_rays_follow_the_definition(sizes):
    B, I, J, K, L = sizes  # noqa: E741
    start, step = rays(I, J, K, L)
    src = torch.randn(B, K, L, 4, dtype=torch.float64)
    torch.testing.assert_close(eager_ray_sums(src, start, step, J), ray_by_ray(src, start, step), rtol=0, atol=1e-12)


@needs_c
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize(("dtype", "atol"), [(torch.float32, 1e-5), (torch.float64, 1e-13)], ids=str)
@pytest.mark.parametrize("instruction_set", range(len(native.INSTRUCTION_SETS)), ids=native.INSTRUCTION_SETS)
def test_c_and_eager_agree_on_rays(sizes, dtype, atol, instruction_set):
    B, I, J, K, L = sizes  # noqa: E741
    start, step = rays(I, J, K, L)
    src, y = torch.randn(B, K, L, 4, dtype=dtype), torch.randn(B, I, J, 4, dtype=dtype)
    assert native.library is not None
    native.library.lipspline_limit_instruction_set(instruction_set)
    try:
        with kernels.using("c"):
            sums, spread = ray_sums(src, start, step), ray_spread(y, start, step, K, L)
    finally:
        native.library.lipspline_limit_instruction_set(len(native.INSTRUCTION_SETS))
    torch.testing.assert_close(sums, eager_ray_sums(src, start, step, J), rtol=0, atol=atol)
    torch.testing.assert_close(spread, eager_ray_spread(y, start, step, K, L), rtol=0, atol=atol)


@pytest.mark.parametrize("implementation", ["eager", pytest.param("c", marks=needs_c)])
def test_the_spread_of_rays_is_the_transpose_of_their_sums(implementation):
    start, step = rays(4, 6, 5, 8)
    src, y = torch.randn(2, 5, 8, 4, dtype=torch.float64), torch.randn(2, 4, 6, 4, dtype=torch.float64)
    with kernels.using(implementation):
        left, right = (ray_sums(src, start, step) * y).sum(), (src * ray_spread(y, start, step, 5, 8)).sum()
    torch.testing.assert_close(left, right, rtol=1e-11, atol=0)


def test_both_directions_of_rays_pass_gradcheck_in_every_mode():
    start, step = rays(2, 5, 3, 4)
    src = torch.randn(1, 3, 4, 4, dtype=torch.float64, requires_grad=True)
    y = torch.randn(1, 2, 5, 4, dtype=torch.float64, requires_grad=True)
    options = {"check_forward_ad": True, "check_batched_grad": True, "check_batched_forward_grad": True}
    assert torch.autograd.gradcheck(lambda t: ray_sums(t, start, step), src, **options)
    assert torch.autograd.gradcheck(lambda t: ray_spread(t, start, step, 3, 4), y, **options)
    assert torch.autograd.gradgradcheck(lambda t: ray_sums(t, start, step).square(), src)

r"""Orthogonal convolution kernels, and the operator norm of any convolution [lip_linear_layers].

Kernels have torch's layout (c_out, c_in, k) or (c_out, c_in, k, k). Their operator norm is that of the convolution on
the unbounded plane: the largest singular value of :math:`\hat K(\theta) = \sum_t K_t e^{-i t \theta}` over *all*
frequencies. It bounds the convolution on every image, with zero padding (a compression of the one on the plane) and
with circular padding (its restriction to periodic images).
"""

import itertools
import math
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from lipspline._infra import checks
from lipspline._infra.devices import remembered
from lipspline.functional.norm_bounds import (
    OUTWARD,
    ROUND_OFF,
    as_real,
    eigenvalue_upper,
    frobenius_upper,
    power_of_two_above,
    product_error,
    response_norm_upper,
)
from lipspline.kernels.dispatch import opaque

NEARLY_ORTHOGONAL = 1e-5  # a bound this close to the mean of the squared singular values is tight enough
LARGE = 48  # from so many channels on, kernels far from orthogonal are bounded in single precision
FEW = 10  # samples of their response an axis, times (k-1)/2


def bcop_kernel(matrix: Tensor, bases: Tensor) -> Tensor:
    r"""Multiply an orthonormal matrix and 2(k-1) two-tap factors to an orthogonal kernel (BCOP) [lip_linear_layers].

    A projection :math:`P = V V^T` delays half of the channels by one pixel: :math:`P + (I - P) z`. Factors alternate
    between the axes, and between delaying one half and the other, so that the kernel is centred: if all `bases` are
    equal and k is odd it is `matrix` at the middle tap.

    Args:
        matrix: (..., c_out, c_in) with orthonormal columns (c_out >= c_in) or rows (c_out < c_in).
        bases: (..., k-1, axes, n, n // 2) with orthonormal columns, n = max(c_out, c_in); axes is 1, 2 or 3.

    Returns:
        (..., c_out, c_in, k) or (..., c_out, c_in, k, k), the kernel of an isometry W (WᵀW = I) if c_out >= c_in,
        of the adjoint of one (WWᵀ = I) if c_out < c_in.

    Example:
        >>> one_channel_shift = bcop_kernel(torch.ones(1, 1), torch.empty(2, 2, 1, 0))
        >>> one_channel_shift[0, 0]
        tensor([[0., 0., 0.],
                [0., 1., 0.],
                [0., 0., 0.]])
    """
    upwards = matrix.shape[-2] > matrix.shape[-1]
    batch = matrix.shape[:-2]
    steps, axes, n = bases.shape[-4:-1]
    rows = (matrix.mT if upwards else matrix).reshape(*batch, *[1] * axes, min(matrix.shape[-2:]), n)
    factors = itertools.product(range(steps), range(axes))
    for (step, axis), v in zip(factors, bases.flatten(-4, -3).unbind(-3), strict=True):
        flat = rows.reshape(*batch, -1, n)
        part = ((flat @ v) @ v.mT).reshape(rows.shape)
        now, later = (part, rows - part) if step % 2 == 0 else (rows - part, part)
        rows = _pad_taps(now, axis - axes, 0, 1) + _pad_taps(later, axis - axes, 1, 0)
    kernel = rows.movedim((-2, -1), (len(batch), len(batch) + 1))
    return kernel.transpose(len(batch), len(batch) + 1) if upwards else kernel


def _pad_taps(rows: Tensor, axis: int, before: int, after: int) -> Tensor:
    """Add zero taps along a tap axis, counted from the end of (*taps, rows, columns)."""
    return F.pad(rows, [0, 0] * (1 - axis) + [before, after])


def bcop_factors(kernel: Tensor) -> tuple[Tensor, Tensor]:
    r"""Find `matrix` and `bases` with `bcop_kernel(matrix, bases) == kernel` [lip_linear_layers].

    Orthogonality makes the row spaces of the first and the last taps along an axis orthogonal. The last factor's
    projection must contain the one and avoid the other: the leading eigenvectors of the difference of their Gram
    matrices span it. Divided by that factor the kernel has one tap less.

    Args:
        kernel: (c_out, c_in, k) or (c_out, c_in, k, k).

    Raises:
        ValueError: no factors were found. Those of `bcop_kernel` are if the numbers of channels are similar. With few
            channels on one side the spaces leave room for choices, which factors of the other axis may contradict.
    """
    c_out, c_in, *taps = kernel.shape
    axes, steps, n = len(taps), taps[0] - 1, max(c_out, c_in)
    x = kernel.detach().double()
    rows = (x.transpose(0, 1) if c_out > c_in else x).movedim((0, 1), (-2, -1))
    bases = rows.new_empty(steps, axes, n, n // 2)
    for step, axis in reversed(list(itertools.product(range(steps), range(axes)))):
        rows, bases[step, axis] = _divide(rows, axis, flipped=step % 2 == 1)
    matrix = rows.reshape(rows.shape[-2:])
    matrix = matrix.mT if c_out > c_in else matrix
    rebuilt = bcop_kernel(matrix, bases)
    _check_factors(matrix, float((rebuilt - x).abs().max()), kernel)
    return matrix.to(kernel.dtype), bases.to(kernel.dtype)


def _divide(rows: Tensor, axis: int, flipped: bool) -> tuple[Tensor, Tensor]:
    """Split the last factor along `axis` off `rows` (*taps, rows, n): the quotient, and the factor's basis."""
    taps = rows.movedim(axis, 0)
    first, last = (taps[i].reshape(-1, rows.shape[-1]) for i in (0, -1))
    difference = first.mT @ first - last.mT @ last
    _, vectors = torch.linalg.eigh(difference if flipped else -difference)
    basis = vectors[:, : rows.shape[-1] // 2]
    projection = basis @ basis.mT
    part = taps @ projection
    now, later = (taps - part, part) if flipped else (part, taps - part)
    return (now[:-1] + later[1:]).movedim(0, axis), basis


def _check_factors(matrix: Tensor, error: float, kernel: Tensor) -> None:
    small = matrix if matrix.shape[0] <= matrix.shape[1] else matrix.mT
    defect = float((small @ small.mT - torch.eye(len(small), dtype=small.dtype, device=small.device)).abs().max())
    if not max(error, defect) <= 1e-3:
        raise ValueError(
            f"A kernel of shape {tuple(kernel.shape)} is not a product of orthogonal two-tap factors (it misses by "
            f"{max(error, defect):.2g}), so an orthogonal convolution cannot have it as its weight. Load a state_dict "
            f"instead, or use constraint='spectral', which takes any kernel."
        )


def circular_convolution(image: Tensor, kernel: Tensor) -> Tensor:
    """Convolve (c_in, *size) circularly with a kernel (c_out, c_in, *k), each k at most the size, to (c_out, *size)."""
    return _convolve(image, kernel, kernel.shape[2:], lead=lambda k: (k - 1) // 2)


def circular_convolution_adjoint(image: Tensor, kernel: Tensor) -> Tensor:
    """The adjoint of `circular_convolution`: (c_out, *size) to (c_in, *size)."""
    flipped = kernel.transpose(0, 1).flip(tuple(range(2, kernel.ndim)))
    return _convolve(image, flipped, kernel.shape[2:], lead=lambda k: k // 2)


def _convolve(image: Tensor, kernel: Tensor, taps: Sequence[int], lead: Callable[[int], int]) -> Tensor:
    padding = [p for k in reversed(taps) for p in (lead(k), k - 1 - lead(k))]
    convolve = (F.conv1d, F.conv2d, F.conv3d)[len(taps) - 1]
    return convolve(F.pad(image.unsqueeze(0), padding, mode="circular"), kernel).squeeze(0)


def conv_norm_circular(kernel: Tensor, size: Sequence[int]) -> float:
    """The norm of the circular convolution on images of one size, from its frequencies [lip_linear_layers].

    Args:
        kernel: (c_out, c_in, *k).
        size: the image size along each axis.

    Example:
        >>> conv_norm_circular(torch.tensor([[[1.0, -1.0]]]), [8])  # 2 at the highest frequency
        2.0
    """
    frequencies = torch.cartesian_prod(*(torch.arange(n, dtype=torch.float64) for n in size)).reshape(-1, len(size))
    positions = frequencies / torch.tensor(size, dtype=torch.float64)
    offsets = torch.cartesian_prod(*(torch.arange(k, dtype=torch.float64) for k in kernel.shape[2:]))
    phases = torch.exp(-2j * math.pi * (positions @ offsets.reshape(-1, len(size)).mT))
    response = torch.einsum("ft,oit->foi", phases, kernel.detach().flatten(2).to(phases.dtype))
    return float(torch.linalg.matrix_norm(response, ord=2).max())


def conv_norm_upper(
    kernel: Tensor, *, stride: int | Sequence[int] = 1, dilation: int | Sequence[int] = 1, groups: int = 1
) -> float:
    r"""A proven upper bound on the operator norm of a convolution, for every image size [lip_linear_layers].

    An orthogonal kernel needs only its autocorrelation :math:`R_d = \sum_t K_t^T K_{t+d}`: for any c

    .. math:: \|W\|^2 \le c + \|R_0 - c I\| + \sum_{d \ne 0} \|R_d\|

    which is within round-off of its norm.

    The response of other kernels is sampled at N = 16 (k-1) frequencies an axis, or half as many if that is enough. For
    a unit vector x and any c, :math:`p = x^H (\hat K^H \hat K - c I) x` is a real trigonometric polynomial of degree
    d = k-1 along each axis. Such a p stays above :math:`M \cos(d (\theta - \theta^*))` next to the point
    :math:`\theta^*` where its modulus takes its maximum M (Riesz), and some sample is within :math:`\pi / N` of it. So
    the samples miss at most a factor :math:`1 / \cos(\pi d / N)` an axis: 2 percent of the norm of a 3x3 kernel, and
    next to nothing if it is nearly orthogonal, where the right c leaves only the defect.

    Args:
        kernel: (c_out, c_in / groups, *k), real or complex, finite.
        stride: a strided convolution acts on the interleaved sub-images as channels. With circular padding this needs
            image sizes divisible by the stride; else pass 1, as leaving out pixels does not raise the norm.
        dilation: only matters together with a stride.
        groups: the norm is the largest of the groups' norms.

    Example:
        >>> upper = conv_norm_upper(torch.tensor([[[[1.0, 1.0], [1.0, 1.0]]]]) / 4)
        >>> 1 <= upper < 1.02
        True
    """
    axes = kernel.ndim - 2
    checks.at_least("groups", groups, 1)
    checks.divides("groups", groups, "the output channels", kernel.shape[0])
    strides, dilations = _per_axis("stride", stride, axes), _per_axis("dilation", dilation, axes)
    x = kernel.detach()
    if any(s > 1 for s in strides):
        x = _interleave(dilated_kernel(x, dilations), strides)
    return max(_group_norm_upper(as_real(group)) for group in x.chunk(groups))


@opaque(
    "conv_norms_upper(Tensor kernels, int axes) -> Tensor",
    fake=lambda kernels, axes: kernels.new_empty(kernels.shape[: kernels.ndim - axes - 2], dtype=torch.float64),
)
def conv_norms_upper(kernels: Tensor, axes: int) -> Tensor:
    """`conv_norm_upper` of a batch (..., c_out, c_in, *k) as a float64 tensor (...), under vmap and compile."""
    split = kernels.ndim - axes - 2
    bounds = [conv_norm_upper(kernel) for kernel in kernels.reshape(-1, *kernels.shape[split:])]
    return torch.tensor(bounds, dtype=torch.float64, device=kernels.device).reshape(kernels.shape[:split])


def absolute_gram(kernel: Tensor) -> Tensor:
    r"""The absolute entries of :math:`W^T W`, summed over the shifts between pixels (Prach and Lampert, 2022).

    Its row sums bound the squared norm of the operator W from above (Gershgorin).

    Args:
        kernel: (c_out, c_in, *k) of a convolution, or a matrix (m, n).

    Returns:
        (c_in, c_in), symmetric.

    Example:
        >>> absolute_gram(torch.tensor([[[1.0, -2.0]]]))  # 1 + 4 at the shift 0, and -2 at the shifts 1 and -1
        tensor([[9.]])
    """
    if kernel.ndim == 2:
        return (kernel.mT @ kernel).abs()
    columns = kernel.transpose(0, 1)
    correlate = (F.conv1d, F.conv2d, F.conv3d)[kernel.ndim - 3]
    return correlate(columns, columns, padding=[k - 1 for k in kernel.shape[2:]]).abs().flatten(2).sum(2)


def _per_axis(name: str, value: int | Sequence[int], axes: int) -> tuple[int, ...]:
    values = (value,) * axes if isinstance(value, int) else tuple(value)
    return tuple(checks.at_least(name, v, 1) for v in values)


def dilated_kernel(kernel: Tensor, dilations: Sequence[int]) -> Tensor:
    """Put zeros between the taps."""
    sizes = [d * (k - 1) + 1 for d, k in zip(dilations, kernel.shape[2:], strict=True)]
    dilated = kernel.new_zeros(*kernel.shape[:2], *sizes)
    dilated[(..., *(slice(None, None, d) for d in dilations))] = kernel
    return dilated


def _interleave(kernel: Tensor, strides: Sequence[int]) -> Tensor:
    """The kernel, without stride, that acts on the interleaved sub-images as channels."""
    for axis, s in enumerate(strides, start=2):
        taps = -(-kernel.shape[axis] // s)
        padding = [0, 0] * (kernel.ndim - 1 - axis) + [0, taps * s - kernel.shape[axis]]
        kernel = F.pad(kernel, padding).unflatten(axis, (taps, s)).movedim(axis + 1, 2).flatten(1, 2)
    return kernel


@remembered
def _group_norm_upper(kernel: Tensor) -> float:
    x = kernel if kernel.shape[0] >= kernel.shape[1] else kernel.transpose(0, 1)
    scale = power_of_two_above(x)
    x = x / scale
    mean = float(x.square().sum()) / x.shape[1]
    if x.shape[1] >= LARGE and _defect(x, mean) > mean:  # far from orthogonal
        return _large_norm_upper(x) * scale * OUTWARD
    bounds = (
        lambda: _autocorrelation_eigenvalue_upper(x, mean),
        lambda: _absolute_eigenvalue_upper(x),
        lambda: _sampled_eigenvalue_upper(x, mean, density=8),
        lambda: _sampled_eigenvalue_upper(x, mean, density=16),
    )
    square = math.inf
    for bound in bounds:  # each takes much longer than the one before
        square = min(square, bound())
        if square <= mean * (1 + NEARLY_ORTHOGONAL):  # none is below the mean of the eigenvalues
            break
    return math.sqrt(square) * scale * OUTWARD


def _defect(kernel: Tensor, mean: float) -> float:
    """About how far the rows of a kernel, as a matrix, are from orthogonal, in the Frobenius norm."""
    columns = kernel.transpose(0, 1).flatten(1)
    return float(
        (columns @ columns.mT - mean * torch.eye(len(columns), dtype=kernel.dtype, device=kernel.device)).norm()
    )


def _large_norm_upper(kernel: Tensor) -> float:
    r"""Bound the norm of a convolution with many channels, from few samples of its response.

    For unit vectors, :math:`x^H \hat K(\theta) y` times a phase is a trigonometric polynomial of degree
    :math:`d = (k-1)/2` along each axis, whose real part, turned so that it takes the maximum M of the modulus at
    :math:`\theta^*`, stays above
    :math:`M \cos(d (\theta - \theta^*))` (Riesz): N samples miss at most a factor :math:`1 / \cos(\pi d / N)`.
    """
    degrees = [(k - 1) / 2 for k in kernel.shape[2:]]
    samples = [max(math.ceil(FEW * d), 1) for d in degrees]
    spread = math.prod(1 / math.cos(math.pi * d / n) for d, n in zip(degrees, samples, strict=True)) * OUTWARD
    sampled = max(response_norm_upper(batch, rtol=2e-3) for batch in _responses(kernel, samples, entries=2**23))
    return spread * (sampled + _response_error(kernel)) * OUTWARD


def _autocorrelation_eigenvalue_upper(kernel: Tensor, mean: float) -> float:
    """Bound the eigenvalues of the response's Gram matrices, for a kernel with Frobenius norm at most 1.

    The Gram matrix at θ is the sum of R_d exp(-i d θ), and R_{-d} is the transpose of R_d.
    """
    taps = kernel.movedim((0, 1), (-2, -1))
    center = mean * torch.eye(kernel.shape[1], dtype=kernel.dtype, device=kernel.device)
    excess = frobenius_upper(_autocorrelation(taps, (0,) * (taps.ndim - 2)) - center)
    shifts = list(itertools.product(*(range(1 - k, k) for k in taps.shape[:-2])))
    later = [shift for shift in shifts if shift > (0,) * len(shift)]
    excess += 2 * sum(frobenius_upper(_autocorrelation(taps, shift)) for shift in later)
    error = len(shifts) * product_error(taps[..., 0].numel(), is_complex=False)
    return (mean + excess + error) * OUTWARD


def _absolute_eigenvalue_upper(kernel: Tensor) -> float:
    r"""Bound the same by the largest eigenvalue of the absolute Gram matrix G, which is 1 in almost-orthogonal layers.

    For every s > 0 it is at most :math:`\max_i (G s)_i / s_i` (Collatz and Wielandt). Entry (i, j) of a product is off
    by at most its error bound for columns of length 1 times the lengths of columns i and j.
    """
    taps = kernel.movedim((0, 1), (-2, -1))
    shifts = list(itertools.product(*(range(1 - k, k) for k in taps.shape[:-2])))
    gram = torch.stack([_autocorrelation(taps, shift).abs() for shift in shifts]).sum(0)
    lengths = kernel.transpose(0, 1).flatten(1).norm(dim=1)
    error = len(shifts) * (product_error(taps[..., 0].numel(), is_complex=False) + len(shifts) * ROUND_OFF)
    gram = gram + 2 * error * lengths[:, None] * lengths
    least, s = math.inf, torch.ones_like(lengths)
    for _ in range(200):
        longer = gram @ s
        ratios = longer / s
        least = min(least, float(ratios.max()))
        if ratios.max() <= (1 + 1e-9) * ratios.min():
            break
        s = (longer / longer.max().clamp_min(torch.finfo(s.dtype).tiny)).clamp_min(1e-6)
    return least * (1 + 2 * (len(s) + 2) * ROUND_OFF) * OUTWARD


def _autocorrelation(taps: Tensor, shift: Sequence[int]) -> Tensor:
    """The sum of K_tᵀ K_{t+shift} over the taps (*taps, c_out, c_in), as one product."""
    first = taps[tuple(slice(max(0, -d), k - max(0, d)) for d, k in zip(shift, taps.shape, strict=False))]
    second = taps[tuple(slice(max(0, d), k - max(0, -d)) for d, k in zip(shift, taps.shape, strict=False))]
    return first.reshape(-1, taps.shape[-1]).mT @ second.reshape(-1, taps.shape[-1])


def _sampled_eigenvalue_upper(kernel: Tensor, mean: float, density: int) -> float:
    """Bound the eigenvalues of the response's Gram matrices from samples at density * (k-1) frequencies an axis."""
    degrees = [k - 1 for k in kernel.shape[2:]]
    samples = [max(density * d, 1) for d in degrees]
    return eigenvalue_upper(
        lambda: _response_grams(kernel, samples),
        mean=mean,
        error=_response_gram_error(kernel),
        rtol=1e-3,
        spread=math.prod(1 / math.cos(math.pi * d / n) for d, n in zip(degrees, samples, strict=True)) * OUTWARD,
    )


def _response_gram_error(kernel: Tensor) -> float:
    """Bound the spectral norm of the errors of `_response_grams`, for a kernel with Frobenius norm at most 1.

    The response has a Frobenius norm of at most sqrt(taps), which is the sum of the taps' norms. Relative to that sum
    it suffers from the rounding of the phases (of angles below 4 pi: at most 64 u) and of a product with inner
    dimension `taps`. Its Gram matrix inherits this error twice, and adds that of the product.
    """
    c_out, taps = kernel.shape[0], kernel[0, 0].numel()
    relative = product_error(taps, is_complex=True) + 64 * ROUND_OFF
    return taps * (3 * relative + product_error(c_out, is_complex=True))


def _response_error(kernel: Tensor) -> float:
    """Bound the spectral norm of the errors of `_responses`, for a kernel with Frobenius norm at most 1."""
    taps = kernel[0, 0].numel()
    return math.sqrt(taps) * (product_error(taps, is_complex=True) + 64 * ROUND_OFF) * OUTWARD


def _response_grams(kernel: Tensor, samples: Sequence[int]) -> Iterator[Tensor]:
    """Gram matrices of the response on a grid of frequencies, in batches."""
    for response in _responses(kernel, samples, entries=2**24):
        yield response.mH @ response


def _responses(kernel: Tensor, samples: Sequence[int], entries: int) -> Iterator[Tensor]:
    """The response on a grid of frequencies, in batches; by symmetry half of the last axis will do."""
    grid = [torch.arange(n if axis + 1 < len(samples) else n // 2 + 1) for axis, n in enumerate(samples)]
    frequencies = torch.cartesian_prod(*grid).reshape(-1, len(samples))
    offsets = torch.cartesian_prod(*map(torch.arange, kernel.shape[2:])).reshape(-1, len(samples))
    c_out, c_in = kernel.shape[:2]
    weights = kernel.flatten(2).movedim(2, 0).flatten(1).to(torch.complex128)
    for batch in frequencies.split(max(entries // (c_out * c_in), 1)):
        # Integers reduced modulo n keep the angles small, and exact up to a few roundings.
        turns = torch.zeros(len(batch), len(offsets), dtype=torch.float64)
        for i, n in enumerate(samples):
            turns += (torch.outer(batch[:, i], offsets[:, i]) % n).double() / n
        phases = torch.polar(torch.ones_like(turns), -2 * math.pi * turns)
        yield (phases.to(kernel.device) @ weights).reshape(-1, c_out, c_in)

"""MRI on any trajectory, radial, spiral or other: a non-uniform Fourier transform with a proven bound on its norm."""

from functools import cached_property
from math import pi, prod, sqrt
from typing import Any, cast, final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators.base import LinearOperator, Space, rayleigh_lower_bound
from lipspline.operators.coils import check_maps
from lipspline.operators.mri import IMAGES, Images
from lipspline.operators.toeplitz import eigenvalue_bounds

ACCURACY = 1e-9
"""Relative error of the transform that finufft is asked for, in float64 whatever the precision of the images."""
KERNEL_ACCURACY = 1e-12
"""The same for the Toeplitz kernel that the norm is bounded with."""
OUTWARD = 1e-6
"""What is added to the upper bound of the norm for the error of the transform, relatively."""
DENSITY_STEPS, DENSITY_ACCURACY = 15, 1e-4  # of the iteration for the density, and of its transforms


@final
class NonCartesianMRI(LinearOperator):
    """`y_c = W F_k S_c x`: the Fourier transform of the image, seen by each coil, at the points k of a trajectory.

    Args:
        trajectory: real `(..., 2)`, the frequencies along rows and columns in cycles per field of view: a Cartesian
            grid has the integers from -H // 2 and -W // 2. Frequencies beyond half the size of the image are refused.
        shape: height and width of the image.
        maps: complex `(C, H, W)`; one coil that sees everything if not given.
        weights: positive `(...)`, of the samples, such as their distance; data are then multiplied by their roots.
        images: "complex", or "real": then the adjoint takes the real part.

    `x` is `(B, 1, H, W)`; `y` is complex `(B, C, M)` for the M points in the order of the trajectory. Needs finufft
    (extra `nufft`). On a Cartesian grid it is `MultiCoilMRI` with the convention "centred".

    Example:
        >>> H = NonCartesianMRI(radial_trajectory(8, 32), (32, 32))
        >>> H.forward(torch.ones(1, 1, 32, 32)).shape
        torch.Size([1, 1, 256])
    """

    def __init__(
        self,
        trajectory: Tensor,
        shape: tuple[int, int],
        maps: Tensor | None = None,
        *,
        weights: Tensor | None = None,
        images: Images = "complex",
    ):
        checks.require("finufft", "nufft", "MRI on a trajectory")
        height, width = (checks.at_least("A size in shape", n, 1) for n in shape)
        self.trajectory = _checked_trajectory(trajectory, (height, width))
        self.weights = _checked_weights(weights, len(self.trajectory))
        maps = torch.ones(1, height, width, dtype=torch.complex64) if maps is None else check_maps(maps)
        if maps.ndim != 3 or tuple(maps.shape[-2:]) != (height, width):
            raise ValueError(f"The coil maps must be (C, {height}, {width}), but have shape {tuple(maps.shape)}.")
        self.maps = maps
        field = IMAGES[checks.one_of("images", images, IMAGES)]
        self.domain = Space((1, height, width), field)
        self.codomain = Space((len(maps), len(self.trajectory)), "complex")
        self._angles = 2 * pi * self.trajectory / torch.tensor([height, width], dtype=torch.float64)
        self._roots = self.weights.sqrt() / sqrt(height * width)
        seen = (maps != 0).any(dim=0, keepdim=True)
        self._support = None if seen.all() else seen

    @property
    def support(self) -> Tensor | None:
        """Where some coil sees the image; None if there is one for every pixel."""
        return self._support

    def _apply(self, x: Tensor) -> Tensor:
        kind = x.dtype.to_complex()
        seen = self.maps.to(kind) * x
        return _transform(seen, self._angles, self._shape) * self._roots.to(kind)

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        kind = y.dtype.to_complex()
        images = _transpose(y.to(kind) * self._roots.to(kind), self._angles, self._shape)
        image = (images * self.maps.conj().to(images.dtype)).sum(dim=1, keepdim=True)
        return image.real if self.domain.field == "real" else image

    @property
    def _shape(self) -> tuple[int, int]:
        return self.maps.shape[-2], self.maps.shape[-1]

    def norm_bounds(self) -> tuple[float, float]:
        """The largest eigenvalue of HᴴH, a sum of Toeplitz matrices seen by the coils: see `eigenvalue_bounds`."""
        return self._bounds

    def smallest_singular_value(self) -> float | None:
        """None: it is not known for trajectories."""
        return None

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        squares = self._roots.square()
        lower, upper = eigenvalue_bounds(toeplitz_kernel(self._angles, squares, self._shape), self.maps)
        seen = float(self.maps.to(torch.complex128).abs().square().sum(dim=0).max())
        error = KERNEL_ACCURACY * 9 * prod(self._shape) * float(squares.sum()) * seen
        if self.domain.field == "real":  # the largest eigenvalue may belong to no real image
            found = rayleigh_lower_bound(self, max_steps=60, tol=1e-5)
        else:
            found = sqrt(max(lower - error, 0.0)) * (1 - OUTWARD)
        return found, sqrt(upper + error) * (1 + OUTWARD)


def radial_trajectory(spokes: int, samples: int, *, golden: bool = True) -> Tensor:
    """Points `(spokes, samples, 2)` on lines through the middle of k-space, from -samples / 2 to samples / 2 - 1.

    Args:
        golden: turn each line by the golden angle, 111.25 degrees, from the last; else spread them over half a turn.

    Example:
        >>> radial_trajectory(3, 4)[0].abs()
        tensor([[0., 2.],
                [0., 1.],
                [0., 0.],
                [0., 1.]], dtype=torch.float64)
    """
    checks.at_least("spokes", spokes, 1)
    checks.at_least("samples", samples, 2)
    step = pi * (sqrt(5) - 1) / 2 if golden else pi / spokes
    angle = step * torch.arange(spokes, dtype=torch.float64).unsqueeze(1)
    radius = torch.arange(samples, dtype=torch.float64) - samples // 2
    return torch.stack([radius * angle.sin(), radius * angle.cos()], dim=-1)


def density_compensation(trajectory: Tensor, shape: tuple[int, int]) -> Tensor:
    """How much of k-space each point of a trajectory `(..., 2)` stands for, in units of a Cartesian grid, `(...)`.

    Weights w with `w * k = 1` at the points, for a kernel k that is positive and falls to zero within one step of the
    grid (the square of a cardinal sine); by Pipe and Menon's iteration `w <- w / (w * k)`. With these weights the
    adjoint of the transform is nearly its inverse where sampling is dense, and images made by it are called gridded.

    Example:
        >>> points = torch.stack(torch.meshgrid(*2 * [torch.arange(8.0) - 4], indexing="ij"), dim=-1)
        >>> torch.allclose(density_compensation(points, (8, 8)), torch.ones(8, 8, dtype=torch.float64), atol=1e-3)
        True
    """
    checks.require("finufft", "nufft", "MRI on a trajectory")
    points = _checked_trajectory(trajectory, shape)
    angles = 2 * pi * points / torch.tensor(shape, dtype=torch.float64)
    sizes = (2 * shape[0], 2 * shape[1])
    falls = [1 - (torch.arange(2 * n, dtype=torch.float64) - n).abs() / n for n in shape]
    window = (falls[0].unsqueeze(1) * falls[1] / prod(shape)).to(torch.complex128)
    weights = torch.ones(1, len(points), dtype=torch.complex128)
    for _ in range(DENSITY_STEPS):
        images = torch.from_numpy(_sums(weights, angles, sizes, DENSITY_ACCURACY)) * window
        seen = torch.from_numpy(_values(images, angles, DENSITY_ACCURACY)).real
        weights = weights / seen.clamp_min(DENSITY_ACCURACY)
    return weights.real.reshape(trajectory.shape[:-1])


def toeplitz_kernel(angles: Tensor, weights: Tensor, shape: tuple[int, int]) -> Tensor:
    r"""The kernel `t(l) = Σ_m w_m exp(i ω_m·l)` of AᴴA for the lags below the size of the image, `(2H - 1, 2W - 1)`."""
    sizes = (2 * shape[0] - 1, 2 * shape[1] - 1)
    return torch.from_numpy(_sums(weights.to(torch.complex128)[None], angles, sizes, KERNEL_ACCURACY)[0])


def _checked_trajectory(trajectory: Tensor, shape: tuple[int, int]) -> Tensor:
    points = torch.as_tensor(trajectory)
    if points.is_complex() or points.ndim < 2 or points.shape[-1] != 2 or not points.numel():
        raise ValueError(
            f"A trajectory is real with shape (..., 2), frequencies along rows and columns, but is {points.dtype} with "
            f"shape {tuple(points.shape)}."
        )
    points = checks.finite("The trajectory", points).detach().double().reshape(-1, 2).cpu()
    reach = points.abs().amax(dim=0)
    limits = torch.tensor([n / 2 for n in shape], dtype=torch.float64)
    if (reach > limits * (1 + 1e-6) + 0.5).any():
        raise ValueError(
            f"The trajectory reaches frequencies {reach[0]:.4g} and {reach[1]:.4g}, in cycles per field of view, "
            f"beyond half the {shape[0]} x {shape[1]} pixels. Scale it, or give a larger image."
        )
    return points


def _checked_weights(weights: Tensor | None, count: int) -> Tensor:
    if weights is None:
        return torch.ones(count, dtype=torch.float64)
    flat = checks.finite("weights", torch.as_tensor(weights)).detach().double().reshape(-1).cpu()
    if len(flat) != count or not (flat >= 0).all() or not flat.any():
        raise ValueError(
            f"weights must be {count} numbers that are not negative, one for each point of the trajectory."
        )
    return flat


# The transform and its transpose, differentiable as often as wanted


def _transform(x: Tensor, angles: Tensor, shape: tuple[int, int]) -> Tensor:
    """`Σ_p x_p exp(-i ω·p)` for images `(B, C, H, W)`, positions counted from the middle; `(B, C, M)`."""
    return cast(Tensor, _Forward.apply(x, angles, shape))


def _transpose(y: Tensor, angles: Tensor, shape: tuple[int, int]) -> Tensor:
    return cast(Tensor, _Adjoint.apply(y, angles, shape))


class _Forward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, angles: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.angles, ctx.shape = angles, shape
        values = _values(x.detach().to(torch.complex128).flatten(0, 1), angles, ACCURACY)
        return torch.from_numpy(values).view(*x.shape[:2], -1).to(x.dtype).to(x.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _transpose(gradients[0], ctx.angles, ctx.shape), None, None


class _Adjoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, y: Tensor, angles: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.angles, ctx.shape = angles, shape
        images = _sums(y.detach().to(torch.complex128).flatten(0, 1), angles, shape, ACCURACY)
        return torch.from_numpy(images).view(*y.shape[:2], *shape).to(y.dtype).to(y.device)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        return _transform(gradients[0], ctx.angles, ctx.shape), None, None


def _values(images: Tensor, angles: Tensor, accuracy: float) -> NDArray[np.complex128]:
    """`Σ_p x_p exp(-i ω_m·p)` for images `(n, H, W)` with positions counted from the middle, `(n, M)`."""
    finufft = checks.require("finufft", "nufft", "MRI on a trajectory")
    first, second = (np.ascontiguousarray(angles[:, i].cpu().numpy()) for i in (0, 1))
    pixels = np.ascontiguousarray(images.cpu().numpy())
    found = finufft.nufft2d2(first, second, pixels, eps=accuracy, isign=-1, nthreads=torch.get_num_threads())
    return found.reshape(len(pixels), -1)


def _sums(values: Tensor, angles: Tensor, shape: tuple[int, int], accuracy: float) -> NDArray[np.complex128]:
    """`Σ_m y_m exp(i ω_m·p)` for values `(n, M)` at positions counted from the middle, `(n, H, W)`."""
    finufft = checks.require("finufft", "nufft", "MRI on a trajectory")
    first, second = (np.ascontiguousarray(angles[:, i].cpu().numpy()) for i in (0, 1))
    strengths = np.ascontiguousarray(values.cpu().numpy())
    found = finufft.nufft2d1(first, second, strengths, shape, eps=accuracy, isign=1, nthreads=torch.get_num_threads())
    return found.reshape(len(strengths), *shape)

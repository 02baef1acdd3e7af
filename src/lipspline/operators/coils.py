"""Multi-coil Cartesian MRI: one image seen through the sensitivity maps of several coils [sec:exp_pnp]."""

from functools import cached_property
from math import pi, sqrt
from typing import Any, final

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators.base import LinearOperator, Space, rayleigh_lower_bound
from lipspline.operators.mri import CONVENTIONS, Convention, Images, check_mask


@final
class MultiCoilMRI(LinearOperator):
    """`y_c = M F S_c x`: the masked Fourier transform of the image weighted by each coil's sensitivity [sec:exp_pnp].

    Args:
        mask: bool `(W,)` or `(H, W)`, low frequencies in the middle, as for `MRI`.
        maps: complex `(C, H, W)`, or `(B, C, H, W)` for a batch of B images with maps of their own.
        convention, images: as for `MRI`.

    `x` is `(B, 1, H, W)`; `y` is complex `(B, C, H, W)`. Where nothing was measured the adjoint ignores `y`. Where
    all maps are zero, as `espirit` makes them where there is no signal, so is the image: its `support` is the rest.

    Example:
        >>> import torch
        >>> from lipspline.operators import cartesian_mask
        >>> H = MultiCoilMRI(cartesian_mask(32), simulated_maps(4, (32, 32)))
        >>> H.forward(torch.ones(2, 1, 32, 32)).shape
        torch.Size([2, 4, 32, 32])
    """

    def __init__(self, mask: Tensor, maps: Tensor, *, convention: Convention = "paper", images: Images | None = None):
        self._fourier = CONVENTIONS[checks.one_of("convention", convention, CONVENTIONS)].of(images)
        self._options: dict[str, Any] = {"convention": convention, "images": images}
        self.maps = check_maps(maps)
        self.mask = mask = check_mask(mask)
        plane = tuple(maps.shape[-2:])
        _check_fit(mask, plane)
        self._kept = self._fourier.from_centred(torch.atleast_2d(mask))
        batch = maps.shape[0] if maps.ndim == 4 else None
        self.domain = Space((1, *plane), self._fourier.images, batch)
        self.codomain = Space(tuple(maps.shape[-3:]), "complex", batch)
        seen = (self.maps != 0).any(dim=-3, keepdim=True)
        self._support = None if seen.all() else seen

    @property
    def support(self) -> Tensor | None:
        """Where some coil sees the image; None if there is one for every pixel."""
        return self._support

    def _apply(self, x: Tensor) -> Tensor:
        return self._fourier.fft(self.maps.to(x.dtype.to_complex()) * x) * self._kept

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        images = self._fourier.ifft(torch.where(self._kept, y, 0))
        return self._fourier.as_image((images * self.maps.conj().to(images.dtype)).sum(dim=1, keepdim=True))

    def fully_sampled(self) -> "MultiCoilMRI":
        """The same coils, with every frequency measured."""
        return MultiCoilMRI(torch.ones_like(self.mask), self.maps, **self._options)

    def norm_bounds(self) -> tuple[float, float]:
        """From above the largest root sum of squares of the maps, since ‖M F‖ <= 1; from below a Rayleigh quotient."""
        return self._rayleigh, sqrt(float(self._square_sums.max())) * (1 + 1e-12)

    def smallest_singular_value(self) -> float | None:
        """The least root sum of squares of the maps, if every frequency is measured [eq:H_invert]."""
        least = float(self._square_sums.min())
        return sqrt(least) * (1 - 1e-12) if self.mask.all() and least > 0 else None

    @cached_property
    def _rayleigh(self) -> float:
        return rayleigh_lower_bound(self)

    @cached_property
    def _square_sums(self) -> Tensor:
        return self.maps.to(torch.complex128).abs().square().sum(dim=-3)


GAP = 16
"""Rows of zeros between the images of two sets of maps: no filter of a prior sees both."""


@final
class SoftSenseMRI(LinearOperator):
    """`y_c = M F Σ_m S_mc x_m`: several images, each seen through a set of coil maps of its own (soft SENSE).

    Where the field of view is smaller than the object two places of it fall on one pixel. One set of maps cannot
    describe what the coils see there; two can, and each gets an image.

    Args:
        mask: bool `(W,)` or `(H, W)`, low frequencies in the middle, as for `MRI`.
        maps: complex `(M, C, H, W)`, as `espirit_sets` estimates them.
        convention, images: as for `MRI`.

    The M images are one image `(B, 1, M H + 16 (M - 1), W)`: one below the other, with rows of zeros between them,
    which are outside the `support`. So whatever is known and proven for one image holds for them; `split` takes them
    apart. `y` is complex `(B, C, H, W)`.

    Example:
        >>> import torch
        >>> from lipspline.operators import cartesian_mask
        >>> H = SoftSenseMRI(cartesian_mask(32), simulated_maps(8, (32, 32)).unflatten(0, (2, 4)))
        >>> x = torch.ones(1, 1, 80, 32)
        >>> H.forward(x).shape, H.split(x).shape
        (torch.Size([1, 4, 32, 32]), torch.Size([1, 2, 32, 32]))
    """

    def __init__(self, mask: Tensor, maps: Tensor, *, convention: Convention = "paper", images: Images | None = None):
        self._fourier = CONVENTIONS[checks.one_of("convention", convention, CONVENTIONS)].of(images)
        if maps.ndim != 4:
            raise ValueError(f"Sets of coil maps have shape (M, C, H, W), but these have {tuple(maps.shape)}.")
        self.maps, self.mask = check_maps(maps), check_mask(mask)
        sets, coils, height, width = maps.shape
        _check_fit(mask, (height, width))
        self._kept = self._fourier.from_centred(torch.atleast_2d(mask))
        self.domain = Space((1, sets * height + GAP * (sets - 1), width), self._fourier.images)
        self.codomain = Space((coils, height, width), "complex")
        self._support = self.stack((self.maps != 0).any(dim=1)[None])[0]

    @property
    def support(self) -> Tensor:
        """Where some coil sees an image: not between the images."""
        return self._support

    def split(self, x: Tensor) -> Tensor:
        """The images `(B, M, H, W)` of one `(B, 1, M H + 16 (M - 1), W)`."""
        height = self.maps.shape[-2]
        return torch.stack([x[:, 0, top : top + height] for top in range(0, x.shape[-2], height + GAP)], dim=1)

    def stack(self, images: Tensor) -> Tensor:
        """The adjoint of `split`: images `(B, M, H, W)` one below the other."""
        padded = torch.nn.functional.pad(images, (0, 0, 0, GAP))
        return padded.flatten(1, 2)[:, None, :-GAP]

    def _apply(self, x: Tensor) -> Tensor:
        maps = self.maps.to(x.dtype.to_complex())
        seen = torch.einsum("mchw,bmhw->bchw", maps, self.split(x).to(maps.dtype))
        return self._fourier.fft(seen) * self._kept

    def _apply_adjoint(self, y: Tensor) -> Tensor:
        images = self._fourier.ifft(torch.where(self._kept, y, 0))
        maps = self.maps.conj().to(images.dtype)
        return self._fourier.as_image(self.stack(torch.einsum("mchw,bchw->bmhw", maps, images)))

    def norm_bounds(self) -> tuple[float, float]:
        """From above the largest norm of the matrix S_mc of a pixel, as ‖M F‖ <= 1; from below a Rayleigh quotient.

        Pixels do not meet before the Fourier transform, so that the norm of all maps is that of the worst pixel. From
        below what this pixel gives is tried too: where all is measured it is the norm.
        """
        return self._bounds

    def smallest_singular_value(self) -> None:
        """Not known: between the images there are pixels that nothing is measured of."""

    @cached_property
    def _bounds(self) -> tuple[float, float]:
        pixels = self.maps.to(torch.complex128).flatten(2).permute(2, 1, 0)
        squares, vectors = torch.linalg.eigh(pixels.mH @ pixels)
        worst = int(squares[:, -1].argmax())
        x = torch.zeros(1, *self.maps.shape[::2], self.maps.shape[-1], dtype=torch.complex128, device=self.maps.device)
        x.flatten(2)[0, :, worst] = vectors[worst, :, -1]
        x = self._fourier.as_image(self.stack(x))
        alone = float(self.forward(x).norm() / x.norm().clamp_min(torch.finfo(torch.float64).tiny))
        upper = sqrt(float(squares[worst, -1])) * (1 + 1e-12)
        return max(rayleigh_lower_bound(self), alone * (1 - 1e-9)), upper


def simulated_maps(coils: int, shape: tuple[int, int], *, distance: float = 1.5) -> Tensor:
    """Sensitivity maps of a birdcage, complex64 `(coils, H, W)` with Σ|S_c|² = 1 at every pixel.

    The coils stand evenly on a circle around the image. With the image as the square [-1, 1]² of the complex plane, the
    coil at p sees the point z with a sensitivity proportional to 1/(1 - z/p): it falls off as one over the distance.

    Args:
        distance: radius of the circle, more than sqrt(2), which is where the corners of the image lie.

    Example:
        >>> maps = simulated_maps(8, (64, 48))
        >>> maps.shape, round(float(maps.abs().square().sum(0).min()), 4)
        (torch.Size([8, 64, 48]), 1.0)
    """
    checks.at_least("coils", coils, 1)
    checks.within("distance", distance, sqrt(2), float("inf"), "The coils must stand outside the image.")
    height, width = (checks.at_least("A size in shape", n, 1) for n in shape)
    y = (torch.arange(height, dtype=torch.float64).unsqueeze(1) - (height - 1) / 2) / (height / 2)
    x = (torch.arange(width, dtype=torch.float64) - (width - 1) / 2) / (width / 2)
    angles = 2 * pi * torch.arange(coils, dtype=torch.float64) / coils
    position = torch.polar(torch.full_like(angles, distance), angles).view(-1, 1, 1)
    maps = 1 / (1 - torch.complex(x.expand(height, -1), y.expand(-1, width)) / position)
    return (maps / torch.linalg.vector_norm(maps, dim=0)).to(torch.complex64)


def compress_coils(kspace: Tensor, coils: int) -> Tensor:
    """The `coils` virtual coils that carry most energy, as orthonormal combinations of the real ones.

    Args:
        kspace: complex `(C, H, W)` or `(B, C, H, W)`; compress before estimating maps.

    Example:
        >>> import torch
        >>> compress_coils(torch.ones(8, 16, 16, dtype=torch.complex64), 3).shape
        torch.Size([3, 16, 16])
    """
    return (strongest_combinations(kspace, coils).mH @ kspace.flatten(-2)).unflatten(-1, kspace.shape[-2:])


def strongest_combinations(kspace: Tensor, coils: int) -> Tensor:
    """Orthonormal columns `(C, coils)`, or `(B, C, coils)`: the combinations of coils that carry most energy."""
    available = kspace.shape[-3]
    if not 1 <= coils <= available:
        raise ValueError(f"compress_coils can make 1 to {available} coils of {available}, but was asked for {coils}.")
    samples = kspace.flatten(-2)
    _, directions = torch.linalg.eigh(samples @ samples.mH)  # in ascending order
    return directions.flip(-1)[..., :coils]


def _check_fit(mask: Tensor, plane: tuple[int, ...]) -> None:
    if mask.shape != plane[-mask.ndim :]:
        raise ValueError(f"The sampling mask {tuple(mask.shape)} does not fit the {plane} pixels of the coil maps.")


def check_maps(maps: Tensor) -> Tensor:
    """Return coil maps if they are complex, finite and not zero everywhere."""
    if maps.ndim not in (3, 4) or not maps.is_complex():
        raise ValueError(
            f"Coil maps must be complex with shape (C, H, W) or (B, C, H, W), but are {maps.dtype} with shape "
            f"{tuple(maps.shape)}."
        )
    if not maps.any():
        raise ValueError("The coil maps are zero everywhere: nothing would be measured.")
    return checks.finite("The coil maps", maps, "Mask the pixels without signal to zero.").detach()

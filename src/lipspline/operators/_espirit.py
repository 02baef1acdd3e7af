"""Coil sensitivity maps from the calibration region of k-space: ESPIRiT [sec:exp_pnp]."""

from math import pi

import torch
from torch import Tensor

from lipspline._infra import checks
from lipspline.operators.mri import CONVENTIONS, Convention, calibration_region, central, centred_ifft

UNCROPPED = 1e-3
"""A `crop` that keeps maps wherever they are known at all, for reconstruction.

Zeroing them off the anatomy, where there is faint signal and noise all the same, lost 5 dB of a least-squares fit at
acceleration 8, whose few calibration columns make eigenvalues small.
"""
ROWS_AT_ONCE = 16  # bounds the memory of the local eigenvalue problems


def espirit(
    kspace: Tensor,
    *,
    calibration: int = 24,
    kernel: int = 6,
    threshold: float = 0.02,
    crop: float = 0.95,
    required: float = 0.0,
    convention: Convention = "paper",
) -> Tensor:
    """Estimate coil maps from the fully sampled middle of k-space [sec:exp_pnp].

    Small windows of multi-coil k-space span a space of low dimension. At each pixel the maps are the vector of coil
    weights, of unit length, whose plane wave lies closest to that space: the leading eigenvector of a C x C matrix
    whose entries are trigonometric polynomials (the autocorrelation of a basis of that space).

    Args:
        kspace: complex `(C, H, W)` or `(B, C, H, W)`, zero where not sampled.
        calibration: the largest height and width of the region to use; a smaller sampled region is found and used.
        kernel: width of the window.
        threshold: singular values of the windows below this fraction of the largest are taken for noise.
        crop: the maps are zero where the eigenvalue, at most 1, is below this: there is no signal there.
        required: an error if the eigenvalue is nowhere above this: then there is nothing but noise.
        convention: as for `MRI`. Under "centred" the maps are real in the first coil; under "paper", where images are
            real, they carry the phase that makes the image of the calibration region real.

    Returns:
        complex maps of the shape of `kspace`; Σ|S_c|² is 1 or, where cropped, 0.

    Example:
        >>> import torch
        >>> from lipspline.operators import simulated_maps
        >>> maps = simulated_maps(4, (64, 64))
        >>> image = torch.zeros(64, 64)
        >>> image[16:48, 16:48] = 1
        >>> estimate = espirit(torch.fft.fft2(maps * image, norm="ortho"))
        >>> cosine = (estimate * maps.conj()).sum(0).abs()[20:44, 20:44]
        >>> bool(cosine.min() > 0.999)
        True
    """
    _check_kspace(kspace)
    checks.at_least("kernel", kernel, 2)
    checks.at_least("calibration", calibration, kernel, "One window, `kernel` wide, must fit.")
    checks.within("threshold", threshold, 0, 1)
    checks.within("crop", crop, 0, 1)
    fourier = CONVENTIONS[checks.one_of("convention", convention, CONVENTIONS)]
    if kspace.ndim == 4:
        options = {"calibration": calibration, "kernel": kernel, "threshold": threshold, "crop": crop}
        return torch.stack([espirit(one, required=required, convention=convention, **options) for one in kspace])
    plane = tuple(kspace.shape[-2:])
    region = calibration_region(fourier.to_centred(kspace), calibration, kernel)
    (maps,), (values,) = leading_maps(window_correlation(region, kernel, threshold), plane, 1, required)
    maps = maps * (values > crop)
    phase = (maps.conj() * region_images(region, plane)).sum(dim=0) if fourier.images == "real" else maps[0].conj()
    return fourier.from_centred(maps * torch.where(phase == 0, 1, torch.sgn(phase)))


def espirit_sets(
    kspace: Tensor,
    sets: int = 2,
    *,
    calibration: int = 24,
    kernel: int = 6,
    threshold: float = 0.02,
    required: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """Several sets of coil maps, for a field of view that is smaller than the object, each with its eigenvalue.

    Where two places of the object fall on one pixel two eigenvalues of `espirit` are near 1, and elsewhere one.

    Args:
        kspace: complex `(C, H, W)`, frequency zero in the middle, zero where not sampled.
        sets: how many; C at most.
        calibration, kernel, threshold, required: as for `espirit`.

    Returns:
        complex maps `(sets, C, H, W)`, orthonormal at each pixel, the largest eigenvalue first; and eigenvalues
        `(sets, H, W)`.
    """
    _check_kspace(kspace)
    if kspace.ndim != 3 or not 1 <= sets <= len(kspace):
        raise ValueError(f"espirit_sets makes 1 to C sets of k-space (C, H, W), not {sets} of {tuple(kspace.shape)}.")
    region = calibration_region(kspace, calibration, kernel)
    correlation = window_correlation(region, kernel, threshold)
    return leading_maps(correlation, tuple(kspace.shape[-2:]), sets, required)


def window_correlation(region: Tensor, kernel: int, threshold: float) -> Tensor:
    """Autocorrelation `(2k-1, 2k-1, C, C)` of an orthonormal basis of the windows of `region (C, h, w)`."""
    C = region.shape[0]
    windows = region.unfold(1, kernel, 1).unfold(2, kernel, 1).permute(1, 2, 0, 3, 4).flatten(2).flatten(0, 1)
    _, sizes, basis = torch.linalg.svd(windows, full_matrices=False)
    basis = basis[sizes > threshold * sizes[0]]
    projector = (basis.mT @ basis.conj()).view(C, kernel**2, C, kernel**2).permute(1, 3, 0, 2)
    row, column = (index.flatten() for index in torch.meshgrid(*2 * [torch.arange(kernel)], indexing="ij"))
    lag = (row.unsqueeze(1) - row + kernel - 1) * (2 * kernel - 1) + (column.unsqueeze(1) - column + kernel - 1)
    sums = projector.new_zeros((2 * kernel - 1) ** 2, C, C)
    sums.index_add_(0, lag.flatten().to(region.device), projector.flatten(0, 1))
    return sums.unflatten(0, (2 * kernel - 1, 2 * kernel - 1)) / kernel**2


def leading_maps(
    correlation: Tensor, plane: tuple[int, ...], sets: int = 1, required: float = 0.0
) -> tuple[Tensor, Tensor]:
    """Leading eigenvectors `(sets, C, H, W)` of the transform of `correlation` at each pixel, and eigenvalues."""
    rows, columns = (_waves(n, correlation) for n in plane)
    along_rows = torch.einsum("wb,abcd->awcd", columns, correlation)
    maps, eigenvalues = [], []
    for some in rows.split(ROWS_AT_ONCE):
        values, vectors = torch.linalg.eigh(torch.tensordot(some, along_rows, dims=1))
        maps.append(vectors[..., -sets:])
        eigenvalues.append(values[..., -sets:])
    values = torch.cat(eigenvalues).flip(-1).permute(2, 0, 1)
    if not float(values.max()) > required:
        raise ValueError(
            f"No coil maps are determined: the largest eigenvalue is {float(values.max()):.3g}, not above {required:g}."
        )
    return torch.cat(maps).flip(-1).permute(3, 2, 0, 1).contiguous(), values


def region_images(region: Tensor, plane: tuple[int, ...]) -> Tensor:
    """Blurred coil images `(C, H, W)` of the calibration region, tapered towards its edge against ringing."""
    (H, W), (h, w) = plane, region.shape[1:]
    padded = region.new_zeros(region.shape[0], H, W)
    central(padded, h, w).copy_(region * (_taper(h, region).unsqueeze(1) * _taper(w, region)))
    return centred_ifft(padded)


def _waves(size: int, like: Tensor) -> Tensor:
    """exp(2πi p lag/size) for the centred positions p `(size,)` and the lags of `like`, `(size, lags)`."""
    lags = torch.arange(like.shape[0], device=like.device) - like.shape[0] // 2
    position = torch.arange(size, device=like.device) - size // 2
    angle = 2 * pi * (position.unsqueeze(1) * lags % size).double() / size
    return torch.polar(torch.ones_like(angle), angle).to(like.dtype)


def _taper(size: int, like: Tensor) -> Tensor:
    return torch.hann_window(size + 2, periodic=False, dtype=like.real.dtype, device=like.device)[1:-1]


def _check_kspace(kspace: Tensor) -> None:
    if kspace.ndim not in (3, 4) or not kspace.is_complex():
        raise ValueError(
            f"espirit needs complex k-space of shape (C, H, W) or (B, C, H, W), but got {kspace.dtype} with shape "
            f"{tuple(kspace.shape)}."
        )
    checks.finite("kspace", kspace)

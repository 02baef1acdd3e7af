"""Noise of measured k-space: how strong it is, how it is correlated between coils, and coils in which it is white.

With the covariance Ψ of the noise of the coils, data and maps are multiplied by Ψ^(-1/2): in the new coils noise is
equally strong and uncorrelated, which is what a least-squares data term supposes. Few combinations of these coils carry
nearly all of the signal; the others are left out if fewer coils are asked for.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from lipspline.operators.coils import strongest_combinations

FILTERED = 0.2
"""Ends of the field of view with less noise than this, over that of high frequencies, were set to zero by a filter."""
SILENT = 0.02
"""The same for corners of the image, over the farthest points of k-space, which may hold much signal."""
GAUSSIAN_MEDIAN = 0.6745  # of the modulus of a standard normal number
SAMPLES = 20  # of noise, for each coil, that an estimate of the covariance needs
TRIMMED = 0.8  # of the samples are kept, those with the smallest moduli: the others may hold signal
CORRELATED = 0.02  # the least eigenvalue of correlations of noise; coils that are closer than this share signal
SINGULAR = 1e-6  # of the largest eigenvalue of a covariance: one below it cannot be divided by


@dataclass(frozen=True)
class Mixing:
    """Coils made of coils: `(N, C)` forwards, `(C, N)` back."""

    forwards: Tensor
    back: Tensor

    def data(self, data: Tensor) -> Tensor:
        """k-space or images `(..., C, H, W)` in the new coils."""
        return torch.einsum("nc,...chw->...nhw", self.forwards, data)

    def restored(self, maps: Tensor) -> Tensor:
        """Maps `(N, H, W)` of the new coils in the measured ones."""
        return torch.einsum("cn,nhw->chw", self.back, maps)

    def then(self, other: "Mixing") -> "Mixing":
        """This one first, then another."""
        return Mixing(other.forwards @ self.forwards, self.back @ other.back)


def whitening(covariance: Tensor) -> Mixing:
    """Coils in which noise of this covariance `(C, C)` is white, as strong as it was on average.

    Example:
        >>> covariance = torch.tensor([[2.0, 1.0j], [-1.0j, 4.0]])
        >>> mixing = whitening(covariance)
        >>> torch.round((mixing.forwards @ covariance @ mixing.forwards.mH).abs(), decimals=4)
        tensor([[3., 0.],
                [0., 3.]])
    """
    values, vectors = torch.linalg.eigh(covariance.to(torch.complex128))
    if not values[-1] > 0 or values[0] <= SINGULAR * values[-1]:
        raise ValueError(
            f"The noise of the {len(values)} coils has a covariance without inverse (eigenvalues from {values[0]:.3g} "
            f"to {values[-1]:.3g}). Leave out coils that repeat others, or give whiten=none."
        )
    sizes = (values / values.mean()).sqrt()
    roots = ((vectors / sizes) @ vectors.mH, (vectors * sizes) @ vectors.mH)
    return Mixing(*(root.to(torch.complex64) for root in roots))


FARTHEST = 16
"""One in so many of the points of a plane mask is taken for noise."""
QUIETEST = 32
"""One in so many of the points is taken from where k-space is quietest."""
CELLS = 16  # along each side of k-space, at most, in which its power is compared
CELL = 64  # points of a cell, at least, on average


def virtual_coils(data: Tensor, coils: int) -> Mixing:
    """The `coils` orthonormal combinations of whitened coils, of k-space `(C, H, W)`, that carry most energy."""
    directions = strongest_combinations(data, coils)
    return Mixing(directions.mH.contiguous(), directions.contiguous())


def noise_in_kspace(data: Tensor, mask: Tensor) -> float:
    """An estimate of the noise of real and imaginary parts of centred k-space `(B, C, H, W)`.

    The median of the moduli in places where images have little to say: the highest frequencies along the readout;
    where whole readouts were measured, the positions at the two ends of the field of view; where single points were,
    those farthest from the middle, and the corners of the image if it is not aliased; and the parts of k-space with
    least power, for edges reach into its corners. Images can only add to a median, so the smallest is taken.
    """
    return deviation(noise_samples(data, mask))


def noise_samples(data: Tensor, mask: Tensor) -> Tensor:
    """The values `(B, C, n)` that `noise_in_kspace` takes for noise."""
    height, width = data.shape[-2:]
    outer = (torch.arange(height) - height // 2).abs() >= height // 2 - max(1, height // 16)
    fast = data[..., (torch.atleast_2d(mask) & outer.unsqueeze(1)).expand(height, width)]
    plane = torch.atleast_2d(mask).expand(height, width)
    fast = _quieter(fast, _quietest(data, plane))
    whole = plane.all(dim=0)
    if not whole.any():
        found = _quieter(fast, data[..., _farthest(plane)])
        return _quieter(found, _corners(data, plane), SILENT) if without_gaps(plane) else found
    readouts = torch.fft.fftshift(
        torch.fft.ifft(torch.fft.ifftshift(data[..., whole], dim=-2), dim=-2, norm="ortho"), dim=-2
    )
    return _quieter(fast, readouts[..., outer, :].flatten(-2))


def _quieter(usual: Tensor, other: Tensor, filtered: float = FILTERED) -> Tensor:
    """The samples with less in them, unless a filter has silenced them."""
    quiet = filtered * deviation(usual) < deviation(other) < deviation(usual)
    return other if quiet or deviation(usual) == 0 else usual


def _corners(data: Tensor, plane: Tensor) -> Tensor:
    """The corners of the images of k-space that a mask `(H, W)` keeps, with the noise that it has in k-space."""
    images = torch.fft.fftshift(torch.fft.ifft2(torch.fft.ifftshift(data, dim=(-2, -1)), norm="ortho"), dim=(-2, -1))
    rows, columns = ((torch.arange(n) - n // 2).abs() >= n // 2 - max(1, n // 8) for n in plane.shape)
    return images[..., rows.unsqueeze(1) & columns] * (plane.numel() / max(1, int(plane.sum()))) ** 0.5


def without_gaps(mask: Tensor) -> bool:
    """Whether what a mask `(H, W)` keeps of each row and each column is one piece: then nothing is aliased.

    Example:
        >>> without_gaps(torch.tensor([[False, True, True]])), without_gaps(torch.tensor([[True, False, True]]))
        (True, False)
    """
    return all(
        bool((mask.int().diff(dim=dim).clamp_min(0).sum(dim) + mask.select(dim, 0) <= 1).all()) for dim in (0, 1)
    )


def _farthest(plane: Tensor) -> Tensor:
    """One in so many of the points that a mask `(H, W)` keeps: those farthest from the middle of k-space."""
    rows, columns = ((torch.arange(n, dtype=torch.float64) - n // 2) / n for n in plane.shape)
    radius = torch.where(plane, rows.square().unsqueeze(1) + columns.square(), -1.0)
    count = max(1, int(plane.sum()) // FARTHEST)
    return plane & (radius >= radius.flatten().topk(count).values[-1])


def _quietest(data: Tensor, plane: Tensor) -> Tensor:
    """Points of the cells of k-space with least power, one in `QUIETEST` of those that a mask `(H, W)` keeps.

    Every second point of a cell says how quiet it is, and the others are taken for it: to choose by the values that are
    taken would make noise look weaker than it is.
    """
    values, points = data[..., plane], plane.nonzero()
    power, side = values.abs().square().sum(dim=(0, 1)), max(1, min(CELLS, int((len(points) / CELL) ** 0.5)))
    cells = points[:, 0] * side // plane.shape[0] * side + points[:, 1] * side // plane.shape[1]
    even = torch.arange(len(points)) % 2 == 0
    found = [values[..., other & _quiet(cells, power, some)[cells]] for some, other in ((even, ~even), (~even, even))]
    return torch.cat(found, dim=-1)


def _quiet(cells: Tensor, power: Tensor, some: Tensor) -> Tensor:
    """Which cells are the quietest by the power of some of their points: enough of them for one point in `QUIETEST`."""
    points = torch.bincount(cells)
    seen = torch.bincount(cells[some], minlength=len(points))
    sums = torch.zeros(len(points), dtype=power.dtype).index_add_(0, cells[some], power[some])
    means = torch.where((seen >= CELL // 8) & (sums > 0), sums / seen.clamp_min(1), torch.inf)
    order = means.argsort()
    enough = points[order].cumsum(0) - points[order] < len(cells) / QUIETEST
    return torch.zeros(len(points), dtype=torch.bool).index_fill_(0, order[enough & means[order].isfinite()], True)


def noise_covariance(samples: Tensor) -> Tensor | None:
    """An estimate `(C, C)` of the covariance of the noise of real parts from samples `(1, C, n)`; None if unknown.

    Without the largest samples, which may hold signal. Coils that are silent have noise of average strength.
    """
    samples, coils = samples[0], samples.shape[1]
    if samples.shape[1] < SAMPLES * len(samples):
        return None
    heard = samples.abs().median(dim=1).values > 0
    samples = samples[heard]
    if not len(samples):
        return None
    levels = torch.stack([torch.tensor(deviation(coil)) for coil in samples])
    sizes = (samples / levels[:, None]).abs().square().sum(dim=0)
    kept = samples[:, sizes <= sizes.quantile(TRIMMED)].to(torch.complex128)
    found = kept @ kept.mH / (2 * kept.shape[1])
    shares = (levels.double() / found.diagonal().real.sqrt()).to(found.dtype)
    found = found * shares[:, None] * shares  # what was left out made every coil quieter
    if torch.linalg.eigvalsh(found / (levels[:, None] * levels))[0] < CORRELATED:
        return None
    covariance = torch.eye(coils, dtype=torch.complex128) * found.diagonal().mean()
    covariance[heard.nonzero(), heard.nonzero().T] = found
    return covariance


def deviation(samples: Tensor) -> float:
    """Standard deviation of noise from the median of the moduli of real and imaginary parts; 0 without samples."""
    parts = torch.view_as_real(samples.contiguous()).abs().flatten()
    return float(parts.median()) / GAUSSIAN_MEDIAN if len(parts) else 0.0

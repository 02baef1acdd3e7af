"""One slice as a problem in the scale that priors are trained for, its solution, and its score [eq:pnp_fbs]."""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from lipspline.formats.volume import Unit
from lipspline.functional.quality import object_mask, scores
from lipspline.operators import LinearOperator, SoftSenseMRI
from lipspline.pnp import Evidence, Progress, Solution, fbs, minimize
from lipspline.priors import Energy
from lipspline.report import Case, DataMisfit, Picture, Rescale

Modality = Literal["MR", "CT"]
BRIGHTEST = 1000
"""The scale of a slice is the value that one pixel in so many exceeds."""
SMALLEST_SCALE = 1e-30  # squares of what is divided by it must be finite and not zero in float32, with some room


@dataclass(frozen=True)
class Problem:
    """Data `y = H x + n` of one slice, divided by `scale` so that x lies in about [0, 1].

    The noise level of a denoiser is meant for images in [0, 1], so data are divided by the brightness of a direct
    reconstruction of them (`brightness`), and the result is multiplied by it.
    """

    y: Tensor
    """`(1, *H.output_shape)`."""
    H: LinearOperator
    direct: Tensor
    """Zero-filled reconstruction or filtered backprojection, `(1, 1, H, W)`, in the scale of x."""
    scale: float
    noise: float
    """Standard deviation of the noise in `y`: added in a simulation, measured, or estimated."""
    crop: tuple[int, int] | None = None
    """Size of the middle part of x that is wanted."""
    truth: Tensor | None = None
    """What x should be, `(h, w)`, cropped, real, with values up to about 1."""
    truth_measured: bool = False
    """Whether the truth comes from measurements, and so holds noise."""
    start: Tensor | None = None
    """Where to start from; `α Hᵀ y` if not given."""
    positive: bool = False
    """Whether x is known not to be negative; energies make use of it."""
    along: int | None = None
    """The dimension of y that numbers readouts or projections; some of them can be held out to choose a strength."""
    samples: int = 1
    """How many entries of y in a row, along that dimension, make one of them."""
    trials: tuple[float, int] = (2e-4, 60)
    """How far a strength on trial is solved: tolerance, most steps. An H that enlarges few images much needs more."""
    phase: Tensor | None = None
    """Complex numbers `(H, W)` of modulus 1 that H multiplies x by, so that x is nearly real.

    With M sets of coil maps `(M, H, W)`: the weights of the sets, with these phases."""
    estimated: bool = False
    """Whether the noise was estimated from the data themselves."""
    map_errors: float = 0.0
    """What errors of the coil maps add to the noise at most, as a standard deviation, where the data show it."""
    map_passes: int = 0
    """How often the coil maps were estimated again from a first image."""

    @property
    def total_noise(self) -> float:
        """Noise and errors of the coil maps together: what a strength is chosen for."""
        return math.hypot(self.noise, self.map_errors)

    def to(self, device: torch.device) -> "Problem":
        """The same problem on a device."""
        tensors = {name: getattr(self, name) for name in ("y", "direct", "truth", "start", "phase")}
        moved = {name: None if tensor is None else tensor.to(device) for name, tensor in tensors.items()}
        return replace(self, H=self.H.to(device), **moved)

    def image(self, x: Tensor) -> Tensor:
        """The wanted part `(h, w)` of an x, still in its scale, with its phase.

        Of several sets of coil maps it is the root of the sum of squares, as for coils, with the phase of the first.
        """
        if isinstance(self.H, SoftSenseMRI):
            images = self.H.split(x)[0]
            images = images if self.phase is None else images * self.phase
            return middle(torch.linalg.vector_norm(images, dim=0) * torch.sgn(images[0]), self.crop)
        return middle(x[0, 0] if self.phase is None else x[0, 0] * self.phase, self.crop)

    def misfit(self, x: Tensor) -> DataMisfit:
        """How far the data that x predicts are from y, and how far noise would put them."""
        size = float(self.y.norm()) or 1.0
        values = float((self.y != 0).sum()) * (2 if self.y.is_complex() else 1)
        with torch.no_grad():
            residual, noise = self.H.forward(x) - self.y, self.noise * math.sqrt(values)
        common = 0.0 if self.y.is_complex() or self.along != -2 else in_common(residual[0, 0])
        return DataMisfit(float(residual.norm()) / size, noise / size, self.estimated, common)

    def quality(self, x: Tensor) -> dict[str, float]:
        """PSNR and SSIM of the modulus, profile `paper`, with the maximum of the truth as 1.

        For a truth that was measured also `psnr_object` and `ssim_object`, within `functional.quality.object_mask`.
        Empty without truth, and without what is not finite.
        """
        if self.truth is None:
            return {}
        found = scores(self.image(x), self.truth)
        if self.truth_measured:
            inside = scores(self.image(x), self.truth, within=object_mask(self.truth))
            found |= {f"{name}_object": score for name, score in inside.items()}
        return {name: score for name, score in found.items() if math.isfinite(score)}


def in_common(residual: Tensor) -> float:
    """The correlation of neighbours in a sinogram `(A, D)`, along angles or detectors, whichever is smaller.

    Example:
        >>> f"{in_common(torch.ones(4, 4)):.3f}", in_common(torch.tensor([[1.0, -1.0], [-1.0, 1.0]]))
        ('1.000', 0.0)
    """

    def correlation(a: Tensor, b: Tensor) -> float:
        sizes = float(a.norm()) * float(b.norm())
        return float((a * b).sum()) / sizes if sizes else 0.0

    return max(0.0, min(correlation(residual[1:], residual[:-1]), correlation(residual[:, 1:], residual[:, :-1])))


class EmptySlice(ValueError):
    """There is nothing in a slice to be reconstructed: its data are zero everywhere.

    Args:
        number: of the slice in its file.
        image: what it shows, zeros `(h, w)`, in the scale of x.
    """

    def __init__(self, number: int, image: Tensor):
        super().__init__(f"Slice {number} is empty: its data are zero everywhere.")
        self.number, self.image = number, image


class Scan(Protocol):
    """A stack of slices to be reconstructed one by one, and what their images will be."""

    @property
    def count(self) -> int:
        """Number of slices."""
        ...

    @property
    def modality(self) -> Modality:
        """What was measured."""
        ...

    @property
    def direct_name(self) -> str:
        """What the direct reconstruction is called."""
        ...

    @property
    def unit(self) -> Unit:
        """Of the images."""
        ...

    @property
    def affine(self) -> Tensor | None:
        """Where the images lie; as in `data.volume.Volume`."""
        ...

    @property
    def identity(self) -> Mapping[str, str]:
        """Whose images they are; as in `data.volume.Volume`."""
        ...

    @property
    def summary(self) -> str:
        """How the data came about, in a sentence."""
        ...

    @property
    def notes(self) -> tuple[str, ...]:
        """What the data leave open, and what scores against them do not say, a sentence each."""
        ...

    def problem(self, i: int) -> Problem:
        """Slice number i; raises `EmptySlice` if its data are zero everywhere."""
        ...

    def values(self, image: Tensor, scale: float) -> Tensor:
        """An image `(h, w)` in the scale of x, in the unit of the images."""
        ...


def central_problem(scan: Scan) -> tuple[int, Problem]:
    """The slice nearest to the middle that is not empty, with its number.

    The strength of regularisation is chosen from it.
    """
    middle_slice = scan.count // 2
    for i in sorted(range(scan.count), key=lambda i: (abs(i - middle_slice), i)):
        try:
            return i, scan.problem(i)
        except EmptySlice:
            continue
    raise ValueError("All slices are empty: the data are zero everywhere, and there is nothing to reconstruct.")


def checked_brightness(scale: float, number: int) -> float:
    """Return the brightness of a slice if data can be divided by it."""
    if not SMALLEST_SCALE < scale < 1 / SMALLEST_SCALE:
        raise ValueError(
            f"Slice {number} has brightness {scale:g}, beyond what float32 can compute with. Scale the data."
        )
    return scale


def brightness(image: Tensor) -> float:
    """The modulus that one pixel in a thousand exceeds: a maximum that a few odd pixels cannot move.

    Example:
        >>> brightness(torch.arange(2001.0))
        1999.0
    """
    moduli = image.abs().flatten()
    return float(moduli.topk(max(1, len(moduli) // BRIGHTEST)).values[-1])


def middle(image: Tensor, size: tuple[int, int] | None) -> Tensor:
    """The middle part of the last two dimensions; index n // 2 is the middle of n.

    Example:
        >>> middle(torch.arange(5), None), middle(torch.arange(20).view(4, 5), (1, 3))
        (tensor([0, 1, 2, 3, 4]), tensor([[11, 12, 13]]))
    """
    if size is None:
        return image
    (height, width), (h, w) = image.shape[-2:], size
    top, left = height // 2 - h // 2, width // 2 - w // 2
    return image[..., top : top + h, left : left + w]


# Solving


ENERGY_TOL = 0.05
"""The tolerance on the gradient of an objective, over that on the steps of `fbs` that gives images as far solved."""


@dataclass(frozen=True)
class Iteration:
    """How far a problem is solved, and by which steps.

    The default is enough to look at: a tenth of it changes the images of the demo by less than 0.1 dB.
    """

    tol: float = 2e-4
    max_steps: int = 1000
    accelerate: bool = True
    contraction: float = 1.0
    """K of `fbs`, for denoisers: below 1 the image itself is proven to be stable."""


def tolerance(prior: nn.Module, iteration: Iteration) -> float:
    """The tolerance of the solver for a prior."""
    return ENERGY_TOL * iteration.tol if isinstance(prior, Energy) else iteration.tol


class Solved(NamedTuple):
    """A solution, what its method is called, and how long it took."""

    name: str
    solution: Solution
    seconds: float


def solve_problem(
    name: str,
    problem: Problem,
    prior: nn.Module,
    weight: float,
    iteration: Iteration,
    *,
    progress: Callable[[Progress], None] | None = None,
) -> Solved:
    """Solve a problem from where it wants to start: with a denoiser by `fbs`, with an energy by `minimize`.

    Args:
        name: what the method is called.
        prior: a denoiser or an energy.
        weight: β of a denoiser, λ of an energy.
    """
    begin = time.perf_counter()
    if isinstance(prior, Energy):
        solution = minimize(
            problem.y,
            problem.H,
            prior,
            weight,
            positive=problem.positive,
            tol=tolerance(prior, iteration),
            max_steps=iteration.max_steps,
            start=problem.start,
            progress=progress,
        )
    else:
        solution = fbs(
            problem.y,
            problem.H,
            prior,
            weight,
            tol=tolerance(prior, iteration),
            max_steps=iteration.max_steps,
            accelerate=iteration.accelerate,
            contraction=iteration.contraction,
            start=problem.start,
            progress=progress,
        )
    return Solved(name, solution, time.perf_counter() - begin)


def solved_case(
    title: str,
    problem: Problem,
    scan: Scan,
    solved: Sequence[Solved],
    stability: Evidence | None = None,
) -> Case:
    """What a page shows of a problem: its direct reconstruction, its solutions, and its truth if that is known."""
    direct = Picture(scan.direct_name, problem.image(problem.direct))
    pictures = [
        Picture(name, problem.image(solution.value), solution, seconds=seconds, misfit=problem.misfit(solution.value))
        for name, solution, seconds in solved
    ]
    rescale = display_scale(scan, problem.scale)
    return Case(
        title,
        (direct, *pictures),
        problem.truth,
        f"{scan.summary}.",
        stability,
        rescale=rescale,
        notes=scan.notes,
        reference_measured=problem.truth_measured,
    )


def display_scale(scan: Scan, scale: float) -> Rescale:
    """How a page shows values: in Hounsfield units if the scan has them, else in the scale of the denoiser."""
    if scan.unit != "hounsfield":
        return Rescale()
    zero, one = scan.values(torch.tensor([0.0, 1.0], dtype=torch.float64), scale).tolist()
    return Rescale(one - zero, zero, "HU")

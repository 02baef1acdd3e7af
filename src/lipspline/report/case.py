"""What a page shows of one reconstruction problem."""

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lipspline.functional.quality import Profile, psnr, ssim
from lipspline.pnp.certificate import Certificate
from lipspline.pnp.fbs import Solution
from lipspline.pnp.iterate import ImageRun
from lipspline.pnp.stability import Evidence
from lipspline.report.shades import Window, magnitude, spanning

SMALLEST = 7  # pixels: the window of SSIM


@dataclass(frozen=True)
class Picture:
    """One image of the page, and the evidence for it if it was reconstructed by plug-and-play.

    Args:
        name: what it is called on the page.
        image: `(H, W)`, or with further dimensions of size 1; of complex images the modulus is shown.
        solution: what `pnp.fbs` returned, for a certificate and a curve of residuals.
        row: which image of the solution's batch this is.
        seconds: how long it took.
    """

    name: str
    image: Tensor
    solution: Solution | None = None
    row: int = 0
    seconds: float | None = None

    @property
    def pixels(self) -> Tensor:
        """The values shown, real, `(H, W)`."""
        return magnitude(self.image)

    @property
    def run(self) -> ImageRun | None:
        """How the iteration went."""
        return None if self.solution is None else self.solution.images[self.row]

    @property
    def certificate(self) -> Certificate | None:
        """What is proven about it."""
        return None if self.solution is None else self.solution.certificate


@dataclass(frozen=True)
class Case:
    """A problem and its solutions: baseline first, best last.

    Args:
        title: e.g. "Knee, slice 12".
        pictures: at least one, all of one size.
        reference: the truth, if it is known; errors, PSNR and SSIM are against it.
        summary: how the data came about, in a sentence.
        stability: how the last picture moved when the data did.
        profile: the conventions of PSNR and SSIM.
    """

    title: str
    pictures: tuple[Picture, ...]
    reference: Tensor | None = None
    summary: str = ""
    stability: Evidence | None = None
    profile: Profile = "paper"

    def __post_init__(self) -> None:
        if not self.pictures:
            raise ValueError(f"The case {self.title!r} has no picture to show. Give it at least one.")
        sizes = {tuple(picture.pixels.shape) for picture in self.shown()}
        if len(sizes) > 1:
            raise ValueError(f"The pictures of {self.title!r} have different sizes: {sorted(sizes)}.")

    def shown(self) -> tuple[Picture, ...]:
        """All pictures of the page, the reference first."""
        known = () if self.reference is None else (Picture("Reference", self.reference),)
        return (*known, *self.pictures)

    def window(self) -> Window:
        """The grey values that all pictures are shown with: those of the reference, or of the last picture."""
        return spanning(self.shown()[0 if self.reference is not None else -1].pixels)

    def compared(self) -> tuple[Picture, ...]:
        """The pictures that differ from what they are compared with: the reference, or else the first picture."""
        return self.shown()[1:]

    def errors(self) -> Iterator[tuple[Picture, Tensor]]:
        """Each compared picture with the modulus of its difference."""
        target = self.shown()[0].pixels.double()
        return ((picture, (picture.pixels.double() - target).abs()) for picture in self.compared())

    def quality(self, picture: Picture) -> tuple[float, float] | None:
        """PSNR in dB and SSIM, with the maximum of the reference as 1; None without one, or if too small for SSIM."""
        if self.reference is None or min(picture.pixels.shape) < SMALLEST:
            return None
        truth = magnitude(self.reference).double()
        peak = truth.max().clamp_min(torch.finfo(truth.dtype).tiny)
        pair = (picture.pixels.double()[None, None] / peak, truth[None, None] / peak)
        with torch.no_grad():
            return float(psnr(*pair, self.profile)), float(ssim(*pair, self.profile))

"""What a page shows of one reconstruction problem."""

from collections.abc import Iterator
from dataclasses import dataclass

from torch import Tensor

from lipspline.functional.quality import DataMisfit, Profile, object_mask, scores
from lipspline.pnp import Evidence, ImageRun, ReconstructionCertificate, Solution
from lipspline.report.drawing import AS_STORED, Rescale, Window, magnitude, robust_window, spanning

STORED = 1.6  # how far the window shown first can be widened
PRESETS = {"Soft tissue": (-160.0, 240.0), "Lung": (-1350.0, 150.0), "Bone": (-500.0, 1300.0), "Brain": (0.0, 80.0)}
"""Windows for Hounsfield units that radiologists use."""
AIR, METAL = -1000.0, 2000.0  # Hounsfield units
LEAST_TISSUE = 0.05  # of the pixels, for that window to be shown first


@dataclass(frozen=True)
class Picture:
    """One image of the page, and the evidence for it if it was reconstructed by plug-and-play.

    Args:
        name: what it is called on the page.
        image: `(H, W)`, or with further dimensions of size 1; of complex images the modulus is shown.
        solution: what `pnp.fbs` returned, for a certificate and a curve of residuals.
        row: which image of the solution's batch this is.
        seconds: how long it took.
        misfit: how far its predictions are from the data.
        held_out: the same for data that were held out.
    """

    name: str
    image: Tensor
    solution: Solution | None = None
    row: int = 0
    seconds: float | None = None
    misfit: DataMisfit | None = None
    held_out: DataMisfit | None = None

    @property
    def pixels(self) -> Tensor:
        """The values shown, real, `(H, W)`."""
        return magnitude(self.image)

    @property
    def run(self) -> ImageRun | None:
        """How the iteration went."""
        return None if self.solution is None else self.solution.images[self.row]

    @property
    def certificate(self) -> ReconstructionCertificate | None:
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
        number: of the slice, if it is one of a volume; a page shows the slices of a volume in one place.
        rescale: the unit that values are shown in.
        notes: what the data leave open, a sentence each.
        reference_measured: whether the reference holds noise: PSNR and SSIM are then those within the object.
    """

    title: str
    pictures: tuple[Picture, ...]
    reference: Tensor | None = None
    summary: str = ""
    stability: Evidence | None = None
    profile: Profile = "paper"
    number: int | None = None
    rescale: Rescale = AS_STORED
    notes: tuple[str, ...] = ()
    reference_measured: bool = False

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
        """The grey values that all pictures are shown with at first.

        Those of the reference, or of the last picture, but for the few brightest; soft tissue for Hounsfield units, if
        there is some.
        """
        if self.rescale.unit == "HU":
            low, high = (self.rescale.stored(value) for value in PRESETS["Soft tissue"])
            share = float(((self._guide > low) & (self._guide < high)).double().mean())
            air = self.rescale.stored(AIR)
            return (
                Window(low, high) if share > LEAST_TISSUE else Window(air, robust_window(self._guide - air).high + air)
            )
        return robust_window(self._guide)

    def stored_window(self) -> Window:
        """The grey values that the page has shades for: whoever widens the window sees no more than these."""
        shown, everything = self.window(), spanning(self._guide)
        if self.rescale.unit == "HU":
            stored = [self.rescale.stored(value) for value in (AIR, METAL)]
            return Window(stored[0], max(min(everything.high, stored[1]), shown.high))
        return Window(shown.low, max(shown.high, min(everything.high, shown.low + STORED * (shown.high - shown.low))))

    @property
    def fits(self) -> bool:
        """Whether the last picture explains the data, as far as that is known."""
        misfit = self.pictures[-1].misfit
        return misfit is None or misfit.explained

    @property
    def _guide(self) -> Tensor:
        return self.shown()[0 if self.reference is not None else -1].pixels

    def compared(self) -> tuple[Picture, ...]:
        """The pictures that differ from what they are compared with: the reference, or else the first picture."""
        return self.shown()[1:]

    def errors(self) -> Iterator[tuple[Picture, Tensor]]:
        """Each compared picture with the modulus of its difference."""
        target = self.shown()[0].pixels.double()
        return ((picture, (picture.pixels.double() - target).abs()) for picture in self.compared())

    def quality(self, picture: Picture) -> tuple[float, float] | None:
        """PSNR in dB and SSIM, with the maximum of the reference as 1; None without one, or if too small for SSIM."""
        if self.reference is None:
            return None
        truth = magnitude(self.reference).double()
        within = object_mask(truth) if self.reference_measured else None
        found = scores(picture.pixels.double(), truth, self.profile, within=within)
        return (found["psnr"], found["ssim"]) if found else None

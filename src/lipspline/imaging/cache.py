"""Reconstructed slices with their evidence, and a folder that keeps them, so that a stopped run can go on."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from lipspline._infra.files import decode, encode, write_whole
from lipspline.pnp import ImageRun, ReconstructionCertificate, Solution, Status
from lipspline.pnp.certificate import Pairing
from lipspline.pnp.guarantee import ObjectiveSetting, Setting
from lipspline.report import DataMisfit

IMAGES = ("image", "direct", "truth")
EMPTY_NOTE = "The data of this slice are zero everywhere; its image is zero, without a certificate."


@dataclass(frozen=True)
class SliceImages:
    """The images `(h, w)` of a slice, in the scale of the prior."""

    image: Tensor
    direct: Tensor
    truth: Tensor | None


@dataclass(frozen=True)
class Slice:
    """One reconstructed slice with its evidence."""

    number: int
    images: SliceImages | Callable[[], SliceImages]
    """Those in memory, or what reads them from the disk, so that memory does not grow with the number of slices."""
    scale: float
    noise: float
    quality: dict[str, float]
    direct_quality: dict[str, float]
    misfit: DataMisfit
    run: ImageRun | None
    """How the iteration went; None for a slice whose data are zero everywhere, which is not solved."""
    certificate: ReconstructionCertificate | None
    seconds: float
    map_errors: float = 0.0
    """What errors of the coil maps add to the noise at most; see `imaging.map_errors`."""
    map_passes: int = 0
    """How often the coil maps were estimated again from a first image."""

    def pictures(self) -> SliceImages:
        """The images; those that a cache keeps are read."""
        return self.images if isinstance(self.images, SliceImages) else self.images()

    @property
    def image(self) -> Tensor:
        """What was reconstructed, `(h, w)`, in the scale of the prior."""
        return self.pictures().image

    def solution(self, image: Tensor) -> Solution | None:
        """What the solver returned, with its value cropped to `image`."""
        if self.run is None or self.certificate is None:
            return None
        return Solution(image[None, None], (self.run,), self.certificate)

    def document(self) -> dict[str, Any]:
        """Everything but the images, as JSON values."""
        if self.run is None or self.certificate is None:
            return {"slice": self.number, "empty": True, "note": EMPTY_NOTE}
        return {
            "slice": self.number,
            "converged": self.run.converged,
            "reason": self.run.reason,
            "denoiser_calls": self.run.calls,
            "seconds": round(self.seconds, 3),
            "scale": self.scale,
            "noise": self.noise,
            **({"map_errors": self.map_errors, "map_passes": self.map_passes} if self.map_errors else {}),
            "misfit": {**asdict(self.misfit), "explained": self.misfit.explained, "verdict": str(self.misfit.fit)},
            **self.quality,
            **({"direct": self.direct_quality} if self.direct_quality else {}),
            "certificate": json.loads(self.certificate.to_json()),
        }


class SliceCache:
    """A folder of finished slices of one request, described by `settings`; those of another are not used."""

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.folder, self.settings = folder, json.dumps(settings, sort_keys=True)

    def keep(self, done: Slice) -> Slice:
        """Write a slice; it exists completely or not at all. Returns the slice with its images on the disk."""
        pictures = done.pictures()
        tensors = {name: _as_real(getattr(pictures, name)) for name in IMAGES}
        evidence = {
            "misfit": asdict(done.misfit),
            "run": None if done.run is None else asdict(done.run),
            "certificate": None if done.certificate is None else asdict(done.certificate),
        }
        state = {**{name: value for name, value in vars(done).items() if name != "images"}, **tensors, **evidence}
        write_whole(self.path(done.number), encode({"settings": self.settings, "slice": state}))
        return replace(done, images=partial(self.images, done.number))

    def load(self, number: int) -> Slice | None:
        """A slice of this request, its images on the disk; None if it is not there, damaged, or of another request."""
        state = self.state(number)
        if state is None:
            return None
        fields = {name: value for name, value in state.items() if name not in IMAGES}
        fields["images"] = partial(self.images, number)
        fields["misfit"] = DataMisfit(**fields["misfit"])
        if fields["run"] is not None:
            if "status" not in fields["run"]:
                return None  # written before runs had a status
            fields["run"] = ImageRun(**{**fields["run"], "status": Status(fields["run"]["status"])})
            fields["certificate"] = _certificate(fields["certificate"])
        return Slice(**fields)

    def images(self, number: int) -> SliceImages:
        """The images of a slice that was kept."""
        state = self.state(number)
        if state is None:
            raise ValueError(
                f"The finished slice {self.path(number)} was removed or changed while it was needed, or this process "
                f"does not see it. Run the same again, with all processes on one folder."
            )
        image, direct, truth = (_from_real(state[name]) for name in IMAGES)
        assert image is not None
        assert direct is not None
        return SliceImages(image, direct, truth)

    def state(self, number: int) -> dict[str, Any] | None:
        """What `keep` wrote, if it is there, whole, and of this request."""
        path = self.path(number)
        if not path.is_file():
            return None
        try:
            state = decode(path)
        except (SafetensorError, ValueError):
            return None
        return state["slice"] if state.get("settings") == self.settings else None

    def path(self, number: int) -> Path:
        """The file of a slice."""
        return self.folder / f"slice-{number:05d}.safetensors"


def kept(folder: Path) -> list[int]:
    """The numbers of the finished slices in a folder, of whatever request."""
    return sorted(int(file.stem.removeprefix("slice-")) for file in folder.glob("slice-*.safetensors"))


def _as_real(image: Tensor | None) -> dict[str, Any] | None:
    if image is None:
        return None
    return {"complex": image.is_complex(), "values": torch.view_as_real(image) if image.is_complex() else image}


def _from_real(state: dict[str, Any] | None) -> Tensor | None:
    if state is None:
        return None
    return torch.view_as_complex(state["values"]) if state["complex"] else state["values"]


def _certificate(fields: dict[str, Any]) -> ReconstructionCertificate:
    setting = {**fields["setting"], "norm": tuple(fields["setting"]["norm"])}
    kind = Setting if "beta" in setting else ObjectiveSetting
    return ReconstructionCertificate(
        **{
            **fields,
            "setting": kind(**setting),
            "pairing": Pairing(**fields["pairing"]),
            "violations": tuple(fields["violations"]),
        }
    )

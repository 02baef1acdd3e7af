"""What the lab works with: built-in images, uploaded images and measurements, priors that ship and those of files."""

import os
import re
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from lipspline._infra import checks
from lipspline._infra.files import fingerprint
from lipspline.formats import mri
from lipspline.formats.builtin import BUILTIN
from lipspline.formats.kspace import Kspace
from lipspline.formats.pictures import read_volume
from lipspline.formats.sinograms import Sinograms, read_sinograms
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume, resized
from lipspline.priors import Prior, catalogue, resolve

JPEG = (".jpg", ".jpeg")
ENDINGS = (".png", *JPEG, ".tif", ".tiff", ".npy", ".npz", ".nii", ".nii.gz", ".dcm", ".h5", ".hdf5")
SMALLEST, LARGEST = 16, 320  # pixels along a side; larger images are reduced
KEPT, KEPT_BYTES = 8, 2**31  # uploads, and their bytes on the disk; the oldest goes first


class Content(StrEnum):
    """What a file holds."""

    IMAGES = "images"
    KSPACE = "k-space"
    SINOGRAMS = "sinograms"


@dataclass(frozen=True)
class LabSource:
    """Something to reconstruct: images to be measured first, or measurements.

    Args:
        name: unique in the catalogue.
        modality: "mri" or "ct": what it is, or what suits it.
        slices: how many there are.
        path: the uploaded file; None for a built-in image.
    """

    name: str
    content: Content
    modality: str
    slices: int = 1
    path: Path | None = None

    def document(self) -> dict[str, object]:
        """What the page is told of it, as JSON values."""
        return {"name": self.name, "content": self.content, "modality": self.modality, "slices": self.slices}

    @property
    def file_name(self) -> str:
        """What the file was called that was uploaded."""
        return re.sub(r"^\d+: ", "", self.name) if self.path is not None else self.name

    def fingerprint(self) -> dict[str, Any]:
        """What tells the uploaded file from others, by its name; nothing if there is none, or no longer."""
        if self.path is None or not self.path.exists():
            return {}
        return {self.file_name: fingerprint(self.path)}

    @property
    def stem(self) -> str:
        """What files made from it are called, before their ending: letters, digits, dots, hyphens and underscores."""
        plain = self.file_name
        ending = max((e for e in ENDINGS if plain.lower().endswith(e)), key=len, default="")
        return re.sub(r"[^A-Za-z0-9._-]+", "_", plain[: len(plain) - len(ending)]).strip("._") or "image"


class Catalogue:
    """Sources by name: the built-in images, and the latest uploads, in a folder that goes when the session ends."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="lipspline-lab-", ignore_cleanup_errors=True)
        self._sources = {
            name: LabSource(name, Content.IMAGES, "ct" if name == "phantom" else "mri") for name in BUILTIN
        }
        self._count = 0

    def close(self) -> None:
        """Remove all uploads."""
        self._folder.cleanup()

    def sources(self) -> list[LabSource]:
        """All of them, uploads last."""
        return list(self._sources.values())

    def get(self, name: str) -> LabSource:
        """The source of this name."""
        return self._sources[checks.one_of("image", name, self._sources)]

    def draft(self) -> Path:
        """Where an upload may be written before it is added."""
        handle, path = tempfile.mkstemp(dir=self._folder.name)
        os.close(handle)
        return Path(path)

    def add(self, name: str, draft: Path, *, sinogram: bool = False) -> LabSource:
        """Add an uploaded file, if it can be read; its name only says which format it has, and is never a path."""
        ending = max((e for e in ENDINGS if name.lower().endswith(e)), key=len, default=None)
        if ending is None:
            raise FileError(f"The name of a file must end in one of {', '.join(ENDINGS)}.")
        if draft.stat().st_size == 0:
            raise FileError("The file is empty.")
        path = draft.with_name(draft.name + ending)
        draft.rename(path)
        try:
            found = _read(path, slice(None), sinogram)
            source = self._described(name, path, found)
        except BaseException:
            path.unlink()
            raise
        self._sources[source.name] = source
        self._forget()
        return source

    def read(self, source: LabSource, number: int) -> Volume | Kspace | Sinograms:
        """One slice of a source; images are at most `LARGEST` pixels wide."""
        if number >= source.slices:
            raise ValueError(f"slice must be below {source.slices} for {source.name}, but is {number}.")
        if source.path is None:
            return Volume(_builtin(source.name)[None])
        found = _read(source.path, slice(number, number + 1), source.content is Content.SINOGRAMS)
        return prepare(found) if isinstance(found, Volume) else found

    def _described(self, name: str, path: Path, found: Volume | Kspace | Sinograms) -> LabSource:
        self._count += 1
        label = f"{self._count}: {Path(name.replace(chr(92), '/')).name[-60:]}"
        if isinstance(found, Kspace):
            return LabSource(label, Content.KSPACE, "mri", len(found.data), path)
        if isinstance(found, Sinograms):
            return LabSource(label, Content.SINOGRAMS, "ct", len(found.data), path)
        middle = len(found.slices) // 2
        prepare(Volume(found.slices[middle : middle + 1], unit=found.unit))
        modality = "ct" if found.unit == "hounsfield" else "mri"
        return LabSource(label, Content.IMAGES, modality, len(found.slices), path)

    def _forget(self) -> None:
        """Remove the oldest uploads until those that are left are few and small enough."""
        uploads = {source: source.path for source in self.sources() if source.path is not None}
        sizes = {source: path.stat().st_size for source, path in uploads.items()}
        for source, path in list(uploads.items())[:-1]:
            if len(sizes) <= KEPT and sum(sizes.values()) <= KEPT_BYTES:
                return
            del sizes[source], self._sources[source.name]
            path.unlink(missing_ok=True)


@cache
def _builtin(name: str) -> Tensor:
    return BUILTIN[name]()


def _read(path: Path, slices: slice, sinogram: bool) -> Volume | Kspace | Sinograms:
    """What a file holds; errors name no path."""
    try:
        if path.suffix in JPEG and not sinogram:
            return read_volume(path, slices)
        return read_sinograms(path, slices) if sinogram else mri.read(path, slices)
    except (ValueError, OSError) as error:
        raise FileError(str(error).replace(str(path), "The file")) from None


def prepare(volume: Volume) -> Volume:
    """A slice as the lab measures it: nothing below zero, or below air, and at most `LARGEST` pixels along a side."""
    image = volume.slices[0].float()
    checks.finite("The image", image)
    lowest = -1000.0 if volume.unit == "hounsfield" else 0.0
    image = image.clamp_min(lowest) if volume.unit == "hounsfield" else image - image.min().clamp_max(0)
    if min(image.shape) < SMALLEST:
        raise FileError(f"The image has {image.shape[0]} x {image.shape[1]} pixels; the lab needs {SMALLEST} a side.")
    if not image.max() > lowest:
        raise FileError("The image is black: all its values are equal.")
    shrink = LARGEST / max(image.shape)
    if shrink < 1:
        size = [max(SMALLEST, round(n * shrink)) for n in image.shape]
        image = F.interpolate(image[None, None], size=size, mode="area")[0, 0]
    place = resized(volume.affine, volume.slices.shape[1:], image.shape)
    return Volume(image[None], place, volume.unit)


class Models:
    """Priors by name: those of files and all that ship, the recommended one first."""

    def __init__(self, files: Sequence[Path] = ()) -> None:
        self._files = {path.stem: path.absolute() for path in files}
        self._priors = {name: resolve(path) for name, path in self._files.items()}
        for name, prior in catalogue().items():
            self._priors.setdefault(name, prior)

    def names(self) -> list[str]:
        """All names; files first, since somebody asked for them."""
        return list(self._priors)

    def get(self, name: str) -> Prior:
        """A prior with all its noise levels."""
        return self._priors[checks.one_of("model", name, self._priors)]

    def origin(self, name: str) -> str:
        """The file that a prior was read from; the name of one that ships."""
        return str(self._files.get(name, name))

    def document(self) -> list[dict[str, object]]:
        """What the page is told of each of them, as JSON values."""
        return [
            {"name": name, "kind": prior.kind, "summary": prior.summary, "levels": bool(prior.levels)}
            for name, prior in self._priors.items()
        ]

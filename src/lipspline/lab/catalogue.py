"""What the lab works with: built-in and uploaded images, shipped denoisers and those of files."""

import tempfile
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import torch.nn.functional as F
from torch import Tensor, nn

from lipspline._infra import checks
from lipspline.formats import ct, mri
from lipspline.formats.builtin import BUILTIN
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume
from lipspline.priors import DenoiserPrior, catalogue
from lipspline.priors.denoisers import resolve_file, resolve_shipped

ENDINGS = (".png", ".tif", ".tiff", ".npy", ".npz", ".nii", ".nii.gz", ".dcm", ".h5", ".hdf5")
SMALLEST, LARGEST = 16, 320  # pixels along a side; larger images are reduced
KEPT = 8  # uploads; the oldest goes first


class ImageCatalogue:
    """ImageCatalogue `(H, W)` by name: the built-in ones, and the latest uploads."""

    def __init__(self) -> None:
        self._uploads: dict[str, Tensor] = {}
        self._count = 0

    def names(self) -> list[str]:
        """All names, uploads last."""
        return [*BUILTIN, *self._uploads]

    def get(self, name: str) -> Tensor:
        """An image, nonnegative, not larger than `LARGEST`."""
        if name in self._uploads:
            return self._uploads[name]
        return _builtin(checks.one_of("image", name, self.names()))

    def add(self, name: str, content: bytes) -> str:
        """Read an uploaded file; of several slices the middle one is taken. Returns the name it gets."""
        image = read_upload(name, content)
        self._count += 1
        short = Path(name.replace("\\", "/")).name[-60:]
        label = f"{self._count}: {short}"
        self._uploads[label] = image
        while len(self._uploads) > KEPT:
            del self._uploads[next(iter(self._uploads))]
        return label


@cache
def _builtin(name: str) -> Tensor:
    return BUILTIN[name]()


def read_upload(name: str, content: bytes) -> Tensor:
    """The image in the bytes of a file; its name only says which format it has, and is never used as a path."""
    ending = max((e for e in ENDINGS if name.lower().endswith(e)), key=len, default=None)
    if ending is None:
        raise FileError(f"The name of an image must end in one of {', '.join(ENDINGS)}.")
    with tempfile.TemporaryDirectory(prefix="lipspline-lab-") as folder:
        path = Path(folder) / f"upload{ending}"
        path.write_bytes(content)
        try:
            found = mri.read(path)
        except (ValueError, OSError) as error:
            raise FileError(str(error).replace(str(path), "The file")) from None
    if not isinstance(found, Volume):
        raise FileError(
            "The file holds k-space. The lab measures images; for k-space there is `lipspline reconstruct`."
        )
    return prepare(found)


def prepare(volume: Volume) -> Tensor:
    """The middle slice, nonnegative, in attenuation rather than Hounsfield units, reduced to `LARGEST` pixels."""
    image = volume.slices[len(volume.slices) // 2].float()
    checks.finite("The image", image)
    image = ct.attenuation(image) if volume.unit == "hounsfield" else image - image.min().clamp_max(0)
    if min(image.shape) < SMALLEST:
        raise FileError(f"The image has {image.shape[0]} x {image.shape[1]} pixels; the lab needs {SMALLEST} a side.")
    if not image.max() > 0:
        raise FileError("The image is black: all its values are equal.")
    shrink = LARGEST / max(image.shape)
    if shrink < 1:
        size = [max(SMALLEST, round(n * shrink)) for n in image.shape]
        image = F.interpolate(image[None, None], size=size, mode="area")[0, 0]
    return image / image.max()


class Denoisers:
    """Denoisers by name: the shipped ones and those of files."""

    def __init__(self, files: Sequence[Path] = ()) -> None:
        self._files = {path.stem: resolve_file(path) for path in files}
        self.shipped = [name for name, prior in catalogue().items() if isinstance(prior, DenoiserPrior)]
        if not self.names():
            raise ValueError("No denoiser ships with this version of lipspline. Name one of your own with --weights.")

    def names(self) -> list[str]:
        """All names; files first, since somebody asked for them."""
        return [*self._files, *(name for name in self.shipped if name not in self._files)]

    def prior(self, name: str) -> DenoiserPrior:
        """A denoiser with all its noise levels."""
        checks.one_of("model", name, self.names())
        return self._files[name] if name in self._files else resolve_shipped(name)

    def get(self, name: str, strength: float) -> nn.Module:
        """A denoiser for the noise level `strength`; a file that does not say its own serves as it is."""
        prior = self.prior(name)
        return prior.at(strength if prior.levels else None)

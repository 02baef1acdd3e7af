"""Print how far images are from their measurements, with right geometries and with wrong ones, for docs/guarantee.md.

`python docs/misfit_table.py` takes a phantom that `radon` of scikit-image projects; with `--data DIR`, on top, the
measured tooth, disc and head, and a torso, below the data folder. With all of them it takes about two core-hours.
"""

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
from numpy.typing import NDArray
from skimage.data import shepp_logan_phantom
from skimage.transform import radon, resize

import lipspline as ls
from lipspline import ScannerCT, ScannerMRI
from lipspline.formats import nifti

SIZE = 128
NOISES = (0.001, 0.005, 0.03)
CONVENTION = ScannerCT(convention="scikit-image")
Array = NDArray[Any]


class Case(NamedTuple):
    """Data, and what is said about how they were measured."""

    data: str
    geometry: str
    measured: Array | str
    scanner: ScannerCT | ScannerMRI


def noisy(data: Array, noise: float) -> Array:
    """Data with white noise, whose norm is this part of theirs."""
    scale = noise * np.linalg.norm(data) / np.sqrt(data.size)
    return (data + scale * np.random.default_rng(0).standard_normal(data.shape)).astype(np.float32)


def projected(name: str, image: Array) -> Iterator[Case]:
    """Sinograms of an image by `radon`, and errors that a user makes with them."""
    middle = SIZE // 2
    for angles in (SIZE, 45):
        sinogram = radon(image, np.linspace(0, 180, angles, endpoint=False), circle=True)
        for noise in NOISES:
            data, label = noisy(sinogram, noise), f"{name}, {angles} angles, noise {100 * noise:g} %"
            yield Case(label, "right", data, CONVENTION)
            yield Case(label, "axis half a detector off", data, ScannerCT(transpose=True))
            for off in (1, 2):
                yield Case(label, f"axis {off} off", data, replace(CONVENTION, axis=middle + off))
            yield Case(label, "360 degrees for 180", data, replace(CONVENTION, arc=360))
            yield Case(label, "170 degrees for 180", data, replace(CONVENTION, arc=170))
            yield Case(label, "angles the other way round", data[:, ::-1].copy(), CONVENTION)
            cut = SIZE // 10
            yield Case(label, "cut on each side", data[cut:-cut].copy(), replace(CONVENTION, axis=middle - cut))


def measured(data: Path) -> Iterator[Case]:
    """Scans that were really measured."""
    tooth, wide = str(data / "ct/measured/tooth_aps.h5"), ScannerCT(every=2, size=320, spacing=0.5)
    yield Case("tooth, every second angle, pixels of one detector", "right", tooth, ScannerCT(every=2))
    yield Case("tooth, pixels of two detectors", "right", tooth, wide)
    for axis in (297.0, 298.0):
        yield Case("tooth, pixels of two detectors", f"axis {axis - 295.9:.1f} off", tooth, replace(wide, axis=axis))
    yield Case("tooth, pixels of two detectors", "170 degrees for 180", tooth, replace(wide, axis=295.9, arc=170))
    disc, coarse = str(data / "ct/measured/htc2022_tb_90degrees.mat"), ScannerCT(size=140, spacing=0.25)
    yield Case("disc, pixels of four detectors", "right", disc, coarse)
    for arc in (180.0, 360.0):
        yield Case("disc, pixels of four detectors", f"{arc:g} degrees for 90", disc, replace(coarse, arc=arc))
    head = str(data / "mri/brain_mprage_4ch.h5")
    with h5py.File(head) as file:
        kspace, maps = np.asarray(file["kspace"]), np.asarray(file["sensitivity"])
    four = ScannerMRI(acceleration=4)
    yield Case("head, 4 coils, 4 times", "right, maps of the file", head, four)
    yield Case("head, 4 coils, 4 times", "right, maps estimated", head, replace(four, coils="espirit"))
    for error, wrong in {"flipped": maps[..., ::-1], "8 columns to the side": np.roll(maps, 8, -1)}.items():
        yield Case("head, 4 coils, 4 times", f"maps {error}", kspace, replace(four, coils=wrong.copy()))
    yield Case("head, 4 coils, 4 times", "k-space transposed", kspace.swapaxes(-1, -2).copy(), four)


def torso(data: Path) -> Array:
    """A slice through a torso, with nothing outside the disc that `radon` sees."""
    (plane,) = nifti.read(data / "ct/torso_acrin.nii.gz", slice(64, 65)).slices.numpy()
    image = resize(plane.astype(np.float32) / 1000 + 1, (SIZE, SIZE), anti_aliasing=True)
    rows, columns = np.mgrid[:SIZE, :SIZE] - SIZE // 2
    return 0.02 * image.clip(0) * (rows**2 + columns**2 < (SIZE // 2 - 1) ** 2)


def line(case: Case) -> str:
    """The row of a case; what is refused says why."""
    kind = "ct" if isinstance(case.scanner, ScannerCT) else "mri"
    try:
        misfit = ls.reconstruct(case.measured, acquisition=case.scanner).slices[0].misfit
    except (ValueError, OSError) as error:
        return f"| {case.data} | {case.geometry} | | | | refused: {str(error).split('.')[0]} |"
    common = f"{misfit.common:.2f}" if kind == "ct" else ""
    cells = f"{100 * misfit.value:.2f} % | {100 * misfit.noise:.2f} % | {common} | {misfit.fit}"
    return f"| {case.data} | {case.geometry} | {cells} |"


def cases(data: Path | None) -> Iterator[Case]:
    """All cases, those of the data folder last."""
    yield from projected("phantom", resize(shepp_logan_phantom(), (SIZE, SIZE), anti_aliasing=True))
    if data is not None:
        yield from projected("torso", torso(data))
        yield from measured(data)


if __name__ == "__main__":
    folder = Path(sys.argv[sys.argv.index("--data") + 1]) if "--data" in sys.argv else None
    print("| data | geometry | misfit | noise | common | verdict |\n|---|---|---|---|---|---|")
    for case in cases(folder):
        print(line(case), flush=True)

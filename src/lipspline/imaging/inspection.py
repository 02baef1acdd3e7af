"""What a file is, what was recognised in it, what would be done with it, and what is missing: `lipspline inspect`."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import pi
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from lipspline.formats import bart, ct, mri, pictures
from lipspline.formats.kspace import LazyKspace
from lipspline.formats.output import CERTIFICATE, PAGE, Output, read_certificate
from lipspline.formats.sinograms import read_sinograms
from lipspline.formats.trajectories import NonCartesianKspace
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume, voxel_size
from lipspline.imaging.coils import FROM_SILENCE
from lipspline.imaging.counts import RADON, negative_note, refuse_counts
from lipspline.imaging.orientation import second_half_mirrors_first, seems_sinogram
from lipspline.networks.files import load


@dataclass(frozen=True)
class Finding:
    """One way to understand a file."""

    what: str
    """The kind of data, in a few words."""
    facts: dict[str, str]
    """What was recognised."""
    command: str
    """What to run, with IN for the file; options as arguments, which the command line translates."""
    steps: tuple[str, ...]
    """What that command would do."""
    missing: tuple[str, ...] = ()
    """What is not in the file, and what happens without it."""

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "what": self.what,
            "facts": self.facts,
            "command": self.command,
            "steps": list(self.steps),
            "missing": list(self.missing),
        }

    def __str__(self) -> str:
        width = max(map(len, self.facts), default=0)
        lines = [self.what, *(f"  {name:{width}}  {fact}" for name, fact in self.facts.items())]
        lines += [f"  to run: {self.command}", *(f"    - {step}" for step in self.steps)]
        lines += ["  missing:", *(f"    - {one}" for one in self.missing)] if self.missing else []
        return "\n".join(lines)


@dataclass(frozen=True)
class Inspection:
    """All ways to understand a file, and why others do not apply."""

    path: Path
    size: int
    """In bytes, of all that belongs to it."""
    findings: tuple[Finding, ...]
    problems: tuple[str, ...]
    """What readers say that cannot use it."""

    def document(self) -> dict[str, Any]:
        """As JSON values."""
        found = [finding.document() for finding in self.findings]
        return {"input": str(self.path), "bytes": self.size, "findings": found, "problems": list(self.problems)}

    def __str__(self) -> str:
        lines = [f"{self.path}, {self.size / 1e6:.3g} MB", *map(str, self.findings)]
        if not self.findings:
            lines += ["Nothing was recognised:", *(f"  - {problem}" for problem in self.problems)]
        return "\n".join(lines)


Inspector = Callable[[Path], Finding | None]


def inspect_mri(path: Path) -> Finding | None:
    """k-space, or images to simulate it from."""
    found = _first(mri.read_scan, path)
    if isinstance(found, Volume) and len(found.slices) == 1 and _coloured(_picture(path)):
        return None  # a photograph; scanners make gray images
    if isinstance(found, LazyKspace):
        seen, apart = of_kspace(found), path.suffix.lower() in (".npy", ".npz") or bart.pair(path) is not None
        word = "the trajectory, if it is not Cartesian: give trajectory=FILE. k-space is then readouts x samples"
        return replace(seen, missing=(*seen.missing, word)) if apart else seen
    return of_samples(found) if isinstance(found, NonCartesianKspace) else of_images(found)


def inspect_sinograms(path: Path) -> Finding | None:
    """Sinograms or counts of parallel beams or fans, and what the file says about the scanner."""
    found = read_sinograms(path)
    if len(found.data) == 1 and _coloured(_picture(path)):
        return None
    turned = found.flat is None and not seems_sinogram(found)
    if turned and not seems_sinogram(found := found.transposed()):
        raise FileError(f"{path} is no sinogram: the sums over its rows, and those over its columns, vary too much.")
    slices, angles, detectors = found.data.shape
    if found.flat is None:
        refuse_counts(found.data[slices // 2], slices // 2)
    facts = {"slices": str(slices), "angles": str(angles), "detectors": str(detectors)}
    counts, fan = found.flat is not None, found.source_origin is not None
    if found.angles is not None:
        first, last = (float(found.angles[k]) * 180 / pi for k in (0, -1))
        facts["angles"] += f", from {first:g} to {last:.4g} degrees"
    if fan:
        facts["fan"] = f"source to axis {found.source_origin:g} mm, to detector {found.source_detector:g} mm"
    if not counts and (sign := negative_note(found.data[slices // 2])):
        facts["sign"] = sign
    if found.pixel is not None:
        facts["pixel"] = f"{found.pixel:g} mm"
    steps = (
        *(("counts become line integrals with weights; the axis of rotation is estimated",) if counts else ()),
        "fan beam" if fan else "parallel beams",
        "as many pixels as detectors",
    )
    whole_turn = found.angles is None and not fan and second_half_mirrors_first(found.data[slices // 2])
    arc = "a whole turn, for the second half mirrors the first," if whole_turn else "half a turn"
    missing = (
        *(() if found.angles is not None else (f"the angles: spread evenly over {arc} unless angles= says more",)),
        *(() if found.pixel is not None else ("the size of a pixel, pixel_size= in millimetres: else per pixel",)),
    )
    what = "Counts with flat fields" if counts else "Sinograms, if its rows are angles and its columns detectors"
    command = "lipspline reconstruct ct IN OUT.nii.gz"
    if turned:
        what = "Sinograms whose columns are angles and whose rows are detectors, as radon of scikit-image returns them"
        command += " convention=scikit-image"
        missing = (*missing, "the convention: transpose=True instead, if another program than scikit-image made it")
    elif found.angles is None and not counts:
        missing = (*missing, f"the convention: give {RADON}")
    return Finding(what, facts, command, steps, missing)


def inspect_picture(path: Path) -> Finding | None:
    """A picture in colour, or one in a format of photographs, which can be denoised."""
    image = _picture(path)
    if image is None or (not _coloured(image) and path.suffix.lower() in pictures.TIFF):
        return None
    colours = "red, green and blue" if _coloured(image) else "gray"
    facts = {"size": f"{image.shape[0]} x {image.shape[1]}", "colours": colours}
    facts["values"] = f"{image.dtype}, {image.min():.4g} to {image.max():.4g}"
    target = "OUT.png" if path.suffix.lower() not in pictures.TIFF else "OUT.tif"
    steps = ("estimate the noise", f"remove it{' from each colour' if _coloured(image) else ''}, with a certificate")
    return Finding("A picture", facts, f"lipspline denoise IN {target}", steps)


def _picture(path: Path) -> NDArray[Any] | None:
    """The image of a file that may be a photograph; None for other files."""
    wanted = path.suffix.lower() in pictures.IMAGE_ENDINGS and path.suffix.lower() != ".npy" and path.is_file()
    return pictures.read(path) if wanted else None


def _coloured(image: NDArray[Any] | None) -> bool:
    return image is not None and image.ndim == 3 and pictures.COLOURS[image.shape[2]] == 3


def inspect_result(path: Path) -> Finding | None:
    """A result of this program, by its image, certificate or page, where the certificate is beside it."""
    name = next((path.name.removesuffix(end) for end in (CERTIFICATE, PAGE) if path.name.endswith(end)), path.name)
    image = path.with_name(name)
    image = image.with_suffix(bart.VALUES) if image.suffix == bart.HEADER else image
    certificate = read_certificate(Output(image).certificate)
    if certificate is None and path.suffix == CERTIFICATE and path.is_file():
        raise FileError(
            f"{path} is truncated or was changed since lipspline wrote it as a certificate, or it is no certificate."
        )
    if certificate is None:
        return None
    slices, prior = certificate.get("slices"), certificate.get("prior")
    facts = {"made from": str(certificate.get("input")), "scan": str(certificate.get("scan", "an image, denoised"))}
    if isinstance(prior, dict):
        facts["prior"] = str(prior.get("source"))
    if isinstance(slices, list):
        facts["slices"] = str(len(slices))
        facts["convergence"] = "proven" if certificate.get("guaranteed") else "not proven"
        fit = "explained" if certificate.get("misfit_explained") else "not explained by noise"
        facts["measurements"] = "fit doubtful" if certificate.get("misfit_doubtful") else fit
    here = [one.name for one in (image, Output(image).certificate, Output(image).beside(PAGE)) if one.exists()]
    facts["here"] = ", ".join(here)
    steps = ("compare checksums, also of the input", "compute the bound of the prior again")
    missing = () if image.exists() else (f"the image {name}",)
    return Finding("A result of lipspline", facts, "lipspline verify IN", steps, missing)


def inspect_weights(path: Path) -> Finding | None:
    """Weights that this program has written."""
    if path.suffix != ".safetensors":
        return None
    network = load(path)
    parameters = sum(value.numel() for value in network.state_dict().values())
    facts = {"network": type(network).__name__, "numbers": f"{parameters:,}"}
    return Finding("Weights of a network", facts, "lipspline certify IN", ("prove a Lipschitz bound, layer by layer",))


INSPECTORS: dict[str, Inspector] = {
    "results": inspect_result,
    "weights": inspect_weights,
    "pictures": inspect_picture,
    "MRI": inspect_mri,
    "CT": inspect_sinograms,
}
"""Who looks at a file, by what they know: a new kind of data joins here by one function."""


def inspect_file(path: str | Path) -> Inspection:
    """Look at a file or folder with everything that reads data.

    Example:
        >>> import tempfile, torch, numpy
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     numpy.save(f"{folder}/k.npy", torch.ones(2, 8, 8, dtype=torch.complex64).numpy())
        ...     print(inspect_file(f"{folder}/k.npy").findings[0].facts["slices"])
        2
    """
    path = Path(path)
    if not path.exists() and bart.pair(path) is None:
        raise FileNotFoundError(f"There is no file {path}.")
    findings, problems = [], []
    for name, inspector in INSPECTORS.items():
        try:
            found = inspector(path)
        except (ValueError, OSError, ImportError) as error:
            problems.append((name, error))
        else:
            findings += [] if found is None else [found]
    # who knows the format and cannot read the file says why; others only that they do not know it
    known = [(name, error) for name, error in problems if "is not in a known format" not in str(error)]
    readers: dict[str, list[str]] = {}
    for name, error in known or problems:  # several readers open the same formats, and say the same of them
        readers.setdefault(str(error), []).append(name)
    words = tuple(f"{', '.join(names)}: {error}" for error, names in readers.items())
    return Inspection(path, _bytes(path), tuple(findings), words)


def of_kspace(kspace: LazyKspace) -> Finding:
    """What k-space is, and what would be done with it."""
    slices, coils, height, width = kspace.data.shape
    share = 100 * float(kspace.mask.double().mean())
    sampled = "columns" if kspace.mask.ndim == 1 or kspace.mask.shape[-2] == 1 else "single points"
    facts = {
        "slices": str(slices),
        "coils": str(coils),
        "k-space": f"{height} x {width} (readout x phase encoding)",
        "measured": f"{share:.3g} % of {sampled}{', another part in each slice' if kspace.mask.ndim == 3 else ''}",
    }
    if kspace.crop is not None:
        facts["images"] = f"{kspace.crop[0]} x {kspace.crop[1]}, the middle of what k-space gives"
    if kspace.affine is not None:
        facts["voxels"] = " x ".join(f"{length:.3g}" for length in voxel_size(kspace.affine)) + " mm"
    if kspace.notes:
        facts["on reading"] = "; ".join(kspace.notes)
    return Finding(
        f"Measured k-space of {'one coil' if coils == 1 else f'{coils} coils'}, Cartesian",
        facts,
        "lipspline reconstruct mri IN OUT.nii.gz",
        tuple(_steps(kspace)),
        tuple(_missing(kspace, share)),
    )


def of_samples(kspace: NonCartesianKspace) -> Finding:
    """What k-space on a trajectory is, and what would be done with it."""
    slices, coils, lines, samples = kspace.data.shape
    height, width = kspace.crop or kspace.shape
    facts = {
        "slices": str(slices),
        "coils": str(coils),
        "readouts": f"{lines} of {samples} samples",
        "reach": f"{float(kspace.trajectory.abs().max()):.4g} cycles per field of view",
        "images": f"{height} x {width}",
    }
    if kspace.affine is not None:
        facts["voxels"] = " x ".join(f"{length:.3g}" for length in voxel_size(kspace.affine)) + " mm"
    if kspace.notes:
        facts["on reading"] = "; ".join(kspace.notes)
    return Finding(
        f"Measured k-space of {'one coil' if coils == 1 else f'{coils} coils'} on a trajectory",
        facts,
        "lipspline reconstruct mri IN OUT.nii.gz",
        ("put the middle of k-space on a grid", *_steps(kspace)),
        tuple(_missing(kspace, 0.0)),
    )


def _steps(kspace: LazyKspace | NonCartesianKspace) -> list[str]:
    steps = []
    if kspace.coils > 1:
        source = "the noise measurement of the file" if kspace.noise is not None else FROM_SILENCE
        steps.append(f"whiten the coils with {source}")
        steps.append("take the coil maps of the file" if kspace.maps is not None else "estimate coil maps by ESPIRiT")
    if isinstance(kspace, NonCartesianKspace) or not kspace.real:
        steps.append("fold the phase of low resolution into the maps, if the middle of k-space is measured")
    steps.append("minimise data term and learned energy, with a certificate for each slice")
    if kspace.reference is not None:
        steps.append("compare with the reference of the file")
    return steps


def _missing(kspace: LazyKspace | NonCartesianKspace, share: float) -> list[str]:
    missing = []
    if kspace.affine is None:
        missing.append("place and size of the voxels: the output has voxels of 1 mm, row 0 at the top")
    if kspace.coils > 1 and kspace.noise is None:
        missing.append("a noise measurement")
    if kspace.reference is None and math.isclose(share, 100):
        missing.append("nothing to reconstruct from less: all was measured; thin it out with acceleration=4 to compare")
    return missing


def of_images(volume: Volume) -> Finding:
    """What images are, and what would be done with them."""
    slices, height, width = volume.slices.shape
    facts = {
        "slices": str(slices),
        "size": f"{height} x {width}",
        "values": f"{float(volume.slices.min()):.4g} to {float(volume.slices.max()):.4g}",
        "unit": volume.unit,
    }
    if volume.affine is not None:
        facts["voxels"] = " x ".join(f"{length:.3g}" for length in volume.voxel) + " mm"
    hounsfield = volume.unit == "hounsfield" or ct.seems_hounsfield(volume.slices)
    if hounsfield and volume.unit != "hounsfield":
        facts["unit"] = "hounsfield, by the values of air"
    kind = "ct" if hounsfield else "mri"
    return Finding(
        "Images",
        facts,
        f"lipspline reconstruct {kind} IN OUT.nii.gz simulate=True",
        ("measure the images, add noise, reconstruct, compare",),
        ("raw data: images can only be measured again in a simulation, or denoised (lipspline denoise)",),
    )


def _first(read: Callable[..., Any], path: Path) -> Any:
    """What is read from a file, or from its first slice if all of it is too much."""
    try:
        return read(path)
    except FileError as error:
        if "choose fewer slices" not in str(error):
            raise
        return read(path, slice(0, 1))


def _bytes(path: Path) -> int:
    files = [file for file in path.rglob("*") if file.is_file()] if path.is_dir() else [path]
    return sum(file.stat().st_size for file in bart.pair(path) or files if file.is_file())

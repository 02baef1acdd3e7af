"""One order from the command line: what to reconstruct, with what, into which files; and its execution."""

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

import lipspline
from lipspline._infra import checks, ranks
from lipspline.formats import output
from lipspline.imaging.finished import Finished
from lipspline.imaging.problem import Scan
from lipspline.imaging.run import Reconstruction, Watch, reconstruct
from lipspline.imaging.solved import Iteration
from lipspline.imaging.strength import Strength
from lipspline.networks.files import checksum


@dataclass(frozen=True)
class Order:
    """What to do.

    Args:
        output: the image; its certificate is written to the same name with .json added.
        first: number of the first slice in its file.
        options: as the user gave them, for the certificate; files among them are told apart by size and time.
    """

    scan: Scan
    strength: Strength
    iteration: Iteration
    source: Path
    output: Path
    first: int
    options: Mapping[str, Any]

    @property
    def certificate(self) -> Path:
        """The file of the certificate."""
        return beside(self.output, ".json")

    def settings(self) -> dict[str, Any]:
        """All that a slice depends on, so that slices of another order are not mistaken for those of this one."""
        return {
            "lipspline": lipspline.__version__,
            "source": mark(self.source),
            "options": {key: mark(Path(value)) if _names_file(value) else value for key, value in self.options.items()},
            "scan": self.scan.summary,
            "beta": self.strength.beta,
            "denoiser": checksum(self.strength.denoiser.state_dict()),
            "iteration": vars(self.iteration),
        }


def beside(path: Path, ending: str) -> Path:
    """The file that belongs to an output: `scan.nii.gz` has `scan.nii.gz.json`.

    Example:
        >>> print(beside(Path("scan.nii.gz"), ".json"))
        scan.nii.gz.json
    """
    return path.with_name(path.name + ending)


def check_outputs(output_path: Path, slices: int, others: tuple[str, ...], force: bool) -> None:
    """Refuse, before any work, an output that cannot be written or that exists."""
    output.writer(output_path, slices)
    for path in (output_path, *(beside(output_path, ending) for ending in (".json", *others))):
        if path.exists() and not force:
            raise FileExistsError(f"{path} exists already. Choose another name, or overwrite it with --force.")


def carry_out(order: Order, watch: Watch | None = None) -> tuple[Reconstruction, dict[str, Any], Finished]:
    """Reconstruct, then write the image and its certificate; under torchrun the first process writes.

    Returns the reconstruction, the certificate as JSON values, and the finished slices, to be removed when everything
    that is made of them is written.
    """
    result, finished = reconstruct(
        order.scan,
        order.strength,
        order.iteration,
        beside(order.output, ".parts"),
        order.settings(),
        first=order.first,
        watch=watch,
    )
    document = _document(order, result)
    certificate = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    if ranks.is_main():
        volume = result.volume
        checks.finite("The reconstruction", volume.slices, "Scale the data down: they exceed the range of float32.")
        description = f"lipspline {lipspline.__version__}: plug-and-play reconstruction. {order.scan.summary}"
        output.write(order.output, output.Image(volume, order.scan.modality, description, result.complex_images))
        output.put(order.certificate, lambda draft: draft.write_text(certificate, encoding="utf-8"))
    return result, document, finished


def _document(order: Order, result: Reconstruction) -> dict[str, Any]:
    return {
        "input": str(order.source),
        "output": str(order.output),
        "options": {key: str(value) if isinstance(value, Path) else value for key, value in order.options.items()},
        "denoiser": {
            "name": order.strength.name,
            "certificate": order.strength.upper,
            "sha256": checksum(order.strength.denoiser.state_dict()),
        },
        "beta": {"value": order.strength.beta, "chosen": order.strength.chosen},
        "versions": {
            "lipspline": lipspline.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        **result.document(),
    }


def _names_file(value: Any) -> bool:
    return isinstance(value, Path) or (isinstance(value, str) and bool(Path(value).suffix) and Path(value).is_file())


def mark(path: Path) -> list[Any]:
    """What tells one state of a file, or of the files in a folder, from another, without reading them."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    return [
        str(path.resolve()),
        *([file.name, file.stat().st_size, file.stat().st_mtime_ns] for file in files if file.exists()),
    ]

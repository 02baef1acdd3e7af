"""One order from the command line: what to reconstruct, with what, into which files; and its execution."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lipspline
from lipspline._infra import checks, ranks
from lipspline.formats.output import PAGE, Image, Output, versions, writer
from lipspline.imaging.problem import Scan
from lipspline.imaging.run import Reconstruction, Watch, reconstruct
from lipspline.imaging.solved import Iteration
from lipspline.imaging.strength import Strength
from lipspline.imaging.verify import describe_denoiser
from lipspline.networks.files import checksum


@dataclass(frozen=True)
class Order:
    """What to do.

    Args:
        output: the image and what belongs to it; open it before `carry_out`.
        first: number of the first slice in its file.
        options: as the user gave them, for the certificate; files among them are told apart by size and time.
    """

    scan: Scan
    strength: Strength
    iteration: Iteration
    source: Path
    output: Output
    first: int
    options: Mapping[str, Any]

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


def carry_out(
    order: Order, watch: Watch | None = None, page: Callable[[Reconstruction], bytes] | None = None
) -> tuple[Reconstruction, dict[str, Any]]:
    """Reconstruct, then write the image, its page if there is one, and its certificate.

    Returns the reconstruction and the certificate as JSON values. Under torchrun the first process writes.
    """
    result, _ = reconstruct(
        order.scan,
        order.strength,
        order.iteration,
        order.output.parts,
        order.settings(),
        first=order.first,
        watch=watch,
    )
    document = _document(order, result)
    if ranks.is_main():
        volume = result.volume
        checks.finite("The reconstruction", volume.slices, "Scale the data down: they exceed the range of float32.")
        description = f"lipspline {lipspline.__version__}: plug-and-play reconstruction. {order.scan.summary}"
        image = Image(volume, order.scan.modality, description, result.complex_images)
        write = writer(order.output.path, len(volume.slices))
        makers: dict[str, Callable[[Path], object]] = {"": lambda draft: write(draft, image)}
        if page is not None:
            makers[PAGE] = lambda draft: draft.write_bytes(page(result))
        document = order.output.commit(document, makers)
    return result, document


def _document(order: Order, result: Reconstruction) -> dict[str, Any]:
    chosen = order.strength
    return {
        "input": str(order.source),
        "output": str(order.output.path),
        "options": {key: str(value) if isinstance(value, Path) else value for key, value in order.options.items()},
        "denoiser": describe_denoiser(
            str(order.options["model"]), chosen.prior, chosen.denoiser, chosen.noise, chosen.range, chosen.upper
        ),
        "beta": {"value": order.strength.beta, "chosen": order.strength.chosen},
        "versions": versions(),
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

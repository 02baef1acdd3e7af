"""What the lab has reconstructed: to be shown again, and to be kept as files with certificates."""

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lipspline._infra import files
from lipspline.formats import output, writers
from lipspline.formats.volume import Volume
from lipspline.imaging import Problem, Scan
from lipspline.imaging.cache import Slice, SliceImages
from lipspline.imaging.problem import Solved
from lipspline.imaging.strength import Strength, describe_prior, known
from lipspline.lab.request import LabRequest, Measurement
from lipspline.report import Agreement

DOWNLOADS = (".npy", ".png", ".tif", ".nii.gz", ".dcm")
CERTIFICATES = tuple(f"{ending}{output.CERTIFICATE}" for ending in DOWNLOADS)


def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="lipspline-lab-", ignore_cleanup_errors=True)


@dataclass(frozen=True)
class LabResult:
    """What was reconstructed last, and how.

    Args:
        solved: of these data, the latest one last.
        origin: the name or the file of the prior.
        inputs: the file that was read, by its name, and what tells it from others.
        section: the result on the page of the lab.
        page: the report.
        stem: what files made from it are called, before their ending.
    """

    request: LabRequest
    scan: Scan
    problem: Problem
    solved: tuple[Solved, ...]
    strength: Strength
    origin: str
    inputs: Mapping[str, Any]
    section: str
    page: bytes
    stem: str = "result"
    _files: tempfile.TemporaryDirectory[str] = field(default_factory=_folder, compare=False)
    """Each file is written once: what is downloaded again is what the certificate is about."""

    @property
    def measurement(self) -> Measurement:
        """What was measured, and how."""
        return self.request.measurement

    def name(self, ending: str) -> str:
        """What the file with this ending is called."""
        return f"{self.stem}-lipspline{ending}"

    def file(self, ending: str) -> bytes:
        """The latest image in its unit, as a file with this ending; with .json behind it its certificate."""
        if ending in CERTIFICATES:
            return self._certificate(ending.removesuffix(output.CERTIFICATE))
        return self._written(ending).read_bytes()

    def _written(self, ending: str) -> Path:
        path = Path(self._files.name, self.name(ending))
        if not path.exists():
            values = self.scan.values(self._image, self.problem.scale).detach()[None]
            volume = Volume((values.abs() if values.is_complex() else values).float(), self.scan.affine, self.scan.unit)
            description = f"lipspline lab. {self.scan.summary}"
            complex_values = values if values.is_complex() else None
            writers.write(path, writers.Image(volume, self.scan.modality, description, complex_values))
        return path

    @property
    def _image(self) -> Any:
        return self.problem.image(self.solved[-1].solution.value)

    def _certificate(self, ending: str) -> bytes:
        """What `lipspline verify` reads beside the file with this ending."""
        written = self._written(ending)
        document = {"output": written.name, **self.document(), "files": {written.name: files.sha256(written)}}
        return output.to_json(output.seal(document))

    def document(self) -> dict[str, Any]:
        """The certificate of the image, as that of `lipspline.reconstruct`, without the checksums of files."""
        chosen, done = self.strength, self._slice
        return {
            "input": next(iter(self.inputs), self.measurement.image),
            "inputs": dict(self.inputs),
            "options": self.request.document(),
            "prior": describe_prior(self.origin, chosen.prior, chosen.served, chosen.noise, chosen.range, chosen.upper),
            "weight": {"value": chosen.weight, "chosen": chosen.chosen},
            "versions": output.versions(),
            "scan": self.scan.summary,
            "unit": self.scan.unit,
            "guaranteed": self.solved[-1].solution.certificate.guaranteed,
            "converged": self.solved[-1].solution.images[0].converged,
            "lipschitz": known(chosen.upper),
            "misfit_explained": done.misfit.fit is not Agreement.UNEXPLAINED,
            "misfit_doubtful": done.misfit.fit is Agreement.DOUBTFUL,
            "notes": list(self.scan.notes),
            "slices": [done.document()],
        }

    @property
    def _slice(self) -> Slice:
        problem, (_, solution, seconds) = self.problem, self.solved[-1]
        return Slice(
            self.measurement.slice,
            SliceImages(self._image, problem.image(problem.direct), problem.truth),
            problem.scale,
            problem.noise,
            problem.quality(solution.value),
            problem.quality(problem.direct),
            problem.misfit(solution.value),
            solution.images[0],
            solution.certificate,
            seconds,
            problem.map_errors,
            problem.map_passes,
        )

"""Reconstructed slices with their evidence, and a folder that keeps them, so that a stopped run can go on."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from lipspline._infra.files import write_whole
from lipspline.pnp import ImageRun, ReconstructionCertificate, Solution, Status
from lipspline.pnp.certificate import Pairing
from lipspline.pnp.guarantee import ObjectiveSetting, Setting
from lipspline.report import DataMisfit
from lipspline.training.checkpoint import decode, encode

EMPTY_NOTE = "The data of this slice are zero everywhere; its image is zero, without a certificate."


@dataclass(frozen=True)
class Slice:
    """One reconstructed slice with its evidence; images `(h, w)` are in the scale of the prior."""

    number: int
    image: Tensor
    direct: Tensor
    truth: Tensor | None
    scale: float
    noise: float
    quality: dict[str, float]
    direct_quality: dict[str, float]
    misfit: DataMisfit
    run: ImageRun | None
    """How the iteration went; None for a slice whose data are zero everywhere, which is not solved."""
    certificate: ReconstructionCertificate | None
    seconds: float

    @property
    def solution(self) -> Solution | None:
        """What `pnp.fbs` returned, cropped."""
        if self.run is None or self.certificate is None:
            return None
        return Solution(self.image[None, None], (self.run,), self.certificate)

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
            "misfit": {**asdict(self.misfit), "explained": self.misfit.explained},
            **self.quality,
            **({"direct": self.direct_quality} if self.direct_quality else {}),
            "certificate": json.loads(self.certificate.to_json()),
        }


class SliceCache:
    """A folder of finished slices of one request, described by `settings`; those of another are not used."""

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.folder, self.settings = folder, json.dumps(settings, sort_keys=True)

    def keep(self, done: Slice) -> None:
        """Write a slice; it exists completely or not at all."""
        tensors = {name: _as_real(getattr(done, name)) for name in ("image", "direct", "truth")}
        evidence = {
            "misfit": asdict(done.misfit),
            "run": None if done.run is None else asdict(done.run),
            "certificate": None if done.certificate is None else asdict(done.certificate),
        }
        state = {**vars(done), **tensors, **evidence}
        write_whole(self._path(done.number), encode({"settings": self.settings, "slice": state}))

    def load(self, number: int) -> Slice | None:
        """A slice of this request, or None if it is not there, damaged, or of another request."""
        path = self._path(number)
        if not path.is_file():
            return None
        try:
            state = decode(path)
        except (SafetensorError, ValueError):
            return None
        if state.get("settings") != self.settings:
            return None
        fields = dict(state["slice"])
        for name in ("image", "direct", "truth"):
            fields[name] = _from_real(fields[name])
        fields["misfit"] = DataMisfit(**fields["misfit"])
        if fields["run"] is not None:
            if "status" not in fields["run"]:
                return None  # written before runs had a status
            fields["run"] = ImageRun(**{**fields["run"], "status": Status(fields["run"]["status"])})
            fields["certificate"] = _certificate(fields["certificate"])
        return Slice(**fields)

    def _path(self, number: int) -> Path:
        return self.folder / f"slice-{number:05d}.safetensors"


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

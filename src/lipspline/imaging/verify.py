"""Does a certificate belong to its image, and does what it claims hold: what `lipspline verify` asks."""

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lipspline._infra import files
from lipspline.formats.output import CERTIFICATE, PAGE, Output, read_certificate, versions
from lipspline.imaging.strength import proven_upper
from lipspline.networks.files import checksum
from lipspline.priors import Kind, resolve

SLACK = 1e-9
"""By how much, relatively, a bound that is computed again may exceed the one of the certificate: other processors
round differently."""


class CheckOutcome(StrEnum):
    """What came of one check."""

    HOLDS = "holds"
    FAILS = "fails"
    UNCHECKED = "not checked"
    DOUBTFUL = "doubtful"
    CHANGED = "changed"


@dataclass(frozen=True)
class Check:
    """One thing that was checked."""

    name: str
    outcome: CheckOutcome
    detail: str


@dataclass(frozen=True)
class Verification:
    """All that was checked about one result."""

    output: str
    checks: tuple[Check, ...]

    @property
    def holds(self) -> bool:
        """Whether nothing that could be checked fails."""
        return all(check.outcome is not CheckOutcome.FAILS for check in self.checks)

    def document(self) -> dict[str, Any]:
        """The result as JSON values."""
        return {
            "output": self.output,
            "holds": self.holds,
            "checks": [{"name": c.name, "outcome": str(c.outcome), "detail": c.detail} for c in self.checks],
        }

    def __str__(self) -> str:
        width = max(len(check.outcome) for check in self.checks)
        lines = [f"{check.outcome:{width}}  {check.name}: {check.detail}" for check in self.checks]
        verdict = "The certificate belongs to this result." if self.holds else "The certificate does NOT hold."
        if any(check.outcome is CheckOutcome.DOUBTFUL for check in self.checks):
            verdict += " Whether the result is an image of the object is doubtful: it does not fit the measurements."
        if any(check.outcome is CheckOutcome.CHANGED for check in self.checks):
            verdict += " The input is another one now than the one it was made from."
        return "\n".join([self.output, *lines, verdict])


def verify(path: str | Path) -> Verification:
    """Check a result against the certificate beside it: checksums, also of the input, versions, the Lipschitz bound.

    Args:
        path: the image or folder that `reconstruct` or `denoise` has written; its certificate is `path`.json.
    """
    output = Output(path)
    if not output.certificate.is_file() and output.path.name.endswith(CERTIFICATE):
        output = Output(output.path.with_name(output.path.name.removesuffix(CERTIFICATE)))
    if not output.certificate.is_file():
        raise FileNotFoundError(f"There is no certificate {output.certificate}.")
    certificate = read_certificate(output.certificate)
    if certificate is None:
        detail = f"{output.certificate.name} is not as lipspline wrote it, or from a version that wrote no checksums"
        return Verification(str(path), (Check("certificate", CheckOutcome.FAILS, detail),))
    found = [Check("certificate", CheckOutcome.HOLDS, "unchanged since it was written")]
    found += _tried("files", lambda: [*_files(output, certificate)])
    for name, check in CHECKS.items():
        found += _tried(name, lambda check=check: [check(certificate)])
    return Verification(str(output.path), tuple(found))


def _tried(name: str, check: Callable[[], list[Check]]) -> list[Check]:
    """What a check finds; whoever writes a certificate can write its checksum, so its fields may be anything."""
    try:
        return check()
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError, OSError) as error:
        detail = f"this part of the certificate is not as lipspline writes it ({type(error).__name__})"
        return [Check(name, CheckOutcome.FAILS, detail)]


def _files(output: Output, certificate: Mapping[str, Any]) -> Iterator[Check]:
    """The files that the certificate names, and those in the folder of the result that it does not name."""
    sums, folder = certificate["files"], output.path.parent
    bad = []
    page = output.path.name + PAGE
    if page in sums and not (folder / page).is_file():
        sums = {name: value for name, value in sums.items() if name != page}
        yield Check("page", CheckOutcome.UNCHECKED, f"{page} is not here")
    for name, value in sums.items():
        file = folder / name
        if not output.owns(name) or not file.is_file():
            bad.append(f"{name} is missing")
        elif files.sha256(file) != value:
            bad.append(f"{name} is not the file that was written: its SHA-256 differs")
    if output.path.is_dir():
        inside = (str(file.relative_to(folder)) for file in output.path.rglob("*"))
        bad += [f"{name} is not part of the result" for name in sorted(inside) if name not in sums]
    if not any(name == output.path.name or name.startswith(f"{output.path.name}/") for name in sums):
        bad.append(f"the certificate is not that of {output.path.name}")
    if bad:
        yield Check("files", CheckOutcome.FAILS, "; ".join(bad))
    else:
        yield Check("files", CheckOutcome.HOLDS, f"{len(sums)} file(s) with the SHA-256 checksums of the certificate")
    if output.parts.exists():
        detail = f"{output.parts.name} is there: a run is going on or was interrupted"
        yield Check("finished", CheckOutcome.FAILS, detail)


def _inputs(certificate: Mapping[str, Any]) -> Check:
    """Whether the files that were read are still there and the same; the result stands whatever became of them."""
    states = certificate.get("inputs", {})
    here = {name: state for name, state in states.items() if Path(name).is_file() or Path(name).is_dir()}
    changed = [name for name, state in here.items() if files.fingerprint(Path(name)) != state]
    if changed:
        return Check("input", CheckOutcome.CHANGED, f"not what it was when it was read: {', '.join(changed)}")
    if not here or len(here) < len(states):
        gone = ", ".join(name for name in states if name not in here)
        return Check("input", CheckOutcome.UNCHECKED, f"not here: {gone}" if gone else "no file is named")
    part = "" if all(state["content"] == "whole" for state in here.values()) else ", by sizes and the ends of the files"
    return Check("input", CheckOutcome.HOLDS, f"the same as when it was read{part}")


def _claims(certificate: Mapping[str, Any]) -> Check:
    """Whether what is said of all slices agrees with what is said of each."""
    slices = [entry["certificate"] for entry in certificate.get("slices", ()) if "certificate" in entry]
    if not slices:
        return Check("claims", CheckOutcome.UNCHECKED, "no slices with certificates of their own")
    guaranteed = all(entry["guaranteed"] for entry in slices)
    if certificate["guaranteed"] != guaranteed:
        return Check("claims", CheckOutcome.FAILS, "guaranteed is not what the slices say")
    words = "convergence is guaranteed" if guaranteed else "convergence is not claimed"
    return Check("claims", CheckOutcome.HOLDS, f"{words} for {len(slices)} slice(s)")


def _data_fit(certificate: Mapping[str, Any]) -> Check:
    """Whether noise explains how far each image is from its measurements, as it was found at the time."""
    misfits = [entry["misfit"] for entry in certificate.get("slices", ()) if entry.get("misfit") is not None]
    if not misfits:
        return Check("data fit", CheckOutcome.UNCHECKED, "the certificate does not speak of measurements")
    odd = [misfit["value"] for misfit in misfits if not misfit["explained"]]
    if not odd:
        return Check("data fit", CheckOutcome.HOLDS, f"noise explained the misfit of {len(misfits)} slice(s)")
    words = (
        f"noise did not explain the misfit of {len(odd)} of {len(misfits)} slice(s), up to {max(odd):.2g} of the data"
    )
    return Check("data fit", CheckOutcome.DOUBTFUL, words)


def _bound(certificate: Mapping[str, Any]) -> Check:
    """The Lipschitz bound of the denoiser, computed again."""
    claim = certificate.get("prior", {})
    try:
        prior = resolve(claim["source"])
        network = prior.at(claim["noise"], range=tuple(claim["range"]))
    except (KeyError, OSError, ValueError) as error:
        return Check("bound", CheckOutcome.UNCHECKED, f"the denoiser cannot be had again ({error})")
    if (prior.sha256, checksum(network.state_dict())) != (claim["file_sha256"], claim["sha256"]):
        return Check("bound", CheckOutcome.UNCHECKED, f"{claim['source']} now holds other weights")
    upper = proven_upper(network)
    if claim["certificate"] is None:
        words = "an energy with kinks has no Lipschitz bound; its certificates are by duality"
        return Check("bound", CheckOutcome.FAILS if math.isfinite(upper) else CheckOutcome.HOLDS, words)
    outcome = CheckOutcome.HOLDS if upper <= claim["certificate"] * (1 + SLACK) else CheckOutcome.FAILS
    what = "the gradient of the energy" if prior.kind is Kind.ENERGY else "the denoiser"
    words = f"Lipschitz constant of {what} <= {upper:.9f} computed again, {claim['certificate']:.9f} claimed"
    return Check("bound", outcome, words)


def _versions(certificate: Mapping[str, Any]) -> Check:
    then, now = certificate.get("versions", {}), versions()
    if then == now:
        return Check("versions", CheckOutcome.HOLDS, ", ".join(f"{name} {value}" for name, value in now.items()))
    other = ", ".join(f"{name} {then.get(name)} (here {now[name]})" for name in now if then.get(name) != now[name])
    return Check("versions", CheckOutcome.UNCHECKED, f"made with {other}")


CHECKS: dict[str, Callable[[Mapping[str, Any]], Check]] = {
    "input": _inputs,
    "claims": _claims,
    "data fit": _data_fit,
    "bound": _bound,
    "versions": _versions,
}
"""What is checked in the certificate itself, beside the files it names."""

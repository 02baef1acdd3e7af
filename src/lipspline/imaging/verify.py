"""Does a certificate belong to its image, and does what it claims hold: what `lipspline verify` asks."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from lipspline._infra import files
from lipspline._infra.files import checksum
from lipspline.formats import bart
from lipspline.formats.output import CERTIFICATE, PAGE, Output, read_certificate, versions
from lipspline.imaging.strength import proven_upper
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
            verdict += " Whether the result is an image of the object is doubtful: "
            verdict += "it does not fit the measurements as noise would."
        if any(check.outcome is CheckOutcome.CHANGED for check in self.checks):
            verdict += " The input is another one now than the one it was made from."
        return "\n".join([self.output, *lines, verdict])


def verify(path: str | Path) -> Verification:
    """Check a result against the certificate beside it: checksums, also of the input, versions, the Lipschitz bound.

    Args:
        path: the image or folder that `reconstruct` or `denoise` has written; its certificate is `path`.json. That file
            and the page will do too. Where a result was renamed, alone or with its certificate, the other one is found
            in the same folder by its checksum.
    """
    return _verified(_together(Path(path)))


def verify_all(paths: Sequence[str | Path]) -> list[Verification]:
    """Check several results, each once, where an image, its certificate and its page are one; what is none fails."""
    found: dict[tuple[Path, Path], Verification] = {}
    for path in paths:
        try:
            pair = _together(Path(path))
        except FileNotFoundError as error:
            lost = Check("certificate", CheckOutcome.FAILS, str(error))
            found[Path(path), Path(path)] = Verification(str(path), (lost,))
        else:
            if (pair.image, pair.certificate) not in found:
                found[pair.image, pair.certificate] = _verified(pair)
    return list(found.values())


def summary(found: Sequence[Verification]) -> str:
    """How many of several results hold, and which do not."""
    bad = [one.output for one in found if not one.holds]
    end = f"; not: {', '.join(bad)}" if bad else ""
    return f"{len(found)} results, {len(found) - len(bad)} of them with a certificate that holds{end}."


def _verified(pair: "_Pair") -> Verification:
    certificate = pair.document
    if certificate is None:
        detail = f"{pair.certificate.name} is not as lipspline wrote it, or from a version that wrote no checksums"
        return Verification(str(pair.image), (Check("certificate", CheckOutcome.FAILS, detail),))
    found = [Check("certificate", CheckOutcome.HOLDS, "unchanged since it was written")]
    found += _tried("files", lambda: [*_files(pair)])
    for name, check in CHECKS.items():
        found += _tried(name, lambda check=check: [check(certificate)])
    return Verification(str(pair.image), tuple(found))


# Which image and which certificate belong together


@dataclass(frozen=True)
class _Pair:
    """An image and a certificate, by their names or by their checksums."""

    image: Path
    certificate: Path

    @property
    def document(self) -> dict[str, Any] | None:
        """What the certificate says; None if it is none."""
        return read_certificate(self.certificate)


def _together(path: Path) -> _Pair:
    """The image and the certificate that are meant by the name of one of them, or of the page."""
    if path.name.endswith(CERTIFICATE) and path.is_file():
        base = path.with_name(path.name.removesuffix(CERTIFICATE))
        document = None if base.exists() else read_certificate(path)
        return _Pair(base if document is None else _image_of(document, path.parent) or base, path)
    if path.name.endswith(PAGE) and Output(path.with_name(path.name.removesuffix(PAGE))).certificate.is_file():
        path = path.with_name(path.name.removesuffix(PAGE))
    if path.suffix == bart.HEADER and Output(path.with_suffix(bart.VALUES)).certificate.is_file():
        path = path.with_suffix(bart.VALUES)
    output = Output(path)
    if output.certificate.is_file():
        return _Pair(path, output.certificate)
    other = _certificate_of(path) if path.exists() else None
    if other is None:
        also = ", and no other file beside it is one of this image" if path.exists() else ""
        raise FileNotFoundError(
            f"There is no certificate {output.certificate}{also}. It is written with each image, as the name of the "
            f"image and {CERTIFICATE}: put both into one folder, whatever they are called there."
        )
    return _Pair(path, other)


def _certificate_of(image: Path) -> Path | None:
    """The certificate in the folder of an image that has its checksums."""
    for file in sorted(image.parent.glob(f"*{CERTIFICATE}")):
        document = read_certificate(file)
        if document is not None and _is_of(image, document["files"]):
            return file
    return None


def _image_of(document: Mapping[str, Any], folder: Path) -> Path | None:
    """The file or folder in a folder that has the checksums of a certificate."""
    ending = Path(_written(document["files"])).suffix
    found = (path for path in sorted(folder.iterdir()) if path.suffix == ending and not path.name.startswith("."))
    return next((path for path in found if _is_of(path, document["files"])), None)


def _is_of(path: Path, sums: Mapping[str, Any]) -> bool:
    """Whether a file, or every file of a folder and no other, has the checksum that a certificate says."""
    written = _written(sums)
    if path.is_dir():
        wanted = {name: value for name, value in sums.items() if name.startswith(f"{written}/")}
        inside = [file for file in path.rglob("*") if file.is_file()]
        if not wanted or len(inside) != len(wanted):
            return False
        return {f"{written}/{file.relative_to(path).as_posix()}": files.sha256(file) for file in inside} == wanted
    return path.is_file() and written in sums and files.sha256(path) == sums[written]


def _written(sums: Mapping[str, Any]) -> str:
    """What the result was called when its certificate was written."""
    return next((name.split("/")[0] for name in sums if not name.endswith(PAGE)), "")


def _tried(name: str, check: Callable[[], list[Check]]) -> list[Check]:
    """What a check finds; whoever writes a certificate can write its checksum, so its fields may be anything."""
    try:
        return check()
    except (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, RecursionError, OSError) as error:
        detail = f"this part of the certificate is not as lipspline writes it ({type(error).__name__})"
        return [Check(name, CheckOutcome.FAILS, detail)]


def _files(pair: _Pair) -> Iterator[Check]:
    """The files that the certificate names, and those in the folder of the result that it does not name."""
    assert pair.document is not None
    sums, folder, now = pair.document["files"], pair.image.parent, pair.image.name
    then = _written(sums)
    own, called, bad = Output(pair.image), {}, []
    headers = [bart.header_of(Path(one)) for one in (then, now)]
    for name in sums:
        if headers[0] is not None and headers[1] is not None and name == headers[0].name:
            called[name] = headers[1].name
            continue
        called[name] = now + name[len(then) :] if name in (then, then + PAGE) or name.startswith(f"{then}/") else name
        if name == then + PAGE and not (folder / called[name]).is_file():
            yield Check("page", CheckOutcome.UNCHECKED, f"{called.pop(name)} is not here")
    for name, current in called.items():
        file, renamed = folder / current, "" if name == current else f" as {name}"
        if not own.owns(current) or not file.is_file():
            bad.append(f"{current} is missing")
        elif files.sha256(file) != sums[name]:
            bad.append(f"{current} is not the file that was written{renamed}: its SHA-256 differs")
    if pair.image.is_dir():
        inside = (str(file.relative_to(folder)) for file in pair.image.rglob("*"))
        bad += [f"{name} is not part of the result" for name in sorted(inside) if name not in called.values()]
    if not any(name == now or name.startswith(f"{now}/") for name in called.values()):
        bad.append(f"the certificate is not that of {now}")
    if bad and pair.image.exists() and (other := _certificate_of(pair.image)) not in (None, pair.certificate):
        bad.append(f"{other.name if other else ''} is the certificate of {now}")
    if bad:
        yield Check("files", CheckOutcome.FAILS, "; ".join(bad))
    else:
        yield Check("files", CheckOutcome.HOLDS, f"{len(called)} file(s) with the SHA-256 checksums of the certificate")
        if now != then or pair.certificate != own.certificate:
            detail = f"it was written as {then}, and {pair.certificate.name} has its checksum"
            yield Check("name", CheckOutcome.HOLDS, detail)
    if own.parts.exists():
        detail = f"{own.parts.name} is there: a run is going on or was interrupted"
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
    doubt = [misfit["value"] for misfit in misfits if misfit.get("verdict") == "doubtful"]
    if doubt and not odd:
        words = f"noise explained only a part of the misfit of {len(doubt)} of {len(misfits)} slice(s)"
        return Check("data fit", CheckOutcome.DOUBTFUL, f"{words}, up to {max(doubt):.2g} of the data")
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

"""Several scans by one command: which files a pattern or a folder stands for, and where each result goes."""

import glob
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from lipspline._infra.files import fingerprint, is_pattern
from lipspline.cli.program import err, sentence_of, translated
from lipspline.formats import arrays, bart, dicom, fastmri, hdf5, siemens
from lipspline.formats.output import Output, read_certificate
from lipspline.formats.validation import FileError
from lipspline.imaging.inspection import inspect_file
from lipspline.imaging.request import Request
from lipspline.imaging.verify import summary, verify, verify_all

RAW = (*hdf5.ENDINGS, *siemens.ENDINGS, *arrays.ENDINGS, ".cfl")
"""Endings of files that hold a scan of their own; of BART's two files the one with the numbers."""
STAR = "*"


def scans(source: Path) -> list[Path]:
    """The scans that a pattern or a folder of raw data stands for; none if `source` is a scan itself."""
    if is_pattern(source):
        found = [path for path in map(Path, glob.glob(str(source))) if path.suffix.lower() != bart.ENDINGS[1]]
        found = [path for path in found if path.is_file() or fastmri.is_tensor_folder(path)]
        if not found:
            raise FileNotFoundError(f"No file is called like {source}.")
        return sorted(found)
    if not source.is_dir() or fastmri.is_tensor_folder(source):
        return []
    inside = [path for path in source.iterdir() if path.is_file() and not path.name.startswith(".")]
    found = [path for path in inside if path.name.lower().endswith(RAW)]
    images = [path for path in inside if path.name.lower().endswith(dicom.ENDINGS)]
    if found and images:
        raise FileError(
            f"{source} holds raw data, such as {min(found).name}, and DICOM images, such as {min(images).name}. Name "
            f"those that are meant by a pattern in quotes, such as '{source}/*{min(found).suffix}'."
        )
    return sorted(found)


def inspected(source: Path) -> tuple[dict[str, Any], str, bool]:
    """What is said of a file, or of each scan it stands for: as JSON, in words, and whether all were recognised."""
    files = scans(source)
    found = [inspect_file(file) for file in files or [source]]
    documents = [one.document() for one in found]
    document = {"input": str(source), "scans": documents} if files else documents[0]
    return document, "\n\n".join(map(str, found)), all(one.findings for one in found)


def verified(outputs: list[Path]) -> tuple[dict[str, Any], str, bool]:
    """What is found out about results, or those that patterns stand for: as JSON, in words, and whether all hold."""
    paths = [path for output in outputs for path in (_named(output) if is_pattern(output) else [output])]
    found = [verify(paths[0])] if len(paths) == 1 else verify_all(paths)
    holds = all(one.holds for one in found)
    if len(found) == 1:
        return found[0].document(), str(found[0]), holds
    document = {"holds": holds, "results": [one.document() for one in found]}
    return document, "\n\n".join([*map(str, found), summary(found)]), holds


def _named(pattern: Path) -> list[Path]:
    found = sorted(map(Path, glob.glob(str(pattern))))
    if not found:
        raise FileNotFoundError(f"No file is called like {pattern}.")
    return found


def each(
    request: Request, output: Path, fulfil: Callable[[Request, Path], None], *, force: bool, as_json: bool
) -> None:
    """Fulfil a request for one scan, or for each of those that its data stand for.

    Results that the same request has made of the same files are kept; what goes wrong with one file is said, and the
    next is taken.
    """
    files = scans(Path(str(request.data)))
    if not files:
        fulfil(request, output)
        return
    targets = _targets(Path(str(request.data)), files, output)
    if as_json:
        raise ValueError("Several files make several documents: leave out json=, each is beside its image.")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("Several files are reconstructed by one process; under torchrun name one of them.")
    failed, kept = [], 0
    for number, (file, target) in enumerate(targets.items(), 1):
        one = replace(request, data=file)
        if not force and _made_before(one, target):
            _say(f"{number} of {len(files)}: {target} was made by the same command, and is kept.")
            kept += 1
            continue
        _say(f"{number} of {len(files)}: {file}")
        try:
            fulfil(one, target)
        except (ValueError, OSError) as error:
            failed.append(file.name)
            err.print(
                f"lipspline: {translated(sentence_of(error))}",
                style="red",
                markup=False,
                highlight=False,
                soft_wrap=True,
            )
    _say(f"{len(files) - kept - len(failed)} reconstructed, {kept} kept from before, {len(failed)} failed.")
    if failed:
        raise ValueError(f"{len(failed)} of {len(files)} files were not reconstructed: {', '.join(failed)}.")


def _targets(source: Path, files: list[Path], output: Path) -> dict[Path, Path]:
    """Where the result of each file goes."""
    if output.name.count(STAR) != 1:
        raise ValueError(
            f"{source} stands for {len(files)} file(s), so OUT needs a star for their names, such as "
            f"'{output / '*.nii.gz' if not output.suffix else output.with_name('*' + output.suffix)}' in quotes."
        )
    found = {file: output.with_name(output.name.replace(STAR, file.name.split(".")[0])) for file in files}
    made: dict[Path, Path] = {}
    for file, target in found.items():
        if target in made:
            raise ValueError(f"{made[target].name} and {file.name} would both become {target}. Name fewer files.")
        made[target] = file
    return found


def _made_before(request: Request, target: Path) -> bool:
    """Whether a result is there that the same request made of the same files."""
    certificate = read_certificate(Output(target).certificate) if target.exists() else None
    if certificate is None:
        return False
    inputs = {str(file): fingerprint(file) for file in request.files() if file.exists()}
    wanted = json.loads(json.dumps({"options": request.options(), "inputs": inputs}))
    return all(certificate.get(name) == value for name, value in wanted.items())


def _say(words: str) -> None:
    err.print(f"lipspline: {words}", markup=False, highlight=False, soft_wrap=True)

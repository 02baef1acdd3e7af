"""Results on disk: how a result, its certificate and its page appear together.

A result `scan.nii.gz` has a certificate `scan.nii.gz.json`, which holds the SHA-256 checksums of the files of the
result, and perhaps a page `scan.nii.gz.html`; BART's `scan.cfl` has its header `scan.hdr`, too. While it is made there
is a folder `scan.nii.gz.parts` with a lock, finished slices, and drafts. Nothing is replaced that this program did not
write, and at no moment does a certificate lie beside an image that is not its own: the old certificate goes first, the
new one comes last. A journal in the lock file holds the checksums of what is replaced and of what replaces it, so that
a run that is killed in between is recognised and finished by the next.
"""

import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch

import lipspline
from lipspline._infra import files
from lipspline.formats import bart

CERTIFICATE, PAGE, PARTS = ".json", ".html", ".parts"
"""Endings of what belongs to a result."""
LOCK, DRAFT, OLD = "lock", "draft", "old"
"""What is in the folder of parts, besides slices."""
SLICE = re.compile(r"\.?slice-\d{5,}\.safetensors(\.lipspline-new)?")
LARGEST_CERTIFICATE = 2**28  # bytes


class Output:
    """A result on disk with what belongs to it; see the top of this file.

    Args:
        path: the file or folder that the user named.
        page: whether a page is written too.
    """

    def __init__(self, path: str | Path, *, page: bool = False):
        self.path = Path(path)
        self.endings = ("", PAGE) if page else ("",)
        self._descriptor: int | None = None

    def beside(self, ending: str) -> Path:
        """The file that belongs to the result by this ending.

        Example:
            >>> print(Output("scan.nii.gz").beside(".json"))
            scan.nii.gz.json
        """
        return self.path.with_name(self.path.name + ending)

    @property
    def files(self) -> tuple[Path, ...]:
        """The image, or its folder, and the header that BART has beside it."""
        header = bart.header_of(self.path)
        return (self.path,) if header is None else (self.path, header)

    @property
    def written(self) -> tuple[Path, ...]:
        """All that is written, the certificate last."""
        return (*self.files, *(self.beside(ending) for ending in (*self.endings[1:], CERTIFICATE)))

    @property
    def certificate(self) -> Path:
        """The file of the certificate."""
        return self.beside(CERTIFICATE)

    @property
    def parts(self) -> Path:
        """The folder that exists while the result is made."""
        return self.beside(PARTS)

    def check(self, inputs: Iterable[Path] = (), *, force: bool = False) -> None:
        """Refuse, before any work, what cannot be written or must not be replaced.

        Args:
            inputs: files and folders that are read.
            force: whether an earlier result of this program may be replaced.
        """
        self._check_places(tuple(inputs))
        self._check_targets(force or self._interrupted())

    @contextmanager
    def open(self, inputs: Iterable[Path] = (), *, force: bool = False) -> Iterator["Output"]:
        """Check and lock the output while it is made; `commit` writes it.

        Whoever leaves this without `commit` leaves the output as it was, and finished slices in `parts`.
        """
        inputs = tuple(inputs)
        self._check_places(inputs)
        force = force or self._interrupted()
        if not (self.parts / LOCK).exists():  # otherwise whoever writes it is to be named first
            self._check_targets(force)
        made = [parent for parent in self.path.absolute().parents if not parent.exists()]
        self._lock()
        try:
            self._check_places(inputs)  # again, now that no other process writes
            self._check_targets(force or self._interrupted())
            yield self
        finally:
            self._unlock(made)

    def commit(self, document: Mapping[str, Any], makers: Mapping[str, Callable[[Path], object]]) -> dict[str, Any]:
        """Write the result: what `makers` write under each ending ("" for the image itself), then the certificate.

        Returns the certificate: `document`, the checksums of the files, and its own.
        """
        draft = self.parts / DRAFT
        _remove(draft)
        draft.mkdir()
        for ending, make in makers.items():
            make(draft / (self.path.name + ending))
        sums = {str(file.relative_to(draft)): _synced_sum(file) for file in sorted(draft.rglob("*")) if file.is_file()}
        sealed = seal({**document, "files": sums})
        certificate = draft / self.certificate.name
        certificate.write_bytes(to_json(sealed))
        self._check_targets(force=True)
        known = self._known()
        self._note({name: sorted(values) for name, values in known.items()})
        self._note({**{name: [value] for name, value in sums.items()}, certificate.name: [_synced_sum(certificate)]})
        self._replace(draft, known)
        self._clear()
        return sealed

    def _replace(self, draft: Path, known: Mapping[str, set[str]]) -> None:
        """Put the drafts in their places, with no certificate there meanwhile."""
        self.certificate.unlink(missing_ok=True)
        page = self.beside(PAGE)
        if page.name in known and not self._foreign(page, known):
            page.unlink(missing_ok=True)
        files.sync(self.path.parent)
        if self.path.is_dir():
            self._remove_old()
            os.rename(self.path, self.parts / OLD)
        for place in (*self.files, page, self.certificate):
            new = draft / place.name
            if new.exists():
                os.replace(new, place)
                files.sync(self.path.parent)

    # What may be replaced

    def _check_places(self, inputs: tuple[Path, ...]) -> None:
        if self.path.name in ("", ".", ".."):
            raise ValueError(f"The output {str(self.path)!r} is no name of a new file or folder. Name one in it.")
        places = [*self.written, self.parts]
        files.check_names(places)
        for place in places:
            files.check_apart(place, inputs)
        self._check_parts()

    def _check_targets(self, force: bool) -> None:
        known = self._known()
        for target in self.written:
            if not os.path.lexists(target):
                continue
            if foreign := self._foreign(target, known):
                raise FileExistsError(
                    f"{foreign} exists, and lipspline did not write it, or an early version without checksums did, or "
                    f"it was changed since. Choose another name for the output, or remove it yourself."
                )
            if not force:
                raise FileExistsError(f"{target} exists already. Choose another name, or replace it with force=True.")

    def _known(self) -> dict[str, set[str]]:
        """Checksums of the files that this program wrote, by their names beside the output."""
        known: dict[str, set[str]] = {}
        certificate = read_certificate(self.certificate)
        if certificate is not None and all(self.owns(name) for name in certificate["files"]):
            for name, value in certificate["files"].items():
                known.setdefault(name, set()).add(value)
            known.setdefault(self.certificate.name, set()).add(files.sha256(self.certificate))
        for entry in self._journal():
            for name, values in entry.items():
                known.setdefault(name, set()).update(values)
        return known

    def owns(self, name: str) -> bool:
        """Whether a name, relative to the folder that the output is in, is that of the result or its page."""
        own = self.path.name
        return name in (*(file.name for file in self.files), own + PAGE, own + CERTIFICATE) or (
            name.startswith(f"{own}/") and ".." not in Path(name).parts
        )

    def _foreign(self, target: Path, known: Mapping[str, set[str]], name: str = "") -> Path | None:
        """The first thing in or at `target` that is not known, or None."""
        name = name or target.name
        if target.is_dir() and not target.is_symlink():
            inside = sorted(target.iterdir())
            found = (self._foreign(file, known, f"{name}/{file.name}") for file in inside)
            return next((path for path in found if path is not None), None if inside else target)
        if name not in known or target.is_symlink() or not target.is_file():
            return target
        return None if files.sha256(target) in known[name] else target

    # The folder of parts

    def _check_parts(self) -> None:
        """Refuse a folder of that name which is not ours."""
        if not os.path.lexists(self.parts):
            return
        if self.parts.is_symlink() or not self.parts.is_dir():
            raise FileExistsError(f"{self.parts} is needed for work, but exists. Choose another name for the output.")
        own, names = self.path.name, sorted(path.name for path in self.parts.iterdir())
        ours = not names or files.is_lock(self.parts / LOCK)
        strange = [name for name in names if name not in (LOCK, DRAFT, OLD) and not SLICE.fullmatch(name)]
        old = self.parts / OLD
        if OLD in names and (not old.is_dir() or any(old.iterdir())) and self._foreign(old, self._known(), own):
            strange.append(OLD)
        if not ours or strange:
            raise FileExistsError(
                f"The folder {self.parts} is needed for work, but holds {(strange or names)[0]!r}, which this "
                f"version of lipspline did not write. Choose another name for the output, or move that away."
            )

    def _interrupted(self) -> bool:
        """Whether a run was killed while it put its result in place, so that this one has to finish."""
        return self.parts.is_dir() and (bool(self._journal()) or not any(self.parts.iterdir()))

    def _journal(self) -> list[dict[str, list[str]]]:
        """What `_note` wrote; a line that a kill has cut is left out."""
        path = self.parts / LOCK
        if not path.is_file() or path.is_symlink():
            return []
        entries = []
        for line in path.read_bytes()[files.OWNER_BYTES :].splitlines():
            with suppress(ValueError, RecursionError):
                entries.append(json.loads(line))
        return [entry for entry in entries if _is_note(entry)]

    def _note(self, entry: Mapping[str, list[str]]) -> None:
        assert self._descriptor is not None, "commit is called within `with output.open():`"
        os.lseek(self._descriptor, 0, os.SEEK_END)
        os.write(self._descriptor, b"\n" + json.dumps(entry).encode() + b"\n")
        os.fsync(self._descriptor)

    def _lock(self) -> None:
        while True:
            self.parts.mkdir(parents=True, exist_ok=True)
            with suppress(FileNotFoundError):  # whoever had it has just removed the folder
                self._descriptor = files.lock(self.parts / LOCK, str(self.path))
                return

    def _clear(self) -> None:
        """Remove everything but the lock, whose journal is needed to the end."""
        _remove(self.parts / DRAFT)
        self._remove_old()
        for path in self.parts.iterdir():
            if SLICE.fullmatch(path.name):
                path.unlink()

    def _remove_old(self) -> None:
        """Remove the folder that was replaced: no file of it but ours."""
        old, known = self.parts / OLD, self._known()
        for file in sorted(old.iterdir()) if old.is_dir() else ():
            if self._foreign(file, known, f"{self.path.name}/{file.name}") is None:
                file.unlink()
        with suppress(OSError):
            old.rmdir()

    def _unlock(self, made: Iterable[Path]) -> None:
        """Let go of the lock; with nothing else there, remove it, its folder, and the folders that were made for it."""
        assert self._descriptor is not None
        try:
            if not self._journal():
                _remove(self.parts / DRAFT)
            if [path.name for path in self.parts.iterdir()] == [LOCK]:
                (self.parts / LOCK).unlink()
                with suppress(OSError):
                    self.parts.rmdir()
                    for folder in made:
                        folder.rmdir()
        finally:
            os.close(self._descriptor)
            self._descriptor = None


def to_json(document: Mapping[str, Any]) -> bytes:
    """A document as the bytes of a file, in UTF-8, whatever bytes the names in it are made of."""
    return (json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode(
        "utf-8", "backslashreplace"
    )


def versions() -> dict[str, str]:
    """What a result was made with."""
    return {
        "lipspline": lipspline.__version__,
        "torch": torch.__version__,
        "python": platform.python_version(),
    }


def seal(document: Mapping[str, Any]) -> dict[str, Any]:
    """The document with the checksum of all the rest of it, by which a change is seen."""
    body = {key: value for key, value in document.items() if key != "checksum"}
    return {**body, "checksum": hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()}


def read_certificate(path: Path) -> dict[str, Any] | None:
    """A certificate that this program wrote and nobody has changed since; None if it is none."""
    if path.is_symlink() or not path.is_file() or path.stat().st_size > LARGEST_CERTIFICATE:
        return None
    try:
        document = json.loads(path.read_bytes())
    except (ValueError, RecursionError):
        return None
    if not isinstance(document, dict) or not isinstance(document.get("files"), dict):
        return None
    return document if document == seal(document) else None


def _synced_sum(file: Path) -> str:
    files.sync(file)
    return files.sha256(file)


def _remove(folder: Path) -> None:
    """Remove a folder of drafts."""
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)


def _is_note(entry: object) -> bool:
    """Whether this is a line of the journal: checksums by names."""
    return isinstance(entry, dict) and all(
        isinstance(values, list) and all(isinstance(value, str) for value in values) for values in entry.values()
    )

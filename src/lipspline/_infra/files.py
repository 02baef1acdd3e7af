"""Files that appear whole or not at all, states in such files, locks between processes, and checks of names.

A state, such as a checkpoint or a finished slice, is one safetensors file. Its tensors are the leaves of the state; its
metadata holds the rest as JSON and a checksum of everything. Nothing is ever unpickled.
"""

import errno
import fcntl
import hashlib
import json
import os
import socket
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save
from torch import Tensor

OWNER_BYTES = 256
"""The first line of a lock file, which says who holds it, has this length; what follows belongs to the holder."""
WHOLE, END = 2**26, 2**16
"""Bytes up to which a fingerprint is that of all content, and how many it takes of each end of larger files."""
_TENSOR = "$tensor"
_PAIRS = "$pairs"


def write_whole(path: Path, content: bytes) -> None:
    """Write a file so that, whenever the program or the machine stops, `path` holds the old content or the new.

    The content is first written to a hidden file beside it. That has a fixed name and is locked, so what a killed
    process leaves is used up by the next one, and two processes write one after the other.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(_draft_name(path))
    descriptor = open_locked(draft, wait=True)
    try:
        os.ftruncate(descriptor, 0)
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(content)
        os.fsync(descriptor)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    finally:
        os.close(descriptor)
    sync(path.parent)


def sync(path: Path) -> None:
    """Make the content of a file last, or the names in a folder, which the system may otherwise write much later."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """The SHA-256 checksum of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# States


def fingerprint(path: Path) -> dict[str, Any]:
    """What tells a file, or the files in a folder, from any other, as JSON values.

    Up to 64 MB altogether it is the SHA-256 of names, sizes and content; of more, of names, sizes and the ends of each
    file, so that it never takes long.
    """
    found = sorted(file for file in path.iterdir() if file.is_file()) if path.is_dir() else [path]
    sizes = [file.stat().st_size for file in found]
    whole, digest = sum(sizes) <= WHOLE, hashlib.sha256()
    for file, size in zip(found, sizes, strict=True):
        name = file.name if path.is_dir() else ""
        digest.update(f"{name!r} {size}\n".encode("utf-8", "backslashreplace"))
        with file.open("rb") as content:
            while block := content.read(END):
                digest.update(block)
                if not whole and content.tell() < size - END:
                    content.seek(size - END)
    return {"bytes": sum(sizes), "content": "whole" if whole else "ends", "sha256": digest.hexdigest()}


def encode(state: dict[str, Any]) -> bytes:
    """A tree of dicts, lists, tensors and JSON values as the bytes of a safetensors file with a checksum."""
    tensors: dict[str, Tensor] = {}
    text = json.dumps(_split(state, "", tensors))
    metadata = {"state": text, "checksum": _checksum(text, tensors)}
    return save(tensors, metadata)


def decode(path: Path) -> dict[str, Any]:
    """Read what `encode` wrote.

    Raises:
        ValueError, SafetensorError: the file is truncated or was changed.
    """
    with safe_open(path, framework="pt") as file:
        metadata = file.metadata() or {}
        tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118
    if {"state", "checksum"} - metadata.keys():
        raise ValueError("it is no checkpoint of this program")
    if _checksum(metadata["state"], tensors) != metadata["checksum"]:
        raise ValueError("its checksum is wrong")
    return _join(json.loads(metadata["state"]), tensors)


def _split(node: Any, path: str, tensors: dict[str, Tensor]) -> Any:
    """JSON for `node`, with its tensors moved into `tensors` under their path."""
    if isinstance(node, Tensor):
        tensors[path] = node.detach().cpu().clone(memory_format=torch.contiguous_format)
        return {_TENSOR: path}
    if isinstance(node, dict):
        return {_PAIRS: [[key, _split(value, f"{path}/{key}", tensors)] for key, value in node.items()]}
    if isinstance(node, (list, tuple)):
        return [_split(value, f"{path}/{i}", tensors) for i, value in enumerate(node)]
    return node


def _join(node: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(node, list):
        return [_join(value, tensors) for value in node]
    if isinstance(node, dict):
        return tensors[node[_TENSOR]] if _TENSOR in node else {k: _join(v, tensors) for k, v in node[_PAIRS]}
    return node


def _checksum(text: str, tensors: dict[str, Tensor]) -> str:
    digest = hashlib.blake2b(text.encode(), digest_size=16)
    for name in sorted(tensors):
        digest.update(name.encode())
        digest.update(tensors[name].reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


# Locks


def open_locked(path: Path, *, wait: bool) -> int:
    """Open a file that this process alone has locked, and make it if it is not there; returns its descriptor.

    The lock ends with the descriptor, also when the process is killed. Links are not followed.

    Raises:
        BlockingIOError: another process has it, and `wait` is false.
    """
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            if _names(path, descriptor):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # whoever had the lock has removed or renamed the file


def lock(path: Path, what: str) -> int:
    """Lock a file that says who holds it; returns its descriptor. Close it to let go.

    Raises:
        BlockingIOError: another process holds it; the message names `what` and the process.
    """
    try:
        descriptor = open_locked(path, wait=False)
    except BlockingIOError:
        raise BlockingIOError(
            f"{what} is being written by {_owner(path)}. Wait until that has finished, or choose another name."
        ) from None
    owner = f"lipspline, process {os.getpid()} on {socket.gethostname()}"
    try:
        os.pwrite(descriptor, owner.encode()[: OWNER_BYTES - 1].ljust(OWNER_BYTES - 1) + b"\n", 0)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` while something is done, then remove it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = lock(path, what)
    try:
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(descriptor)


def is_lock(path: Path) -> bool:
    """Whether a file is a lock of this program; one that was killed while it made it leaves an empty file."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb") as file:
        start = file.read(OWNER_BYTES)
    return not start or start.startswith(b"lipspline, process ")


def _owner(path: Path) -> str:
    try:
        line = path.read_bytes()[:OWNER_BYTES].decode(errors="replace").strip()
    except OSError:
        line = ""
    return line.replace("lipspline, ", "another lipspline, ") or "another process"


def _names(path: Path, descriptor: int) -> bool:
    """Whether `path` still is the name of an open file."""
    try:
        found, held = os.lstat(path), os.fstat(descriptor)
    except FileNotFoundError:
        return False
    return (found.st_dev, found.st_ino) == (held.st_dev, held.st_ino)


# Names


def check_names(paths: Iterable[Path]) -> None:
    """Refuse names, of files to be written, that the file system cannot hold."""
    for path in paths:
        folder = next(parent for parent in path.absolute().parents if parent.exists())
        length, longest = len(os.fsencode(path.name)), os.pathconf(folder, "PC_NAME_MAX")
        if length > longest:
            raise OSError(
                errno.ENAMETOOLONG,
                f"The name has {length} bytes, but {longest} are possible; shorten it by {length - longest}",
                f"{path.name[:20]}...{path.name[-20:]}",
            )


def is_pattern(path: Path) -> bool:
    """Whether a name stands for many files, as `scan/*.tif` does; a file that is called so is itself."""
    return any(sign in str(path) for sign in "*?[") and not path.exists()


def check_apart(output: Path, inputs: Iterable[Path]) -> None:
    """Refuse to write what is read: an output that is an input, also by a link, contains one, or lies in one.

    An output that a pattern names would be an input of the next run.
    """
    place = Path(os.path.realpath(output))
    for given in inputs:
        source = Path(os.path.realpath(given))
        same = place == source or (output.exists() and given.exists() and output.samefile(given))
        if same:
            raise ValueError(f"The output {output} is the input {given}. Choose another name.")
        if place in source.parents:
            raise ValueError(f"The output {output} is a folder that holds the input {given}. Choose another name.")
        if source in place.parents and source.is_dir():
            raise ValueError(f"The output {output} lies in the input folder {given}. Choose a name outside of it.")
        if is_pattern(given) and place.match(str(source)):
            raise ValueError(f"The output {output} is one of the input files {given}. Choose another name.")


def _draft_name(path: Path) -> str:
    """The name under which a file is written before it gets its own; short enough whatever its own is."""
    name = f".{path.name}.lipspline-new"
    longest = os.pathconf(path.parent, "PC_NAME_MAX")
    if len(os.fsencode(name)) <= longest:
        return name
    return f".{hashlib.sha256(os.fsencode(path.name)).hexdigest()}.lipspline-new"


def checksum(tensors: dict[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and values of tensors."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
        digest.update(tensor.reshape(-1).contiguous().view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()

"""Counts what one command passes through: the files in which a function runs, and the types of records it makes.

    python docs/house_walk.py reconstruct mri scan.h5 out.npy
    python docs/house_walk.py          two examples: a slice of k-space in a fastMRI file, and a sinogram

Functions that run while a module is imported are not counted, nor are class bodies.
"""

import dataclasses
import importlib.util
import inspect
import sys
import tempfile
import threading
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

GENERATED = "<string>"
"""The file of the methods that dataclasses and named tuples get."""


class Walk:
    """Follows function calls, in every thread."""

    def __init__(self, root: Path):
        self.root = str(root) + "/"
        self.files: Counter[str] = Counter()
        self.records: Counter[str] = Counter()
        self._importing = threading.local()

    def __enter__(self) -> "Walk":
        threading.setprofile(self._see)
        sys.setprofile(self._see)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _see(self, frame: FrameType, event: str, _: Any) -> None:
        if event not in ("call", "return"):
            return
        code, depth = frame.f_code, getattr(self._importing, "depth", 0)
        if code.co_name == "<module>":
            self._importing.depth = depth + (1 if event == "call" else -1)
        elif depth > 0 or event == "return":
            return
        elif code.co_filename == GENERATED:
            self._see_record(frame)
        elif code.co_filename.startswith(self.root) and code.co_flags & inspect.CO_NEWLOCALS:
            self.files[code.co_filename.removeprefix(self.root)] += 1

    def _see_record(self, frame: FrameType) -> None:
        name = frame.f_code.co_name
        if name == "__init__":
            made = type(frame.f_locals.get("self"))
            is_record = dataclasses.is_dataclass(made)
        else:
            made = frame.f_locals.get("_cls")
            is_record = isinstance(made, type) and issubclass(made, tuple)
        if is_record and made is not None and made.__module__.startswith("lipspline"):
            self.records[f"{made.__module__}.{made.__qualname__}"] += 1


def walk(arguments: list[str]) -> Walk:
    """One run of the command line."""
    package = importlib.util.find_spec("lipspline")
    assert package is not None
    assert package.origin is not None
    from lipspline.cli import main

    sys.argv, followed = ["lipspline", *arguments], Walk(Path(package.origin).parent)
    with followed:
        try:
            main()
        except SystemExit as end:
            if end.code not in (0, None):
                raise
    return followed


def show(name: str, followed: Walk) -> None:
    print(f"{name}: {len(followed.files)} files, {len(followed.records)} types of records")
    for kind, found in (("file", followed.files), ("record", followed.records)):
        for each, count in sorted(found.items()):
            print(f"  {kind:6} {count:8} {each}")


def examples(folder: Path) -> dict[str, list[str]]:
    """A slice of k-space of a disc, and its sinogram."""
    import h5py
    import numpy as np
    import torch

    from lipspline.operators import ParallelBeamCT

    y, x = np.mgrid[-1:1:64j, -1:1:64j]
    disc = ((x**2 + y**2 < 0.5) + 0.5 * (abs(x) + abs(y) < 0.4)).astype(np.float32)
    noise = np.random.default_rng(0).normal(size=(64, 64, 2)) @ (1, 1j)
    kspace = np.fft.fftshift(np.fft.fft2(np.fft.ifftshift(disc), norm="ortho")) + 0.02 * noise
    with h5py.File(folder / "scan.h5", "w") as file:
        file["kspace"] = kspace[None].astype(np.complex64)
    H = ParallelBeamCT(64, 60, 64, spacing=1.0)
    sinogram = H.forward(torch.from_numpy(disc)[None, None])[0, 0]
    np.save(folder / "sinogram.npy", sinogram.numpy() + 0.1 * np.random.default_rng(1).normal(size=sinogram.shape))
    return {
        "mri": ["reconstruct", "mri", f"{folder}/scan.h5", f"{folder}/mri.npy", "--acceleration", "2"],
        "ct": ["reconstruct", "ct", f"{folder}/sinogram.npy", f"{folder}/ct.npy"],
    }


if __name__ == "__main__":
    if sys.argv[1:]:
        show(" ".join(sys.argv[1:]), walk(sys.argv[1:]))
    else:
        with tempfile.TemporaryDirectory() as place:
            for example, command in examples(Path(place)).items():
                show(example, walk(command))

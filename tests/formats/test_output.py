"""Outputs: every format, a certificate that belongs to its image at every moment, and nothing else is lost."""

import json
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from lipspline.formats import bart, mri, output, writers
from lipspline.formats.output import Output, read_certificate, seal
from lipspline.formats.volume import Volume

AFFINE = torch.diag(torch.tensor([0.5, 0.6, 2.0, 1.0], dtype=torch.float64))
VOLUME = Volume(torch.arange(3 * 8 * 7, dtype=torch.float32).view(3, 8, 7) / 168, AFFINE)
ONE = Volume(VOLUME.slices[:1], AFFINE)


# Formats


@pytest.mark.parametrize("name", ["o.npy", "o.h5", "o.nii", "o.nii.gz", "o.tif", "series"])
def test_a_volume_comes_back(name, tmp_path):
    writers.write(tmp_path / name, writers.Image(VOLUME, "MR", "test"))
    found = mri.read(tmp_path / name)
    assert isinstance(found, Volume)
    torch.testing.assert_close(found.slices, VOLUME.slices, atol=1e-5, rtol=0)
    if name not in ("o.npy", "o.tif"):
        assert found.voxel == pytest.approx((0.5, 0.6, 2.0))
    assert [path.name for path in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["o.npy", "o.h5", "o.nii", "o.nii.gz", "o.tif", "series"])
def test_the_same_volume_gives_the_same_bytes(name, tmp_path):
    """So that a run that was interrupted ends bit-equal."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        writers.write(tmp_path / folder / name, writers.Image(VOLUME, "MR", "test"))
    assert snapshot(tmp_path / "a") == snapshot(tmp_path / "b")


@pytest.mark.parametrize("name", ["o.png", "o.dcm"])
def test_one_slice_fits_into_one_file(name, tmp_path):
    writers.write(tmp_path / name, writers.Image(ONE, "MR", "test"))
    assert (tmp_path / name).is_file()
    with pytest.raises(ValueError, match=rf"{name} can hold one slice, but there are 3"):
        writers.writer(tmp_path / name, 3)


def test_hdf5_keeps_the_phase(tmp_path):
    values = torch.randn(1, 8, 7, dtype=torch.complex64)
    writers.write(tmp_path / "o.h5", writers.Image(ONE, "MR", "test", values))
    with h5py.File(tmp_path / "o.h5") as file:
        assert np.array_equal(file["complex"][:], values.numpy())


def test_bart_reads_what_is_written_for_it(tmp_path):
    values = torch.complex(VOLUME.slices, -VOLUME.slices)
    for name, image in (("o.cfl", values), ("p.cfl", None)):
        writers.write(tmp_path / name, writers.Image(VOLUME, "MR", "test", image))
        found = bart.read_maps(tmp_path / name)[:, 0]
        assert torch.equal(found, values if image is not None else VOLUME.slices.to(torch.complex64))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.cfl", "o.hdr", "p.cfl", "p.hdr"]


@pytest.mark.skipif(shutil.which("bart") is None, reason="BART is not installed")
def test_bart_itself_has_the_image_at_its_place(tmp_path):
    writers.write(tmp_path / "o.cfl", writers.Image(VOLUME, "MR", "test"))
    for dimension, place, name in ((0, 5, "row"), (1, 2, "column"), (13, 1, "slice")):
        source = {"row": "o", "column": "row", "slice": "column"}[name]
        command = ["bart", "slice", str(dimension), str(place), tmp_path / source, tmp_path / name]
        subprocess.run(command, check=True, capture_output=True)
    found = np.fromfile(tmp_path / "slice.cfl", "<c8")
    assert found.tolist() == [float(VOLUME.slices[1, 5, 2])]


def test_all_that_is_written_is_named():
    assert [path.name for path in Output("o.cfl", page=True).written] == ["o.cfl", "o.hdr", "o.cfl.html", "o.cfl.json"]


def test_a_header_of_bart_that_is_not_ours_is_never_replaced(tmp_path):
    (tmp_path / "o.hdr").write_text("# Dimensions\n8 7\n")
    with pytest.raises(FileExistsError, match=r"o\.hdr exists, and lipspline did not write it"):
        write(tmp_path / "o.cfl", force=True)
    assert [path.name for path in tmp_path.iterdir()] == ["o.hdr"]


def test_unknown_endings_are_refused_before_the_work(tmp_path):
    with pytest.raises(ValueError, match=r"o\.xyz is not in a known format.*\.nii\.gz"):
        writers.writer(tmp_path / "o.xyz", 1)


# Outputs with what belongs to them


def make(target: Output, text: str = "new", files: int = 3) -> Callable[[Path], object]:
    """Writes a file, or for a name without ending a folder of them."""

    def write(draft: Path) -> None:
        if target.path.suffix:
            draft.write_text(text)
            if target.path.suffix == ".cfl":
                draft.with_suffix(".hdr").write_text(f"header of {text}")
        else:
            draft.mkdir()
            for number in range(files):
                (draft / f"{number + 1:04d}.dcm").write_text(f"{text} {number}")

    return write


def write(path: Path, text: str = "new", *, page: bool = False, inputs=(), force: bool = False, files: int = 3) -> dict:
    """A whole run: two slices are kept while it works."""
    target = Output(path, page=page)
    with target.open(inputs, force=force):
        for number in range(2):
            kept = target.parts / f"slice-{number:05d}.safetensors"
            with kept.open("w") as file:
                file.write(text)
        makers = {"": make(target, text, files)}
        if page:
            makers[".html"] = lambda draft: draft.write_text(f"page of {text}")
        return target.commit({"text": text}, makers)


def snapshot(root: Path) -> dict[str, object]:
    """Every file, folder and link below a folder, with its content."""
    found: dict[str, object] = {}
    for path in sorted(root.rglob("*")):
        name = str(path.relative_to(root))
        if path.is_symlink():
            found[name] = ("link", os.readlink(path))
        else:
            found[name] = "folder" if path.is_dir() else path.read_bytes()
    return found


def pair_is_right(path: Path) -> bool:
    """Whether there is no certificate, or one that fits to what is there."""
    certificate = read_certificate(path.with_name(path.name + ".json"))
    if certificate is None:
        return not path.with_name(path.name + ".json").exists()
    return all(
        (path.parent / name).is_file() and output.files.sha256(path.parent / name) == value
        for name, value in certificate["files"].items()
    )


@pytest.mark.parametrize("name", ["o.npy", "o.cfl", "series"])
@pytest.mark.parametrize("page", [False, True])
def test_the_certificate_holds_the_checksums_and_nothing_else_is_left(name, page, tmp_path):
    document = write(tmp_path / name, page=page)
    inside = {"o.npy": ["o.npy"], "o.cfl": ["o.cfl", "o.hdr"], "series": [f"series/000{i}.dcm" for i in (1, 2, 3)]}[
        name
    ]
    assert sorted(document["files"]) == sorted([*inside, *([f"{name}.html"] if page else [])])
    assert read_certificate(tmp_path / f"{name}.json") == document
    expected = {*(inside if "." in name else [name]), f"{name}.json", *([f"{name}.html"] if page else [])}
    assert {path.name for path in tmp_path.iterdir()} == expected
    assert pair_is_right(tmp_path / name)


@pytest.mark.parametrize("name", ["o.npy", "o.cfl", "series"])
def test_a_result_is_replaced_as_a_whole_with_force_only(name, tmp_path):
    write(tmp_path / name, "old", page=True)
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match=r"exists already.*force=True"):
        write(tmp_path / name)
    assert snapshot(tmp_path) == before
    write(tmp_path / name, "new", force=True, files=1)
    assert pair_is_right(tmp_path / name)
    names = {path.name for path in tmp_path.iterdir()} - {"o.hdr"}
    assert names == {name, f"{name}.json"}  # the old page went with its image
    if name == "series":
        assert [file.name for file in (tmp_path / name).iterdir()] == ["0001.dcm"]


CHANGES = {
    "a file of mine": lambda root: (root / "o.npy").write_text("mine"),
    "a changed image": lambda root: (write(root / "o.npy"), (root / "o.npy").write_text("annotated")),
    "a changed certificate": lambda root: (write(root / "o.npy"), edit(root / "o.npy.json")),
    "a certificate of mine": lambda root: (root / "o.npy.json").write_text("{}"),
    "an image without certificate": lambda root: (write(root / "o.npy"), (root / "o.npy.json").unlink()),
    "another's certificate": lambda root: (write(root / "a.npy"), (root / "a.npy.json").rename(root / "o.npy.json")),
    "a folder of mine": lambda root: (root / "o.npy").mkdir(),
    "a link": lambda root: (write(root / "a.npy"), (root / "o.npy").symlink_to("a.npy")),
    "a link to nothing": lambda root: (root / "o.npy").symlink_to("nothing"),
    "parts of mine": lambda root: ((root / "o.npy.parts").mkdir(), (root / "o.npy.parts" / "photo").touch()),
    "parts that are a file": lambda root: (root / "o.npy.parts").touch(),
    "parts that are a link": lambda root: ((root / "d").mkdir(), (root / "o.npy.parts").symlink_to("d")),
    "a slice of mine": lambda root: (
        (root / "o.npy.parts").mkdir(),
        (root / "o.npy.parts" / "slice-00000.safetensors").write_text("mine"),
    ),
}


def edit(path: Path) -> None:
    document = json.loads(path.read_text())
    path.write_text(json.dumps({**document, "text": "better"}))


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("force", [False, True])
def test_what_lipspline_did_not_write_is_never_replaced(change, force, tmp_path):
    CHANGES[change](tmp_path)
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError):
        write(tmp_path / "o.npy", force=force)
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("extra", ["notes.txt", "0004.dcm", "more"])
def test_a_folder_with_anything_else_in_it_is_refused(extra, tmp_path):
    write(tmp_path / "series")
    (tmp_path / "series" / extra).mkdir() if extra == "more" else (tmp_path / "series" / extra).write_text("mine")
    before = snapshot(tmp_path)
    with pytest.raises(FileExistsError, match=rf"{extra} exists, and lipspline did not write it"):
        write(tmp_path / "series", force=True)
    assert snapshot(tmp_path) == before


def test_a_file_that_appears_during_the_work_is_not_replaced(tmp_path):
    target = Output(tmp_path / "o.npy")
    with pytest.raises(FileExistsError, match="did not write it"), target.open():
        target.path.write_text("mine")
        target.commit({}, {"": make(target)})
    assert snapshot(tmp_path) == {"o.npy": b"mine"}


def test_an_output_that_is_contains_or_lies_in_an_input_is_refused(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    source = Path("data/k.npy")
    source.write_text("precious")
    Path("soft.npy").symlink_to(source)
    Path("hard.npy").hardlink_to(source)
    Path("here").symlink_to("data")
    before = snapshot(tmp_path)
    cases = [
        (source, source, "is the input"),
        (tmp_path / source, source, "is the input"),
        (Path("here/k.npy"), source, "is the input"),
        (Path("soft.npy"), source, "is the input"),
        (Path("hard.npy"), source, "is the input"),
        (source, Path("soft.npy"), "is the input"),
        (Path("data"), source, "is a folder that holds the input"),
        (Path("here"), source, "is a folder that holds the input"),
        (Path("data/new"), Path("data"), "lies in the input folder"),
        (Path("here/new.npy"), Path("data"), "lies in the input folder"),
        (Path("k"), Path("k.json"), "is the input"),
        (Path("data/new.npy"), Path("data/*.npy"), "is one of the input files data/\\*.npy"),
        (Path("here/new.npy"), Path("data/n?w.npy"), "is one of the input files"),
        (Path("data/new.npy"), Path("d*/*.npy"), "is one of the input files"),
        (Path(".."), source, "is no name of a new file"),
        (Path("."), source, "is no name of a new file"),
        (Path("data/.."), source, "is no name of a new file"),
        (Path("/"), source, "is no name of a new file"),
    ]
    for target, given, sentence in cases:
        with pytest.raises(ValueError, match=sentence):
            write(target, inputs=[given], force=True)
        assert snapshot(tmp_path) == before, target


@pytest.mark.parametrize("letter", ["a", "ü"])
def test_names_that_are_too_long_with_their_companions_are_refused_before_the_work(letter, tmp_path):
    longest = 255 - len(".parts") - len(".npy")
    name = letter * (longest // len(letter.encode()))
    write(tmp_path / f"{name}.npy", page=True)
    assert pair_is_right(tmp_path / f"{name}.npy")
    with pytest.raises(OSError, match=r"256 bytes.*shorten it by 1"):
        Output(tmp_path / f"{name}{letter}.npy").check()
    deep = tmp_path.joinpath(*["d" * 200] * 21)
    with pytest.raises(OSError, match="File name too long"):
        Output(deep / "o.npy").check()


def test_a_certificate_is_what_was_written_even_with_bytes_that_are_no_text(tmp_path):
    name = os.fsdecode(b"\xff.npy")
    target = Output(tmp_path / name)
    with target.open():
        target.commit({"input": name}, {"": make(target)})
    assert read_certificate(target.certificate) is not None
    assert seal(seal({"a": [1.5, "ü"]})) == seal({"a": [1.5, "ü"]})


DAMAGED_NOTES = [b'{"o.npy": 5}', b'{"o.npy": [5]}', b'{"o.npy": "abc"}', b"[" * 5000, b"null", bytes(300)]


@pytest.mark.parametrize("note", DAMAGED_NOTES, ids=lambda note: repr(note[:16]))
def test_a_damaged_journal_does_not_stop_the_next_run(note, tmp_path):
    """What a disk or a hand has changed in the lock of a run that was killed."""
    target = Output(tmp_path / "o.npy")
    with target.open():
        lock = (target.parts / "lock").read_bytes()
    target.parts.mkdir()
    (target.parts / "lock").write_bytes(lock + b"\n" + note + b"\n")
    write(target.path)
    assert pair_is_right(target.path)
    assert {path.name for path in tmp_path.iterdir()} == {"o.npy", "o.npy.json"}


# Two processes


def test_a_second_process_is_told_who_writes(tmp_path):
    """Locks belong to descriptors, so a second one in this process is a second process."""
    path = tmp_path / "o.npy"
    with Output(path).open():
        with pytest.raises(BlockingIOError, match=rf"o\.npy is being written by another .*process {os.getpid()} on"):
            write(path, force=True)
        assert {file.name for file in tmp_path.rglob("*")} == {"o.npy.parts", "lock"}
    assert snapshot(tmp_path) == {}
    write(path)
    assert pair_is_right(path)


# A kill at every system call that writes


class Killed(BaseException):
    """The process has ended; what it does afterwards has no effect."""


class Fuse:
    """Raises `Killed` at the n-th change of the file system, and at every later one, as if there were no process."""

    def __init__(self) -> None:
        self.left, self.lit, self.count = 0, False, 0

    def burn(self) -> None:
        if self.lit:
            self.count += 1
            if self.count > self.left:
                raise Killed

    @contextmanager
    def kill_after(self, changes: int) -> Iterator[None]:
        self.left, self.count, self.lit = changes, 0, True
        try:
            yield
        finally:
            self.lit = False


FUSE = Fuse()
EVENTS = ("os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink", "shutil.rmtree")


def watch(event: str, arguments: tuple) -> None:
    writes = event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)
    if FUSE.lit and (event in EVENTS or writes):
        FUSE.burn()


@pytest.fixture
def fuse(monkeypatch):
    """Audit hooks see every Python call that changes the file system; writes and syncs are wrapped."""
    if not getattr(sys, "_lipspline_fuse", False):
        sys.addaudithook(watch)
        sys._lipspline_fuse = True
    monkeypatch.setattr(os, "fsync", lambda descriptor: FUSE.burn())
    for name in ("write", "pwrite"):
        real = getattr(os, name)
        monkeypatch.setattr(os, name, lambda *a, real=real: (FUSE.burn(), real(*a))[1])
    return FUSE


def kill_everywhere(fuse: Fuse, tmp_path: Path, prepare: Callable, run: Callable, again: Callable) -> int:
    """Kill `run` before its n-th change, for all n; `again` must then end as an undisturbed `run` does."""
    changes = 0
    while True:
        root = tmp_path / str(changes)
        root.mkdir()
        prepare(root)
        try:
            with fuse.kill_after(changes):
                run(root)
        except Killed:
            killed = True
        else:
            killed = False
        for path in (root / "o.npy", root / "series"):
            assert pair_is_right(path), f"a wrong pair after {changes} changes"
        if killed:
            again(root)
        whole = tmp_path / "whole"
        if not whole.exists():
            whole.mkdir()
            prepare(whole)
            run(whole)
        assert snapshot(root) == snapshot(whole), f"killed after {changes} changes"
        if not killed:
            return changes
        changes += 1


@pytest.mark.parametrize("name", ["o.npy", "o.cfl", "series"])
def test_killed_at_any_change_the_same_command_finishes_bit_equal(name, fuse, tmp_path):
    def run(root):
        write(root / name, page=True)

    assert kill_everywhere(fuse, tmp_path, lambda root: None, run, run) > 20


@pytest.mark.parametrize("name", ["o.npy", "o.cfl", "series"])
def test_killed_while_replacing_the_same_command_finishes_bit_equal(name, fuse, tmp_path):
    def run(root):
        write(root / name, "new", page=True, force=True)

    count = kill_everywhere(fuse, tmp_path, lambda root: write(root / name, "old", page=True, files=4), run, run)
    assert count > 20


def test_killed_again_and_again_it_still_finishes(fuse, tmp_path):
    """At random changes, up to ten times, before it is let go."""
    for seed in range(30):
        rng, root = random.Random(seed), tmp_path / str(seed)
        write(root / "series", "old", files=2)
        for _ in range(rng.randrange(10)):
            try:
                with fuse.kill_after(rng.randrange(60)):
                    write(root / "series", "new", force=True)
            except Killed:
                pass
            assert pair_is_right(root / "series")
        write(root / "series", "new", force=True)
        assert {path.name for path in root.iterdir()} == {"series", "series.json"}
        assert (root / "series" / "0001.dcm").read_text() == "new 0"


# Any tree of files


NAMES = ("o.npy", "o.npy.json", "o.npy.html", "o.npy.parts", "series", "series.json", "series.parts", "in.npy", "data")
INSIDE = ("lock", "draft", "old", "slice-00000.safetensors", "0001.dcm", "in.npy", "notes.txt", "o.npy")


def plant(root: Path, rng: random.Random) -> None:
    """Files, folders, links and earlier results around the places where outputs go."""
    for _ in range(rng.randrange(7)):
        path = root / rng.choice(NAMES)
        if path.is_dir() and rng.random() < 0.7:
            path = path / rng.choice(INSIDE)
        kind = rng.random()
        try:
            if kind < 0.25:
                write(path, rng.choice("ab"), page=rng.random() < 0.5, force=True)
            elif kind < 0.55:
                path.write_text(rng.choice(("", "{}", "mine", "lipspline, process 1 on me")))
            elif kind < 0.75:
                path.mkdir()
            elif kind < 0.85:
                path.symlink_to(rng.choice((".", "..", "in.npy", "data", "o.npy", "nowhere")))
            elif kind < 0.92:
                path.hardlink_to(root / rng.choice(NAMES))
            else:
                kept = [file for file in root.rglob("*") if file.is_file()]
                path.write_bytes(rng.choice(kept).read_bytes())
        except (OSError, ValueError, IndexError):
            continue


def check_one_tree(root: Path, seed: int) -> bool:
    """Write one output into one random tree: nothing but the output, and what belongs to it, changes."""
    rng, root = random.Random(seed), root / "tree"
    root.mkdir(parents=True)
    plant(root, rng)
    target = root / rng.choice(("o.npy", "series", "data", "data/o.npy", "new/o.npy", ".", "..", "series/old"))
    inputs = (
        [root / rng.choice(("in.npy", "data", "data/in.npy", "o.npy", "series", "."))] if rng.random() < 0.5 else []
    )
    known = Output(target)._known() if target.name not in ("", "..") else {}
    before = snapshot(root)
    try:
        write(target, page=rng.random() < 0.5, inputs=inputs, force=rng.random() < 0.7)
    except (OSError, ValueError):
        assert snapshot(root) == before, f"refused, but something changed (seed {seed})"
        return False
    after = snapshot(root)
    target = target.parent.resolve() / target.name  # a folder on the way may be a link
    if root.resolve() not in target.parents:  # one that leads out of the tree
        assert after == before, f"something else changed (seed {seed})"
        return True
    own = str(target.relative_to(root.resolve()))
    companions = (own, f"{own}.json", f"{own}.html", f"{own}.parts")
    for name, content in before.items():
        if after.get(name) == content:
            continue
        belongs = name in companions or name.startswith((f"{own}/", f"{own}.parts/"))
        assert belongs, f"{name} changed (seed {seed})"
        relative = str((root.resolve() / name).relative_to(target.parent))
        ours = content == "folder" or relative in known or name.startswith(f"{own}.parts/")
        assert ours, f"{name} was not ours (seed {seed})"
    top = root.resolve()
    parents = {str(parent.relative_to(top)) for parent in target.parents if top in parent.parents}
    new = {name for name in after if name not in before and name not in parents}
    assert all(name in companions[:3] or name.startswith(f"{own}/") for name in new), (new, seed)
    assert pair_is_right(target)
    return True


def test_in_any_tree_nothing_but_the_output_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    written = [check_one_tree(tmp_path / str(seed), seed) for seed in range(300)]
    assert 50 < sum(written) < 250


@pytest.mark.slow
def test_in_ten_thousand_trees_nothing_but_the_output_changes(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)
    for seed in range(1000, 11000):
        check_one_tree(tmp_path / str(seed), seed)

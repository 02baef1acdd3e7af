"""Files that are written appear whole or not at all."""

import os
import threading

import pytest

from lipspline._infra import files
from lipspline._infra.files import lock, locked, write_whole


def test_a_file_and_its_folders_are_made_with_ordinary_permissions(tmp_path):
    path = tmp_path / "some" / "folder" / "file"
    write_whole(path, b"new")
    assert path.read_bytes() == b"new"
    ordinary = tmp_path / "ordinary"
    ordinary.touch()
    assert path.stat().st_mode == ordinary.stat().st_mode


def test_a_write_that_fails_leaves_the_old_file_and_no_other(tmp_path, no_space):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    no_space("file")
    with pytest.raises(OSError, match="No space left"):
        write_whole(path, b"new")
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
    assert path.read_bytes() == b"old"


def test_content_reaches_the_disk_before_the_name_and_then_the_name_does(tmp_path, monkeypatch):
    """Otherwise a machine that loses power may keep the new name with no content, or neither."""
    path, events = tmp_path / "file", []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda fd: (events.append(os.readlink(f"/proc/self/fd/{fd}")), sync(fd)))
    monkeypatch.setattr(os, "replace", lambda old, new: (events.append("rename"), rename(old, new)))
    write_whole(path, b"new")
    written, renamed, folder = events
    assert written.startswith(str(tmp_path / ".file."))
    assert renamed == "rename"
    assert folder == str(tmp_path)


def test_what_a_killed_process_left_is_used_up(tmp_path):
    (tmp_path / ".file.lipspline-new").write_bytes(b"half, and longer than the new content")
    write_whole(tmp_path / "file", b"new")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"file": b"new"}


def test_a_name_of_any_length_that_the_system_allows_is_written(tmp_path):
    for name in ("n" * 255, "ü" * 127):
        write_whole(tmp_path / name, b"new")
        assert (tmp_path / name).read_bytes() == b"new"
    assert len(list(tmp_path.iterdir())) == 2


def test_two_writers_write_one_after_the_other(tmp_path):
    contents = [bytes([letter]) * 100_000 for letter in b"abcdefgh"]
    writers = [threading.Thread(target=write_whole, args=(tmp_path / "file", content)) for content in contents]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert (tmp_path / "file").read_bytes() in contents
    assert len(list(tmp_path.iterdir())) == 1


def test_a_lock_is_held_by_one_and_removed_at_the_end(tmp_path):
    path = tmp_path / "run" / "lock"
    with locked(path, "the run"):
        with pytest.raises(BlockingIOError, match=f"the run is being written by another .*process {os.getpid()} on"):
            lock(path, "the run")
        assert path.exists()
    assert not path.exists()
    with locked(path, "the run"):
        pass


@pytest.mark.parametrize("place", [0, 5, 99])
def test_a_fingerprint_changes_with_any_byte_of_a_small_file_and_any_end_of_a_large_one(place, tmp_path, monkeypatch):
    monkeypatch.setattr(files, "END", 10)
    path = tmp_path / "a"
    for largest, content in ((1000, "whole"), (50, "ends")):
        monkeypatch.setattr(files, "WHOLE", largest)
        path.write_bytes(bytes(100))
        before = files.fingerprint(path)
        assert before["content"] == content
        path.write_bytes(bytes(place) + b"1" + bytes(99 - place))
        assert files.fingerprint(path) != before
    path.write_bytes(bytes(50) + b"1" + bytes(49))
    assert files.fingerprint(path) == before  # in the middle of a large file nothing is read


def test_a_fingerprint_of_a_folder_knows_names_and_content(tmp_path):
    (tmp_path / "a").write_text("1")
    (tmp_path / "b").write_text("2")
    before = files.fingerprint(tmp_path)
    (tmp_path / "b").rename(tmp_path / "c")
    renamed = files.fingerprint(tmp_path)
    (tmp_path / "c").write_text("3")
    assert len({one["sha256"] for one in (before, renamed, files.fingerprint(tmp_path))}) == 3
    assert before["bytes"] == 2

"""Files that are written appear whole or not at all."""

import os

import pytest

from lipspline._infra.files import write_whole


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
    assert written.startswith(str(tmp_path / ".file-"))
    assert renamed == "rename"
    assert folder == str(tmp_path)

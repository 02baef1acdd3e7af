"""npy and npz: nothing is unpickled, nothing is read before its size is known."""

import io
import zipfile

import numpy as np
import pytest

from lipspline.formats import arrays
from lipspline.formats.validation import FileError


def whole(path, name="array"):
    with arrays.opened(path) as container:
        found = container.find_or_only(name)
        assert found is not None
        return found.whole()


@pytest.mark.parametrize("dtype", ["<f4", ">f8", "<i2", "|u1", "bool", "<c8", ">c16", "<f2"])
@pytest.mark.parametrize("ending", ["npy", "npz"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_numbers_of_every_type_and_order_come_back(dtype, ending, order, tmp_path):
    array = np.arange(24).reshape(2, 3, 4).astype(dtype).copy(order)
    path = tmp_path / f"a.{ending}"
    np.save(path, array) if ending == "npy" else np.savez(path, array=array)
    result = whole(path)
    np.testing.assert_array_equal(result.numpy(), array.astype("c8" if array.dtype.kind == "c" else "f4"))


def test_rows_are_read_without_the_rest(tmp_path):
    np.save(tmp_path / "a.npy", np.arange(24.0).reshape(6, 4))
    with arrays.opened(tmp_path / "a.npy") as container:
        found = container.get("array")
        assert found.rows(range(2, 4)).tolist() == [[8, 9, 10, 11], [12, 13, 14, 15]]


def test_pickles_are_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([{"code": 1}], dtype=object), allow_pickle=True)
    np.savez(tmp_path / "a.npz", array=np.array([None], dtype=object))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(FileError, match="not numbers"):
            whole(tmp_path / name)


def header(shape: tuple[int, ...]) -> bytes:
    """The beginning of an npy file of this shape, without values."""
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": "<f8", "fortran_order": False, "shape": shape})
    return stream.getvalue()


def test_a_header_that_claims_terabytes_is_refused_before_anything_is_allocated(tmp_path):
    (tmp_path / "a.npy").write_bytes(header((10**6, 10**6)) + bytes(64))
    with pytest.raises(FileError, match="truncated"):
        whole(tmp_path / "a.npy")
    with zipfile.ZipFile(tmp_path / "a.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("array.npy", header((10**6, 10**6)) + bytes(64))
    with pytest.raises(FileError, match="more than a file of this size can hold"):
        whole(tmp_path / "a.npz")


def test_a_zip_bomb_is_refused(tmp_path):
    """Two gigabytes of zeros in two megabytes: allowed by deflate, but not affordable."""
    path, size = tmp_path / "bomb.npz", 2**31
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive, archive.open("array.npy", "w") as file:
        file.write(header((size // 8,)))
        for _ in range(8):
            file.write(bytes(2**24))
    with path.open("ab") as file:
        file.write(bytes(2 * 10**6))  # so that the size alone does not give it away
    with pytest.raises(FileError, match=r"GB|damaged"):
        whole(path)


def test_a_name_that_is_missing_is_not_found_and_a_single_array_is_found_under_any(tmp_path):
    np.savez(tmp_path / "two.npz", a=np.ones(2), b=np.ones(3))
    with arrays.opened(tmp_path / "two.npz") as container:
        assert container.find("c") is None
        assert container.find_or_only("c") is None
        assert container.find("c", "b") is not None
    np.savez(tmp_path / "one.npz", a=np.ones(2))
    assert whole(tmp_path / "one.npz", "anything").tolist() == [1, 1]


@pytest.mark.parametrize("content", [b"", b"text", b"\x93NUMPY\x09\x00", b"PK\x03\x04broken"])
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_other_content_is_one_sentence(content, ending, tmp_path):
    path = tmp_path / f"a.{ending}"
    path.write_bytes(content)
    with pytest.raises(FileError, match=rf"a\.{ending}"):
        whole(path)


def test_nan_is_refused(tmp_path):
    np.save(tmp_path / "a.npy", np.array([1.0, np.nan]))
    with pytest.raises(FileError, match="NaN or infinite"):
        whole(tmp_path / "a.npy")

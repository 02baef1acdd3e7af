"""What CT scanners measure, from every kind of file."""

import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import sample_files
from lipspline.formats.sinograms import read_angles, read_sinograms
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Stack

DATA = Path(os.environ.get("LIPSPLINE_DATA", "/nonexistent")) / "ct" / "measured"
needs_data = pytest.mark.skipif(not DATA.is_dir(), reason="LIPSPLINE_DATA names no folder with ct/measured")


def values(found):
    """All slices of what was read."""
    return np.stack([found.data[i].numpy() for i in range(len(found.data))])


@pytest.mark.parametrize("name", sample_files.SINOGRAM_FILES)
def test_every_format_of_sinograms_is_read(name, tmp_path):
    path = sample_files.SINOGRAM_FILES[name](tmp_path / name)
    found = read_sinograms(path)
    np.testing.assert_allclose(values(found), sample_files.sinograms())
    np.testing.assert_allclose(values(read_sinograms(path, slice(1, 2))), sample_files.sinograms()[1:2])
    assert (found.angles is not None) == name.endswith("npz")


def test_one_sinogram_is_a_stack_of_one(tmp_path):
    path = sample_files.write_npy(tmp_path / "s.npy", sample_files.sinograms()[0])
    assert read_sinograms(path).data.shape == (1, 12, 23)


def test_degrees_are_refused(tmp_path):
    path = sample_files.write_npy(tmp_path / "a.npy", np.arange(0, 180, 15.0))
    with pytest.raises(FileError, match="reach 165; give them in radians"):
        read_angles(path)


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"other": np.ones((2, 2)), "more": np.ones(2)}, "holds no sinogram"),
        ({"sinogram": np.ones((2, 2), complex), "more": np.ones(2)}, "is complex"),
        ({"sinogram": np.ones(4), "more": np.ones(2)}, r"shape \(4,\)"),
    ],
)
def test_what_is_no_sinogram_is_refused(arrays, message, tmp_path):
    with pytest.raises(FileError, match=message):
        read_sinograms(sample_files.write_npz(tmp_path / "s.npz", **arrays))


def test_images_are_not_taken_for_sinograms(tmp_path):
    with pytest.raises(FileError, match=r"not in a known format of sinograms.*by a simulation"):
        read_sinograms(sample_files.write_nifti(tmp_path / "v.nii"))


# Read piece by piece


def test_a_large_npy_file_is_read_slice_by_slice(tmp_path):
    """A sparse file of 8 GB, of which one slice is read."""
    path = tmp_path / "large.npy"
    large = np.lib.format.open_memmap(path, "w+", np.float32, (16000, 256, 512))
    large[9000] = 3.0
    large.flush()
    found = read_sinograms(path)
    assert found.data.shape == (16000, 256, 512)
    assert float(found.data[9000].min()) == 3
    assert float(found.data[15999].max()) == 0


def test_a_stack_reads_blocks_and_keeps_the_last(tmp_path):
    asked = []

    def load(numbers):
        asked.append(numbers)
        return torch.tensor(list(numbers)).view(-1, 1, 1)

    stack = Stack((10, 1, 1), load, at_once=4)
    assert [int(stack[i]) for i in range(10)] == list(range(10))
    assert asked == [range(4), range(4, 8), range(8, 10)]


# Data Exchange


def exchange(path, **changes):
    """Counts of 6 angles, 3 slices and 5 detectors, with 2 fields of each kind."""
    h5py = pytest.importorskip("h5py")
    data = np.arange(90, dtype=np.uint16).reshape(6, 3, 5) + 100
    arrays = {
        "data": data,
        "data_white": np.full((2, 3, 5), 900, np.uint16) + np.arange(5, dtype=np.uint16),
        "data_dark": np.full((2, 3, 5), 10, np.uint16),
        "theta": np.linspace(0, 150, 6),
        **changes,
    }
    with h5py.File(path, "w") as file:
        for name, array in arrays.items():
            if array is not None:
                file[f"exchange/{name}"] = array
    return path, data


def test_data_exchange_files_are_counts_with_fields_and_degrees(tmp_path):
    path, data = exchange(tmp_path / "scan.h5")
    found = read_sinograms(path)
    np.testing.assert_array_equal(values(found), data.transpose(1, 0, 2))
    assert found.flat is not None and found.dark is not None and found.angles is not None  # noqa: PT018
    assert found.flat[1].tolist() == [900, 901, 902, 903, 904]
    assert found.dark[2].tolist() == [10] * 5
    torch.testing.assert_close(found.angles, torch.linspace(0, 150, 6).double() * math.pi / 180)
    some = read_sinograms(path, slice(1, 3))
    np.testing.assert_array_equal(values(some), data.transpose(1, 0, 2)[1:3])


def test_radians_are_radians_if_the_file_says_so(tmp_path):
    h5py = pytest.importorskip("h5py")
    path, _ = exchange(tmp_path / "scan.h5", theta=np.linspace(0, 3, 6))
    with h5py.File(path, "a") as file:
        file["exchange/theta"].attrs["units"] = "radians"
    angles = read_sinograms(path).angles
    assert angles is not None
    assert float(angles[-1]) == 3


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": None}, "a group 'exchange' without 'data'"),
        ({"data": np.ones((4, 5))}, r"'exchange/data' has shape \(4, 5\); it should be \(angles, slices, detectors\)"),
        ({"data_white": np.ones((2, 3, 4))}, r"'exchange/data_white' has shape \(2, 3, 4\), which does not fit"),
        ({"data_white": None}, "dark fields but no white ones"),
        ({"theta": np.ones(3)}, "'exchange/theta' has 3 angles for 6 projections"),
    ],
)
def test_odd_data_exchange_files_are_refused(changes, message, tmp_path):
    path, _ = exchange(tmp_path / "scan.h5", **changes)
    with pytest.raises(FileError, match=message):
        read_sinograms(path)


# MATLAB


def helsinki(path, **changes):
    io = pytest.importorskip("scipy.io")
    parameters = {
        "distanceSourceOrigin": 410.66,
        "distanceSourceDetector": 553.74,
        "distanceUnit": "mm",
        "pixelSizePost": 0.2,
        "angles": np.arange(4) * 0.5 + 75,
        **changes,
    }
    io.savemat(path, {"CtDataLimited": {"sinogram": np.ones((4, 6)), "parameters": parameters}})
    return path


def test_the_files_of_the_helsinki_challenge_say_their_geometry(tmp_path):
    found = read_sinograms(helsinki(tmp_path / "a.mat"))
    assert (found.source_origin, found.source_detector, found.pixel) == (410.66, 553.74, 0.2)
    assert found.data.shape == (1, 4, 6)
    assert found.angles is not None
    assert float(found.angles[1]) == pytest.approx(math.radians(75.5))


def test_odd_matlab_files_are_refused(tmp_path):
    io = pytest.importorskip("scipy.io")
    with pytest.raises(FileError, match="lengths are in 'inch'; only 'mm' is known"):
        read_sinograms(helsinki(tmp_path / "a.mat", distanceUnit="inch"))
    with pytest.raises(FileError, match=r"distanceSourceDetector = 553.74, but of a fan both must be known"):
        read_sinograms(helsinki(tmp_path / "a.mat", distanceSourceOrigin=600.0))
    alone = {"sinogram": np.ones((4, 6)), "parameters": {"distanceSourceOrigin": 410.66}}
    io.savemat(tmp_path / "a.mat", {"CtDataLimited": alone})
    with pytest.raises(FileError, match=r"distanceSourceDetector = None, but of a fan both must be known"):
        read_sinograms(tmp_path / "a.mat")
    io.savemat(tmp_path / "b.mat", {"other": np.ones(3)})
    with pytest.raises(FileError, match="holds other, but no sinogram"):
        read_sinograms(tmp_path / "b.mat")
    (tmp_path / "c.mat").write_bytes(b"MATLAB 7.3 MAT-file, Platform: GLNXA64" + bytes(200))
    with pytest.raises(FileError, match=r"of MATLAB's version 7.3; save it with the option '-v7'"):
        read_sinograms(tmp_path / "c.mat")
    (tmp_path / "d.mat").write_bytes(b"nonsense" * 40)
    with pytest.raises(FileError, match="is damaged, or not a MATLAB file"):
        read_sinograms(tmp_path / "d.mat")


def test_a_matlab_file_that_crashes_its_library_is_refused(tmp_path):
    """scipy 1.17 reads memory that is not there: a process of its own must not be this one."""
    pytest.importorskip("scipy.io")
    whole = sample_files.write_helsinki(tmp_path / "a.mat").read_bytes()
    (tmp_path / "b.mat").write_bytes(whole[:2717] + 7 * whole[2717:2850] + whole[2717:])
    with pytest.raises(FileError, match=r"b\.mat is damaged, or not a MATLAB file"):
        read_sinograms(tmp_path / "b.mat")


# Many files


def test_a_folder_or_a_pattern_of_sinograms_is_a_stack(tmp_path):
    expected = sample_files.sinograms()
    for i, sinogram in enumerate(expected):
        np.save(tmp_path / f"s{i + 8}.npy", sinogram)  # s10 comes after s9
    for source in (tmp_path, tmp_path / "s*.npy"):
        np.testing.assert_allclose(values(read_sinograms(source)), expected)
        np.testing.assert_allclose(values(read_sinograms(source, slice(1, 2))), expected[1:2])


def test_a_file_whose_name_looks_like_a_pattern_is_itself(tmp_path):
    """Another file, which the pattern names, was read in its place."""
    first, second = sample_files.sinograms()[:2]
    np.save(tmp_path / "s1.npy", first)
    np.save(tmp_path / "s[1].npy", second)
    np.testing.assert_array_equal(values(read_sinograms(tmp_path / "s[1].npy"))[0], second)
    (tmp_path / "old [1]").mkdir()
    np.save(tmp_path / "old [1]" / "s.npy", second)
    np.testing.assert_array_equal(values(read_sinograms(tmp_path / "old [1]" / "s.npy"))[0], second)


def test_imaginary_parts_are_not_dropped(tmp_path):
    io = pytest.importorskip("scipy.io")
    h5py = pytest.importorskip("h5py")
    complex_data, real = np.ones((2, 3, 4)) * (1 + 1j), np.ones((2, 3, 4))
    io.savemat(tmp_path / "a.mat", {"sinogram": complex_data[0]})
    for name, fields in {"a.h5": {"data": complex_data}, "b.h5": {"data": real, "theta": np.array([1, 1j])}}.items():
        with h5py.File(tmp_path / name, "w") as file:
            for field, array in fields.items():
                file[f"exchange/{field}"] = array
    for name in ("sinogram", "angles", "flat", "dark"):
        arrays = {"sinogram": real, "flat": np.ones(4), "dark": np.ones(4), "angles": np.ones(3)}
        np.savez(tmp_path / f"{name}.npz", **{**arrays, name: arrays[name] * (1 + 1j)})
    for path in sorted(tmp_path.iterdir()):
        with pytest.raises(FileError, match="is complex, but real numbers are wanted"):
            values(read_sinograms(path))
    np.save(tmp_path / "angles.npy", np.ones(3) * 1j)
    with pytest.raises(FileError, match="is complex"):
        read_angles(tmp_path / "angles.npy")
    np.save(tmp_path / "sinogram.npy", real)
    with pytest.raises(FileError, match="is complex"):
        read_sinograms(tmp_path / "sinogram.npy", flat=tmp_path / "flat.npz")


def test_a_folder_of_projections_is_turned_into_sinograms(tmp_path):
    tifffile = pytest.importorskip("tifffile")
    expected = sample_files.sinograms().astype(np.float32)
    for a in range(expected.shape[1]):
        tifffile.imwrite(tmp_path / f"p_{a}.tif", expected[:, a])
    np.testing.assert_allclose(values(read_sinograms(tmp_path, files="projections")), expected)
    part = read_sinograms(tmp_path / "p_*.tif", slice(1, 3), files="projections")
    np.testing.assert_allclose(values(part), expected[1:3])


def test_flat_and_dark_fields_come_from_files_of_their_own(tmp_path):
    counts = np.ones((3, 4, 5)) * 50
    np.save(tmp_path / "c.npy", counts)
    np.save(tmp_path / "f.npy", 100 + np.arange(15.0).reshape(3, 5))
    np.save(tmp_path / "d.npy", np.full(5, 2.0))
    found = read_sinograms(tmp_path / "c.npy", slice(1, 3), flat=tmp_path / "f.npy", dark=tmp_path / "d.npy")
    assert found.flat is not None and found.dark is not None  # noqa: PT018
    assert found.flat[0].tolist() == [105, 106, 107, 108, 109]
    assert found.dark[1].tolist() == [2] * 5
    with pytest.raises(ValueError, match=r"Give flat=FILE"):
        read_sinograms(tmp_path / "c.npy", dark=tmp_path / "d.npy")
    np.save(tmp_path / "short.npy", np.ones(4))
    with pytest.raises(FileError, match=r"has shape \(3, 4\), but there are 3 slice\(s\) of 5 detectors"):
        read_sinograms(tmp_path / "c.npy", flat=tmp_path / "short.npy")


def test_odd_folders_are_refused(tmp_path):
    with pytest.raises(FileError, match=r"There is no file ending in .* among"):
        read_sinograms(tmp_path)
    np.save(tmp_path / "a.npy", np.ones((3, 4)))
    np.save(tmp_path / "b.npy", np.ones((3, 5)))
    with pytest.raises(FileError, match=r"b.npy has shape \(3, 5\), but the first of the files \(3, 4\)"):
        values(read_sinograms(tmp_path))
    np.save(tmp_path / "a.npy", np.ones((2, 3, 4)))
    with pytest.raises(FileError, match="a file among many holds one image"):
        read_sinograms(tmp_path)


@needs_data
def test_the_measured_files_are_read():
    tooth = read_sinograms(DATA / "tooth_aps.h5")
    assert tooth.data.shape == (2, 181, 640)
    assert tooth.flat is not None
    assert float(tooth.flat[0].mean()) > 25000
    disc = read_sinograms(DATA / "htc2022_tb_90degrees.mat")
    assert disc.data.shape == (1, 181, 560)
    assert disc.pixel == 0.2

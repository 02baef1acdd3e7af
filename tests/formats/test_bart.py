"""BART's pairs of files."""

from pathlib import Path

import numpy as np
import pytest
import torch

import sample_files
from lipspline.formats import bart, mri
from lipspline.formats.kspace import Kspace
from lipspline.formats.validation import FileError
from lipspline.imaging import ScannerMRI
from lipspline.imaging.inspection import inspect_file
from lipspline.imaging.request import Request


@pytest.mark.parametrize("name", ["k.cfl", "k.hdr"])
def test_either_file_of_a_pair_names_it(name, tmp_path):
    sample_files.write_bart(tmp_path / "k.cfl")
    found = bart.read(tmp_path / name)
    assert np.array_equal(found.data.numpy(), sample_files.multi_coil()[:1] * sample_files.columns_mask())
    assert np.array_equal(found.mask.numpy(), sample_files.columns_mask())


def test_slices_are_dimension_13(tmp_path):
    kspace = sample_files.multi_coil()
    array = kspace.transpose(2, 3, 1, 0)[:, :, None, :, None, None, None, None, None, None, None, None, None, :]
    found = bart.read(sample_files.write_cfl(tmp_path / "k.cfl", array), slice(1, 2))
    assert np.array_equal(found.data.numpy(), kspace[1:2])


def test_partitions_are_transformed(tmp_path):
    kspace = sample_files.multi_coil()
    found = bart.read(sample_files.write_cfl(tmp_path / "k.cfl", kspace.transpose(2, 3, 0, 1)))
    expected = np.fft.fftshift(np.fft.ifft(np.fft.ifftshift(kspace, axes=0), axis=0, norm="ortho"), axes=0)
    np.testing.assert_allclose(found.data.numpy(), expected, atol=1e-6)


def test_maps_are_read_as_ecalib_writes_them(tmp_path):
    maps = sample_files.coil_maps()
    path = sample_files.write_cfl(tmp_path / "maps.cfl", maps.transpose(1, 2, 0)[:, :, None])
    assert np.array_equal(bart.read_maps(path)[0].numpy(), maps)


@pytest.mark.parametrize(
    ("header", "message"),
    [
        ("# Dimensions\n99999 99999 99999\n", "GB"),
        ("# Dimensions\n20 16 1 9\n", "is truncated"),
        ("# Dimensions\n20 sixteen\n", "does not name the dimensions"),
        ("nothing", "does not name the dimensions"),
        ("# Dimensions\n20 16 1 1 2\n", "2 entries along dimension 4"),
        ("# Dimensions\n0 16\n", "empty"),
        ("#" * 10**5, "too long"),
    ],
)
def test_a_wrong_header_is_one_sentence(header, message, tmp_path):
    path = sample_files.write_bart(tmp_path / "k.cfl")
    path.with_suffix(".hdr").write_text(header)
    with pytest.raises(FileError, match=message):
        bart.read(path)


def test_a_lonely_file_is_missed(tmp_path):
    path = sample_files.write_bart(tmp_path / "k.cfl")
    path.with_suffix(".hdr").unlink()
    with pytest.raises(FileNotFoundError, match=r"no BART header file .*k\.hdr"):
        bart.read(path)


def low_pass(shape: tuple[int, ...], seed: int = 0) -> np.ndarray:
    """Complex numbers that are largest in the middle of the two last dimensions, as k-space is."""
    stream = np.random.default_rng(seed)
    rows, columns = (np.arange(n) - n // 2 for n in shape[-2:])
    noise = stream.standard_normal(shape) + 1j * stream.standard_normal(shape)
    return (noise / (1 + rows[:, None] ** 2 + columns**2)).astype(np.complex64)


def test_a_readout_of_size_1_was_transformed_already_and_rows_and_columns_follow(tmp_path):
    """The layout `1 230 180 8`, with a mask in two dimensions."""
    kspace = low_pass((3, 23, 18))
    points = np.random.default_rng(1).random((23, 18)) < 0.5
    path = sample_files.write_cfl(tmp_path / "k.cfl", (kspace * points).transpose(1, 2, 0)[None])
    found = bart.read(path)
    assert np.array_equal(found.data.numpy(), (kspace * points)[None])
    assert np.array_equal(found.mask.numpy(), points)
    maps = sample_files.write_cfl(tmp_path / "maps.cfl", kspace.transpose(1, 2, 0)[None])
    assert np.array_equal(bart.read_maps(maps).numpy(), kspace[None])
    mask = sample_files.write_cfl(tmp_path / "mask.cfl", points.astype(np.complex64)[None])
    assert np.array_equal(mri.read_mask(mask).numpy(), points)
    columns = sample_files.write_cfl(tmp_path / "columns.cfl", points[:1].astype(np.complex64))
    assert np.array_equal(mri.read_mask(columns).numpy(), points[0])


def test_an_image_is_not_taken_for_kspace(tmp_path):
    image = np.random.default_rng(0).random((1, 64, 48)).astype(np.complex64)
    with pytest.raises(FileError, match=r"does not look like k-space: .* It may be an image"):
        bart.read(sample_files.write_cfl(tmp_path / "image.cfl", image))
    spectrum = np.fft.fft2(image[0])
    with pytest.raises(FileError, match="frequency zero first"):
        bart.read(sample_files.write_cfl(tmp_path / "uncentred.cfl", spectrum))
    bart.read(sample_files.write_cfl(tmp_path / "k.cfl", np.fft.fftshift(spectrum)))


def test_two_directions_of_phase_encoding_are_slices_along_the_readout(tmp_path):
    kspace = low_pass((2, 6, 10, 9))  # coils, readout, phase, partition
    points = np.random.default_rng(1).random((10, 9)) < 0.6
    path = sample_files.write_cfl(tmp_path / "k.cfl", (kspace * points).transpose(1, 2, 3, 0))
    shifted = np.fft.ifftshift(kspace * points, axes=1)
    expected = np.fft.fftshift(np.fft.ifft(shifted, axis=1, norm="ortho"), axes=1).transpose(1, 0, 2, 3)
    found = bart.read(path, slice(2, 5))
    np.testing.assert_allclose(found.data.numpy(), expected[2:5], atol=1e-6)
    assert np.array_equal(found.mask.numpy(), points)
    assert "two directions of phase encoding" in found.notes[0]


def test_three_dimensions_that_are_all_measured_in_part_are_refused(tmp_path):
    kspace = low_pass((2, 6, 10, 9)) * (np.random.default_rng(1).random((6, 10, 9)) < 0.6)
    path = sample_files.write_cfl(tmp_path / "k.cfl", kspace.transpose(1, 2, 3, 0))
    with pytest.raises(FileError, match="one of the two must be complete"):
        bart.read(path)


@pytest.mark.parametrize("name", ["kspace", "kspace.cfl", "kspace.hdr", "scan.v2"])
def test_every_name_that_bart_takes_is_understood(name, tmp_path):
    """Also one with a dot in it, and for masks, maps, trajectories and samples."""
    base = tmp_path / (name if name == "scan.v2" else "kspace")
    kspace = sample_files.write_bart(tmp_path / "written.cfl")
    for ending in (".hdr", ".cfl"):
        kspace.with_suffix(ending).rename(f"{base}{ending}")
    found = mri.read_scan(tmp_path / name)
    assert isinstance(found, Kspace)
    assert mri.read_mask(tmp_path / name).shape == found.mask.shape or found.mask.ndim == 1
    assert mri.read_maps(tmp_path / name).shape == found.data.shape
    assert Request(data=tmp_path / name, acquisition=ScannerMRI()).files() == [
        Path(f"{base}.hdr"),
        Path(f"{base}.cfl"),
    ]
    assert inspect_file(tmp_path / name).size == sum(Path(f"{base}{e}").stat().st_size for e in (".hdr", ".cfl"))


def test_a_trajectory_and_its_samples_have_base_names_too(tmp_path):
    points = np.zeros((3, 32, 4), np.complex64)
    points[0] = np.linspace(-16, 15, 32)[:, None]
    points[1] = np.arange(4)
    sample_files.write_cfl(tmp_path / "traj.cfl", points)
    sample_files.write_cfl(tmp_path / "samples.cfl", np.ones((1, 32, 4), np.complex64))
    trajectory = mri.read_trajectory(tmp_path / "traj")
    assert torch.equal(trajectory, mri.read_trajectory(tmp_path / "traj.cfl"))
    found = mri.read_scan(tmp_path / "samples", trajectory=trajectory[..., :2], size=32)
    assert found.data.shape == (1, 1, 4, 32)


def test_a_folder_or_a_missing_file_is_no_pair(tmp_path):
    (tmp_path / "scan").mkdir()
    sample_files.write_bart(tmp_path / "scan.cfl")
    assert bart.pair(tmp_path / "scan") is None
    with pytest.raises(FileNotFoundError, match="There is no file"):
        mri.read_scan(tmp_path / "nothing")

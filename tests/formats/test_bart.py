"""BART's pairs of files."""

import numpy as np
import pytest

import sample_files
from lipspline.formats import bart
from lipspline.formats.validation import FileError


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

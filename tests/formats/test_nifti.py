"""NIfTI, written and read by nibabel."""

import gzip
import struct

import nibabel
import numpy as np
import pytest
import torch

import sample_files
from lipspline.formats import nifti
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_slices_are_those_of_nibabel_with_rows_along_the_second_axis(name, tmp_path):
    path = sample_files.write_nifti(tmp_path / name)
    volume = nifti.read(path)
    image = nibabel.load(path)
    assert np.array_equal(volume.slices.numpy(), image.get_fdata().transpose(2, 1, 0).astype(np.float32))
    assert volume.affine is not None
    assert np.array_equal(volume.affine.numpy(), image.affine)


@pytest.mark.parametrize("dtype", [np.uint8, np.int16, np.uint16, np.int32, np.float32, np.float64])
@pytest.mark.parametrize("kind", [nibabel.Nifti1Image, nibabel.Nifti2Image])
def test_every_type_is_read_as_nibabel_reads_it(dtype, kind, tmp_path):
    values = np.random.default_rng(0).integers(0, 100, (4, 5, 3)).astype(dtype)
    image = kind(values, np.diag([1, 2, 3, 1]))
    image.header.set_slope_inter(2.0, -5.0)
    nibabel.save(image, tmp_path / "v.nii")
    expected = nibabel.load(tmp_path / "v.nii").get_fdata()
    assert np.array_equal(nifti.read(tmp_path / "v.nii").slices.numpy(), expected.transpose(2, 1, 0).astype(np.float32))


def test_big_end_first_is_read_too(tmp_path):
    values = np.arange(24, dtype=np.int16).reshape(2, 3, 4)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4)), tmp_path / "little.nii")
    header = nibabel.Nifti1Header(endianness=">")
    header.set_data_shape(values.shape)
    header.set_data_dtype(np.int16)
    nibabel.save(nibabel.Nifti1Image(values, np.eye(4), header), tmp_path / "big.nii")
    assert torch.equal(nifti.read(tmp_path / "big.nii").slices, nifti.read(tmp_path / "little.nii").slices)


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_some_slices_lie_where_they_lay_in_the_whole(name, tmp_path):
    path = sample_files.write_nifti(tmp_path / name)
    whole, part = nifti.read(path), nifti.read(path, slice(1, 3))
    assert torch.equal(part.slices, whole.slices[1:3])
    assert part.affine is not None
    assert whole.affine is not None
    second = torch.tensor([0.0, 0, 1, 1], dtype=torch.float64)
    assert torch.equal(part.affine[:, 3], whole.affine @ second)


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
def test_what_is_written_nibabel_reads_with_the_same_affine(name, tmp_path):
    affine = torch.from_numpy(np.array([[0, -0.8, 0, 10], [0.7, 0, 0, 20], [0, 0, 3.0, 30], [0, 0, 0, 1]]))
    volume = Volume(torch.rand(3, 4, 5), affine)
    nifti.write(tmp_path / name, volume)
    image = nibabel.load(tmp_path / name)
    assert np.array_equal(image.get_fdata().astype(np.float32), volume.slices.permute(2, 1, 0).numpy())
    np.testing.assert_allclose(image.affine, affine.numpy(), atol=1e-6)
    assert image.header.get_xyzt_units()[0] == "mm"
    assert torch.equal(nifti.read(tmp_path / name).slices, volume.slices)


def turned(x, y, z):
    """A rotation by these angles around the axes, in radians."""
    return nibabel.eulerangles.euler2mat(z, y, x)


PLANES = {
    "axial": np.diag([-1.0, -1.0, 1.0]),
    "sagittal": np.array([[0.0, 0, -1], [-1, 0, 0], [0, -1, 0]]),
    "coronal": np.array([[-1.0, 0, 0], [0, 0, 1], [0, -1, 0]]),
    "mirrored": np.diag([1.0, -1.0, 1.0]),
    "oblique": turned(0.3, -0.7, 2.1),
}


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
@pytest.mark.parametrize("plane", PLANES)
def test_sizes_and_both_affine_maps_are_those_that_nibabel_writes(plane, name, tmp_path):
    affine = np.eye(4)
    affine[:3, :3], affine[:3, 3] = PLANES[plane] * [0.8, 0.75, 3.5], (10.0, -20.0, 30.0)
    nifti.write(tmp_path / name, Volume(torch.rand(3, 4, 5), torch.from_numpy(affine)))
    ours = nibabel.load(tmp_path / name)
    theirs = nibabel.Nifti1Image(np.zeros((5, 4, 3), np.float32), affine)
    theirs.set_qform(affine, code="aligned")
    np.testing.assert_allclose(ours.header.get_zooms(), (0.8, 0.75, 3.5), rtol=1e-6)
    for field in ("pixdim", "quatern_b", "quatern_c", "quatern_d", "qoffset_x", "qform_code", "sform_code", "srow_x"):
        np.testing.assert_allclose(ours.header[field], theirs.header[field], atol=1e-6, err_msg=field)
    np.testing.assert_allclose(ours.get_qform(), affine, atol=1e-5)
    assert ours.header.get_xyzt_units()[0] == "mm"


def test_a_sheared_map_has_no_quaternion_but_still_its_sizes(tmp_path):
    affine = torch.diag(torch.tensor([2.0, 2.0, 4.0, 1.0], dtype=torch.float64))
    affine[0, 2] = 3.0  # a gantry that is tilted
    nifti.write(tmp_path / "v.nii", Volume(torch.rand(3, 4, 5), affine))
    image = nibabel.load(tmp_path / "v.nii")
    np.testing.assert_allclose(image.header.get_zooms(), (2, 2, 5))
    assert int(image.header["qform_code"]) == 0
    np.testing.assert_allclose(image.affine, affine.numpy())


def test_voxels_of_unknown_size_are_cubes_of_one_millimetre_in_both_maps(tmp_path):
    nifti.write(tmp_path / "v.nii", Volume(torch.rand(3, 4, 5)))
    image = nibabel.load(tmp_path / "v.nii")
    assert image.header.get_zooms() == (1, 1, 1)
    np.testing.assert_allclose(image.get_qform(), image.get_sform())


def absurd(path, **fields):
    """A NIfTI file whose header says something else than is true."""
    header = nibabel.Nifti1Header()
    header.set_data_shape((4, 4, 4))
    header.set_data_dtype(np.float32)
    header["vox_offset"], header["magic"] = 352, b"n+1"
    for name, value in fields.items():
        header[name] = value
    content = header.binaryblock + bytes(4 + 256)
    path.write_bytes(gzip.compress(content) if path.suffix == ".gz" else content)
    return path


@pytest.mark.parametrize("name", ["v.nii", "v.nii.gz"])
@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dim": [3, 32767, 32767, 32767, 1, 1, 1, 1]}, "GB"),
        ({"dim": [3, 8, 8, 8, 1, 1, 1, 1]}, "truncated"),
        ({"dim": [4, 4, 4, 2, 2, 1, 1, 1]}, "Take one volume of a series"),
        ({"dim": [3, 0, 4, 4, 1, 1, 1, 1]}, "damaged|empty"),
        ({"dim": [3, -4, 4, 4, 1, 1, 1, 1]}, "damaged|empty"),
        ({"datatype": 32, "bitpix": 64}, "only real images"),
        ({"datatype": 128, "bitpix": 24}, "only real images"),
        ({"datatype": 999}, "damaged"),
        ({"vox_offset": 1e15}, "truncated"),
        ({"vox_offset": np.nan}, "damaged|truncated"),
        ({"scl_slope": 1.0, "scl_inter": np.inf}, "damaged|NaN"),
        ({"srow_x": [np.nan] * 4, "sform_code": 1}, "NaN"),
    ],
)
def test_absurd_headers_are_refused_in_one_sentence(name, fields, message, tmp_path):
    with pytest.raises(FileError, match=message) as caught:
        nifti.read(absurd(tmp_path / name, **fields))
    assert name in str(caught.value)


def test_a_file_that_is_no_nifti_is_refused(tmp_path):
    (tmp_path / "v.nii").write_bytes(struct.pack("<i", 348) + bytes(400))
    (tmp_path / "text.nii.gz").write_bytes(b"text")
    for name, message in (("v.nii", "does not begin like a NIfTI"), ("text.nii.gz", "damaged, or not a NIfTI")):
        with pytest.raises(FileError, match=message):
            nifti.read(tmp_path / name)


def test_nan_is_refused(tmp_path):
    nibabel.save(nibabel.Nifti1Image(np.full((2, 2, 2), np.nan, np.float32), np.eye(4)), tmp_path / "v.nii")
    with pytest.raises(FileError, match="NaN or infinite"):
        nifti.read(tmp_path / "v.nii")


def test_a_volume_without_a_place_is_axial_and_upright_in_viewers(tmp_path):
    """Its rows run from the front to the back, its columns from the patient's right to the left; 0 is in the middle."""
    nifti.write(tmp_path / "o.nii", Volume(torch.rand(3, 5, 7)))
    image = nibabel.load(tmp_path / "o.nii")
    assert nibabel.aff2axcodes(image.affine) == ("L", "P", "S")
    assert np.allclose(image.affine @ [3, 2, 1, 1], [0, 0, 0, 1])

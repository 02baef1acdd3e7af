"""From ISMRMRD files to images: whatever was measured how, the same image, and in the right place of the patient."""

import json
import shutil
import subprocess

import numpy as np
import pytest
import torch

import lipspline as ls
from lipspline.formats import mri
from lipspline.formats.kspace import Kspace
from lipspline.operators.mri import centred_ifft
from sample_files import VOXEL
from sample_files import write_raw as write

ROWS, COLUMNS, SLICES = 24, 20, 3
MARKERS = ((5, 14), (17, 3), (9, 8))
"""Row and column of the one bright pixel of each slice."""


def phantom() -> np.ndarray:
    """(S, rows, columns), dark but for one pixel in each slice; its k-space is nowhere exactly zero."""
    images = np.random.default_rng(0).uniform(0.04, 0.06, (SLICES, ROWS, COLUMNS)).astype(np.float32)
    images[:, 4:20, 3:16] = 0.2
    for s, (row, column) in enumerate(MARKERS):
        images[s, row, column] = 1
    return images


def images_of(path) -> torch.Tensor:
    """Moduli `(S, h, w)` of what the transform gives, cropped."""
    found = mri.read(path)
    assert isinstance(found, Kspace)
    images = centred_ifft(found.data)[:, 0].abs()
    assert found.crop is not None
    (h, w), (rows, columns) = images.shape[1:], found.crop
    return images[:, h // 2 - rows // 2 :, w // 2 - columns // 2 :][:, :rows, :columns]


def test_oversampled_readouts_give_the_image_of_the_field_of_view(tmp_path):
    plain = images_of(write(tmp_path / "plain.h5", phantom(), oversampling=1))
    torch.testing.assert_close(plain, torch.from_numpy(phantom()), atol=1e-5, rtol=0)
    twice = images_of(write(tmp_path / "twice.h5", phantom()))
    torch.testing.assert_close(twice, plain, atol=1e-5, rtol=0)


def test_asymmetric_echoes_and_partial_fourier_lie_where_they_were_measured(tmp_path):
    """What was measured is that of the whole file at its place, and nothing else is taken for measured."""
    whole = mri.read(write(tmp_path / "whole.h5", phantom()))
    part = mri.read(write(tmp_path / "part.h5", phantom(), first=13, columns=slice(6, None)))
    assert isinstance(whole, Kspace)
    assert isinstance(part, Kspace)
    expected = torch.zeros(2 * ROWS, COLUMNS, dtype=torch.bool)
    expected[13:, 6:] = True
    assert torch.equal(part.mask.expand(2 * ROWS, COLUMNS), expected)
    torch.testing.assert_close(part.data, whole.data * expected, atol=1e-6, rtol=0)


def test_real_images_come_back_from_an_asymmetric_echo(tmp_path):
    """Partial Fourier: with the phase folded and a real unknown, what is missing follows from symmetry."""
    path = write(tmp_path / "part.h5", phantom()[:1], first=18)
    errors = {}
    for unknown in ("real", "complex"):
        acquisition = ls.ScannerMRI(unknown=unknown)
        image = ls.reconstruct(path, acquisition=acquisition, strength=0.01, max_steps=300, tol=1e-6).images[0]
        errors[unknown] = float((image.abs() - torch.from_numpy(phantom()[0])).norm() / np.linalg.norm(phantom()[0]))
    assert errors["real"] < 0.1
    assert errors["real"] < 0.5 * errors["complex"]


ROTATION = np.linalg.qr(np.array([[0.8, -0.3, 0.2], [0.4, 0.9, -0.1], [-0.1, 0.3, 0.95]]))[0]
DIRECTIONS = {
    "axial": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "axial, swapped": ((0, 1, 0), (1, 0, 0), (0, 0, 1)),
    "sagittal": ((0, 0, -1), (0, 1, 0), (1, 0, 0)),
    "coronal": ((0, 0, 1), (1, 0, 0), (0, -1, 0)),
    "oblique": tuple(map(tuple, ROTATION.T.tolist())),
}


def expected_places(directions, position=(10, -20, 30)) -> np.ndarray:
    """Where the markers are, (S, 3) in mm in DICOM's coordinates: from the middle of each slice in steps of voxels."""
    read, phase, normal = map(np.array, directions)
    return np.array(
        [
            np.array(position)
            + s * VOXEL[2] * normal
            + (row - ROWS // 2) * VOXEL[0] * read
            + (column - COLUMNS // 2) * VOXEL[1] * phase
            for s, (row, column) in enumerate(MARKERS)
        ]
    )


@pytest.mark.parametrize("name", DIRECTIONS)
def test_points_of_an_asymmetric_phantom_lie_where_they_were(name, tmp_path):
    nibabel, pydicom = pytest.importorskip("nibabel"), pytest.importorskip("pydicom")
    path = write(tmp_path / "raw.h5", phantom(), DIRECTIONS[name])
    result = ls.reconstruct(path, strength=0.01, max_steps=20)
    result.save(tmp_path / "out.nii.gz")
    result.save(tmp_path / "series")
    wanted = expected_places(DIRECTIONS[name])
    volume = nibabel.load(tmp_path / "out.nii.gz")
    values = np.asarray(volume.dataobj)
    for s in range(SLICES):
        i, j = np.unravel_index(values[:, :, s].argmax(), values.shape[:2])
        place = volume.affine @ [i, j, s, 1]
        np.testing.assert_allclose(place[:3] * [-1, -1, 1], wanted[s], atol=1e-3)
    found = {}
    for file in sorted((tmp_path / "series").glob("*.dcm")):
        data = pydicom.dcmread(file)
        row, column = np.unravel_index(data.pixel_array.argmax(), data.pixel_array.shape)
        found[int(data.InstanceNumber)] = place_in_dicom(
            data.ImagePositionPatient, data.ImageOrientationPatient, data.PixelSpacing, row, column
        )
    np.testing.assert_allclose([found[key] for key in sorted(found)], wanted, atol=1e-3)


def place_in_dicom(position, orientation, spacing, row: int, column: int) -> np.ndarray:
    """The standard's equation: columns run along the first three numbers of the orientation, rows along the others."""
    position, orientation = (np.array([float(value) for value in some]) for some in (position, orientation))
    return position + column * float(spacing[1]) * orientation[:3] + row * float(spacing[0]) * orientation[3:]


@pytest.mark.skipif(shutil.which("dcm2json") is None, reason="dcmtk is not installed")
@pytest.mark.parametrize("name", DIRECTIONS)
def test_dcmtk_reads_the_same_place(name, tmp_path):
    path = write(tmp_path / "raw.h5", phantom(), DIRECTIONS[name])
    ls.reconstruct(path, strength=0.01, max_steps=5, slices=slice(1, 2)).save(tmp_path / "one.dcm")
    done = subprocess.run(["dcm2json", tmp_path / "one.dcm"], capture_output=True, text=True, check=True)
    tags = {key: value.get("Value") for key, value in json.loads(done.stdout).items()}
    place = place_in_dicom(tags["00200032"], tags["00200037"], tags["00280030"], *MARKERS[1])
    np.testing.assert_allclose(place, expected_places(DIRECTIONS[name])[1], atol=1e-3)


@pytest.mark.parametrize("name", ["axial", "oblique"])
def test_two_directions_of_phase_encoding_give_slices_across_the_readout_in_their_place(name, tmp_path):
    """Positions along the readout are slices then, columns are partitions, and rows phase encodings."""
    mask = np.ones((COLUMNS, SLICES), bool)
    mask[1::7, 0] = False
    path = write(tmp_path / "raw.h5", phantom(), DIRECTIONS[name], depth=True, mask=mask)
    found = mri.read(path)
    assert isinstance(found, Kspace)
    assert np.array_equal(found.mask.numpy(), mask)
    assert found.data.shape == (ROWS, 1, COLUMNS, SLICES)
    plain = mri.read(write(tmp_path / "plain.h5", phantom(), DIRECTIONS[name], depth=True))
    assert isinstance(plain, Kspace)
    # the same k-space, transformed along the readout here and along the partitions there
    both = torch.fft.fftshift(torch.fft.fft(torch.fft.ifftshift(plain.data, 0), dim=0, norm="ortho"), 0)
    lines = torch.fft.ifft(torch.fft.ifftshift(both, 2), dim=2, norm="ortho")
    across = torch.fft.fftshift(lines, 2)[:, :, ROWS // 2 : ROWS // 2 + ROWS].permute(2, 1, 3, 0)
    torch.testing.assert_close(found.data, across * torch.from_numpy(mask), atol=1e-5, rtol=0)
    assert found.affine is not None
    places = []
    for s, (row, column) in enumerate(MARKERS):  # partitions are columns now, phase encodings rows, the readout slices
        place = found.affine @ torch.tensor([s, column, row, 1], dtype=torch.float64)
        places.append((place[:3] * torch.tensor([-1, -1, 1])).tolist())
    shift = np.array(DIRECTIONS[name][2]) * VOXEL[2] * (SLICES // 2)
    np.testing.assert_allclose(places, expected_places(DIRECTIONS[name]) - shift, atol=1e-3)
    some = mri.read(path, slice(4, 6))
    assert isinstance(some, Kspace)
    assert torch.equal(some.data, found.data[4:6])
    assert some.affine is not None
    torch.testing.assert_close(some.affine[:, 3], found.affine @ torch.tensor([0.0, 0, 4, 1], dtype=torch.float64))


def test_conjugated_data_are_turned_on_request(tmp_path):
    """Nothing in a file tells the sign of its transform: the image of conjugated data is turned by half a turn."""
    path = write(tmp_path / "raw.h5", phantom()[:1])
    options = {"strength": 0.01, "max_steps": 20}
    plain = ls.reconstruct(path, **options).images[0].abs()
    found = mri.read(path)
    assert isinstance(found, Kspace)
    crop = plain.shape[0]
    turned = ls.reconstruct(found.data.conj().resolve_conj(), acquisition=ls.ScannerMRI(conjugate=True), **options)
    top = found.data.shape[2] // 2 - crop // 2
    image = turned.images[0].abs()[top : top + crop]
    torch.testing.assert_close(image, plain, atol=1e-3, rtol=1e-3)

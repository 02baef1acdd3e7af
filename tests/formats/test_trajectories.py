"""k-space on trajectories: BART, ISMRMRD and numpy files give the same samples at the same frequencies."""

import shutil
import subprocess

import numpy as np
import pytest
import torch

import sample_files
from lipspline.formats import mri
from lipspline.formats.trajectories import NonCartesianKspace, on_trajectory
from lipspline.formats.validation import FileError

DATA, POINTS = torch.from_numpy(sample_files.on_spirals()), torch.from_numpy(sample_files.spiral())
SHAPE = (sample_files.HEIGHT, sample_files.WIDTH)


def read(path, slices=slice(None), **options) -> NonCartesianKspace:
    found = mri.read_scan(path, slices, **options)
    assert isinstance(found, NonCartesianKspace)
    return found


def write_bart_trajectory(path):
    points = np.concatenate([sample_files.spiral(), np.zeros((16, 40, 1))], axis=-1)
    return sample_files.write_cfl(path, points.transpose(2, 1, 0))


def write_bart_samples(path):
    stored = sample_files.on_spirals().transpose(3, 2, 1, 0)  # samples, readouts, coils, slices
    return sample_files.write_cfl(path, stored.reshape(1, *stored.shape[:3], *(1,) * 9, stored.shape[3]))


def test_bart_files(tmp_path):
    points = mri.read_trajectory(write_bart_trajectory(tmp_path / "t.cfl"))
    found = read(write_bart_samples(tmp_path / "k.cfl"), slice(1, 3), trajectory=points)
    assert torch.equal(found.data, DATA[1:3])
    torch.testing.assert_close(found.trajectory, POINTS, atol=1e-5, rtol=0)
    assert found.shape == (20, 20)  # nothing in the file says more than how far the trajectory reaches


@pytest.mark.parametrize("own", [False, True])
def test_numpy_files(own, tmp_path):
    points = np.stack([sample_files.spiral()] * 3) if own else sample_files.spiral()
    size = np.array(SHAPE)
    arrays = {"kspace": sample_files.on_spirals(), "trajectory": points, "size": size, "maps": sample_files.coil_maps()}
    found = read(sample_files.write_npz(tmp_path / "k.npz", **arrays), slice(0, 2))
    assert torch.equal(found.data, DATA[:2])
    torch.testing.assert_close(found.trajectory, POINTS, atol=1e-5, rtol=0)
    assert found.shape == SHAPE
    assert found.maps is not None
    assert found.maps.shape == (2, 2, *SHAPE)


@pytest.mark.parametrize("per_pixel", [False, True])
@pytest.mark.parametrize("third", [None, 0.0, 0.3])
def test_ismrmrd_files(per_pixel, third, tmp_path):
    """A third column, a weight or zero, is no part of a trajectory in a plane."""
    found = read(sample_files.write_spirals(tmp_path / "k.h5", per_pixel=per_pixel, third=third), slice(1, 3))
    assert torch.equal(found.data, DATA[1:3])
    torch.testing.assert_close(found.trajectory, POINTS, atol=1e-5, rtol=0)
    assert found.shape == SHAPE
    assert found.crop == (sample_files.HEIGHT // 2, sample_files.WIDTH)
    assert found.affine is not None
    assert found.affine[2, 3] == 11
    assert found.notes[:2] == ("1 noise measurements left out: too few", "spiral trajectory, 16 readouts")


def test_a_stack_of_spirals_is_transformed_along_the_partitions(tmp_path):
    found = read(sample_files.write_spirals(tmp_path / "k.h5", depth=True), slice(1, 2))
    depth = sample_files.on_spirals()
    expected = np.fft.fftshift(np.fft.ifft(np.fft.ifftshift(depth, axes=0), axis=0, norm="ortho"), axes=0)
    np.testing.assert_allclose(found.data.numpy(), expected[1:2], atol=1e-5)


@pytest.mark.skipif(shutil.which("bart") is None, reason="bart is not installed")
def test_what_bart_measures_is_what_the_operator_predicts(tmp_path):
    from lipspline.operators import NonCartesianMRI

    image = sample_files.images()[0] * sample_files.coil_maps()[0]
    sample_files.write_cfl(tmp_path / "x.cfl", image)
    write_bart_trajectory(tmp_path / "t.cfl")
    subprocess.run(["bart", "nufft", tmp_path / "t", tmp_path / "x", tmp_path / "y"], check=True, capture_output=True)
    found = read(tmp_path / "y.cfl", trajectory=mri.read_trajectory(tmp_path / "t.cfl"))
    predicted = NonCartesianMRI(found.trajectory, SHAPE).forward(torch.from_numpy(image)[None, None])
    assert float((found.data.flatten() - predicted.flatten()).norm() / predicted.norm()) < 5e-3


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"trajectory": POINTS[:, :7]}, "16 x 7 points, but k-space has 16 x 40"),
        ({"trajectory": POINTS[..., 0]}, r"should be \(readouts, samples, 2\)"),
        ({"trajectory": POINTS / 40}, "in cycles per pixel; give the size"),
        ({"trajectory": POINTS / 10 * 3.14}, "should be in cycles per field of view"),
        ({"trajectory": POINTS * 1e5}, "at most 4096"),
        ({"trajectory": POINTS * float("nan")}, "NaN"),
        ({"trajectory": torch.cat([POINTS, POINTS[..., :1]], dim=-1)}, "three-dimensional"),
        ({"trajectory": POINTS * (1 + 1j)}, "is complex; give its two directions as two columns"),
        ({"size": 12}, "beyond half of 12 x 12 pixels"),
        ({"data": 0 * DATA}, "zero everywhere"),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    with pytest.raises(FileError, match=message):
        on_trajectory(**{"data": DATA, "trajectory": POINTS, "source": "k.npz", **change})


def test_files_that_lack_something_are_refused(tmp_path):
    k = sample_files.write_npy(tmp_path / "k.npy", sample_files.on_spirals())
    with pytest.raises(FileError, match="first dimension is 20, not 3"):
        mri.read_trajectory(sample_files.write_bart(tmp_path / "c.cfl"))
    with pytest.raises(FileError, match="first dimension is 20, not 1"):
        mri.read_scan(tmp_path / "c.cfl", trajectory=POINTS)
    with pytest.raises(FileError, match="trajectory from elsewhere"):
        mri.read_scan(sample_files.write_fastmri(tmp_path / "k.h5"), trajectory=POINTS)
    with pytest.raises(FileError, match="measured on a trajectory; only Cartesian"):
        mri.read(sample_files.write_spirals(tmp_path / "s.h5"))
    assert torch.equal(read(k, trajectory=POINTS).data, DATA)


def test_a_single_point_far_outside_does_not_make_the_image_large():
    """One damaged number would give 1568 x 1568 pixels from 640 samples."""
    points = POINTS.clone()
    points[3, 5, 0] = 783.5
    with pytest.raises(FileError, match=r"reaches 783\.5 .* but 99 % of its points lie within .* give the size"):
        on_trajectory(DATA, points, "the array")

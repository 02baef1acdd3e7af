"""fastMRI's layout: k-space and images as h5py and numpy wrote them, and what is wrong in words."""

import h5py
import numpy as np
import pytest
import torch

import sample_files
from lipspline.formats import fastmri, mri
from lipspline.formats.kspace import Kspace
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume

HEADER = """<ismrmrdHeader><encoding><encodedSpace/><reconSpace>
<matrixSize><x>10</x><y>12</y><z>1</z></matrixSize><fieldOfView_mm><x>20</x><y>36</y><z>4</z></fieldOfView_mm>
</reconSpace></encoding></ismrmrdHeader>"""


def test_multi_coil_kspace_comes_back_with_maps_and_reference(tmp_path):
    found = fastmri.read_hdf5(sample_files.write_fastmri(tmp_path / "k.h5", maps=True))
    assert isinstance(found, Kspace)
    assert np.array_equal(found.data.numpy(), sample_files.multi_coil())
    assert found.maps is not None
    assert np.array_equal(found.maps[1].numpy(), sample_files.coil_maps())
    assert found.reference is not None
    assert np.array_equal(found.reference.numpy(), sample_files.images()[:, 2:18])
    assert found.crop == (16, 16)
    assert found.mask.all()


def test_single_coil_kspace_gets_a_coil_dimension(tmp_path):
    found = fastmri.read_hdf5(sample_files.write_fastmri(tmp_path / "k.h5", coils=False))
    assert isinstance(found, Kspace)
    assert np.array_equal(found.data.squeeze(1).numpy(), sample_files.single_coil())


def test_the_mask_of_an_undersampled_file_is_used(tmp_path):
    found = fastmri.read_hdf5(sample_files.write_fastmri(tmp_path / "k.h5", mask=True))
    assert isinstance(found, Kspace)
    assert np.array_equal(found.mask.numpy(), sample_files.columns_mask())


def test_without_a_mask_zero_columns_are_taken_as_not_measured(tmp_path):
    kspace = sample_files.multi_coil() * sample_files.columns_mask()
    found = fastmri.read_hdf5(sample_files.write_hdf5(tmp_path / "k.h5", kspace=kspace))
    assert isinstance(found, Kspace)
    assert np.array_equal(found.mask.numpy(), sample_files.columns_mask())


def test_only_the_slices_asked_for_are_read(tmp_path):
    found = fastmri.read_hdf5(sample_files.write_fastmri(tmp_path / "k.h5"), slice(1, 3))
    assert isinstance(found, Kspace)
    assert np.array_equal(found.data.numpy(), sample_files.multi_coil()[1:3])
    assert found.reference is not None
    assert np.array_equal(found.reference.numpy(), sample_files.images()[1:3, 2:18])


def test_the_header_gives_voxels_and_the_size_of_the_images(tmp_path):
    with h5py.File(tmp_path / "k.h5", "w") as file:
        file["kspace"], file["ismrmrd_header"] = sample_files.single_coil(), HEADER
    found = fastmri.read_hdf5(tmp_path / "k.h5", slice(1, 2))
    assert isinstance(found, Kspace)
    assert found.crop == (10, 12)
    assert found.affine is not None
    expected = torch.tensor([[-3.0, 0, 0, 0], [0, -2, 0, 0], [0, 0, 4, 4], [0, 0, 0, 1]], dtype=torch.float64)
    assert torch.equal(found.affine, expected)


@pytest.mark.parametrize("name", ["images.h5", "images.npy"])
def test_a_file_without_kspace_gives_images(name, tmp_path):
    path = sample_files.IMAGE_FILES[name](tmp_path / name)
    found = (fastmri.read_hdf5 if name.endswith("h5") else fastmri.read_numpy)(path)
    assert isinstance(found, Volume)
    assert np.array_equal(found.slices.numpy(), sample_files.images())


def test_complex_numpy_arrays_are_kspace_under_the_same_names(tmp_path):
    found = fastmri.read_numpy(sample_files.MRI_FILES["kspace.npz"](tmp_path / "k.npz"))
    assert isinstance(found, Kspace)
    assert np.array_equal(found.data.numpy(), sample_files.multi_coil() * sample_files.columns_mask())
    one = fastmri.read_numpy(sample_files.write_npy(tmp_path / "k.npy", sample_files.single_coil()[0]))
    assert isinstance(one, Kspace)
    assert one.data.shape == (1, 1, sample_files.HEIGHT, sample_files.WIDTH)


WRONG = {
    "nothing of use": ({"other": np.zeros(3), "more": np.zeros(3)}, "holds neither 'kspace' nor"),
    "a row": ({"kspace": np.zeros(3, complex), "x": np.zeros(3)}, r"shape \(3,\); it should be"),
    "NaN": ({"kspace": np.full((1, 4, 4), np.nan + 0j)}, "NaN or infinite"),
    "zeros": ({"kspace": np.zeros((1, 4, 4), complex)}, "zero everywhere"),
    "few references": (
        {"kspace": np.ones((2, 4, 4), complex), "reconstruction_rss": np.ones((1, 4, 4))},
        "too few for what else",
    ),
    "maps of another size": (
        {"kspace": np.ones((1, 2, 4, 4), complex), "sensitivity": np.ones((1, 3, 4, 4), complex)},
        "does not fit the k-space",
    ),
    "no slices": ({"kspace": np.zeros((0, 4, 4), complex)}, r"has 0 slice\(s\)"),
}


@pytest.mark.parametrize("case", WRONG)
@pytest.mark.parametrize("ending", ["h5", "npz"])
def test_what_is_wrong_is_said_in_one_sentence(case, ending, tmp_path):
    arrays, message = WRONG[case]
    path = tmp_path / f"k.{ending}"
    if ending == "npz":
        np.savez(path, **arrays)
    else:
        with h5py.File(path, "w") as file:
            for name, array in arrays.items():
                file[name] = array
    with pytest.raises(FileError, match=message) as caught:
        (fastmri.read_hdf5 if ending == "h5" else fastmri.read_numpy)(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("dtype", [np.float32, np.complex64])
@pytest.mark.parametrize("ending", ["h5", "npz"])
def test_magnitudes_of_kspace_are_refused(ending, dtype, tmp_path):
    write = sample_files.write_hdf5 if ending == "h5" else lambda path, **arrays: np.savez(path, **arrays)
    write(tmp_path / f"k.{ending}", kspace=np.abs(sample_files.single_coil()).astype(dtype))
    with pytest.raises(FileError, match="but k-space is complex: its magnitudes alone make no image"):
        mri.read(tmp_path / f"k.{ending}")


def test_hdf5_files_do_not_lead_elsewhere(tmp_path):
    """Links to other files, arrays stored in other files, text, and absurd sizes are refused."""
    secret = sample_files.write_fastmri(tmp_path / "secret.h5")
    layout = h5py.VirtualLayout(shape=(1, 4, 4), dtype=np.complex64)
    layout[0] = h5py.VirtualSource(secret, "kspace", shape=(4, 4))
    makers = {
        "link": lambda file: file.__setitem__("kspace", h5py.ExternalLink(str(secret), "kspace")),
        "in other files": lambda file: file.create_virtual_dataset("kspace", layout),
        "not numbers": lambda file: file.__setitem__("kspace", "text"),
        "is not an array": lambda file: file.create_group("kspace"),
        "GB": lambda file: file.create_dataset("kspace", (10**6, 10**4, 10**4), "c8", chunks=(1, 10, 10)),
        "pieces of": lambda file: file.create_dataset("kspace", (1, 10**5, 10**5), "c8", chunks=(1, 2 * 10**4, 10**4)),
    }
    for message, make in makers.items():
        with h5py.File(tmp_path / "odd.h5", "w") as file:
            make(file)
        with pytest.raises(FileError, match=message):
            fastmri.read_hdf5(tmp_path / "odd.h5")


# Folders of tensors


def test_a_folder_becomes_centred_kspace_of_a_real_image(tmp_path):
    found = mri.read(sample_files.write_tensor_folder(tmp_path / "image"))
    assert isinstance(found, Kspace)
    expected = sample_files.multi_coil()[:1] * sample_files.columns_mask()
    np.testing.assert_allclose(found.data.numpy(), expected, atol=1e-6)
    assert np.array_equal(found.mask.numpy(), sample_files.columns_mask())
    assert found.real
    assert found.crop == (16, 16)
    assert found.reference is not None
    assert np.array_equal(found.reference.numpy(), sample_files.images()[:1, 2:18])


def test_files_that_would_run_code_are_refused(tmp_path):
    folder = sample_files.write_tensor_folder(tmp_path / "image")

    class Code:
        def __reduce__(self):
            return print, ("code ran",)

    torch.save(Code(), folder / "y.pt")
    with pytest.raises(FileError, match=r"y\.pt is damaged"):
        fastmri.read_tensors(folder)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("y.pt", torch.ones(4, 4), r"shape \(1, C, H, W\)"),
        ("y.pt", {"a": 1}, r"shape \(1, C, H, W\)"),
        ("y.pt", torch.full((1, 1, 4, 4), torch.nan), "NaN"),
        ("y.pt", torch.ones(1).expand(1, 10**5, 10**5, 10**3), "GB"),
        ("smaps.pt", torch.ones(1, 3, 4, 4, dtype=torch.complex64), "smaps.pt has shape"),
    ],
)
def test_wrong_tensors_are_one_sentence(name, value, message, tmp_path):
    folder = sample_files.write_tensor_folder(tmp_path / "image")
    torch.save(value, folder / name)
    with pytest.raises(FileError, match=message):
        fastmri.read_tensors(folder)


def test_torchs_old_format_is_refused(tmp_path):
    folder = sample_files.write_tensor_folder(tmp_path / "image")
    torch.save(torch.ones(1, 1, 4, 4), folder / "y.pt", _use_new_zipfile_serialization=False)
    with pytest.raises(FileError, match=r"y\.pt is damaged"):
        fastmri.read_tensors(folder)


# A mask for each slice


def masks_by_slice() -> np.ndarray:
    return np.stack([np.roll(sample_files.columns_mask(), s) for s in range(sample_files.SLICES)])


@pytest.mark.parametrize("ending", ["h5", "npz", "npy"])
@pytest.mark.parametrize("coils", [False, True])
def test_slices_with_different_masks_keep_them_when_none_is_stored(coils, ending, tmp_path):
    masks = masks_by_slice()
    full = sample_files.multi_coil() if coils else sample_files.single_coil()
    full = full + np.float32(1e-3)  # symmetric images have zeros in their k-space
    data = full * (masks[:, None, None] if coils else masks[:, None])
    path = tmp_path / f"k.{ending}"
    if ending == "npy":
        sample_files.write_npy(path, data)
    else:
        (sample_files.write_hdf5 if ending == "h5" else sample_files.write_npz)(path, kspace=data)
    found = mri.read(path)
    assert isinstance(found, Kspace)
    for s, mask in enumerate(masks):
        assert np.array_equal(found.mask_of(s).numpy(), mask)
    part = mri.read(path, slice(1, 2))
    assert isinstance(part, Kspace)
    assert np.array_equal(part.mask.numpy(), masks[1])


@pytest.mark.parametrize("shape", [(3, 1, 16), (3, 16), (3, 1, 1, 16), (1, 3, 1, 16, 1), "points"])
def test_a_stored_mask_may_be_one_for_each_slice(shape, tmp_path):
    """It is applied to k-space that holds more, and only that of the chosen slices is used."""
    masks = masks_by_slice()
    stored = np.repeat(masks[:, None], sample_files.HEIGHT, 1) if shape == "points" else masks.reshape(shape)
    path = sample_files.write_hdf5(tmp_path / "k.h5", kspace=sample_files.multi_coil(), mask=stored.astype(np.float32))
    found, part = mri.read(path), mri.read(path, slice(2, 3))
    assert isinstance(found, Kspace)
    assert isinstance(part, Kspace)
    assert [found.mask_of(s).tolist() for s in range(3)] == masks.tolist()
    assert part.mask.tolist() == masks[2].tolist()
    assert torch.equal((found.data != 0).any(dim=1).any(dim=1), torch.from_numpy(masks))


def test_a_mask_that_may_be_of_rows_or_of_slices_is_told_by_the_data_or_refused(tmp_path):
    rng = np.random.default_rng(0)
    full = (rng.standard_normal((6, 1, 6, 8)) + 1).astype(np.complex64)
    mask = np.stack([np.roll(np.arange(8) < 5, s) for s in range(6)])
    for name, by_slice in (("slices.npz", mask[:, None, None]), ("rows.npz", mask)):
        found = mri.read(sample_files.write_npz(tmp_path / name, kspace=full * by_slice, mask=mask))
        assert isinstance(found, Kspace)
        expected = np.broadcast_to(by_slice, full.shape)[:, 0]
        for s in range(6):
            assert np.array_equal(np.broadcast_to(found.mask_of(s).numpy(), (6, 8)), expected[s])
    with pytest.raises(FileError, match=r"may mean \(rows, columns\) or \(slices, columns\)"):
        mri.read(sample_files.write_npz(tmp_path / "k.npz", kspace=full, mask=mask))


def test_a_mask_of_tensors_that_differs_between_coils_is_refused(tmp_path):
    folder = sample_files.write_tensor_folder(tmp_path / "image")
    mask = torch.load(folder / "mask.pt").repeat(1, 2, 1, 1)
    mask[0, 1, :, 0] = ~mask[0, 1, :, 0]
    torch.save(mask, folder / "mask.pt")
    with pytest.raises(FileError, match="another mask for each coil"):
        fastmri.read_tensors(folder)

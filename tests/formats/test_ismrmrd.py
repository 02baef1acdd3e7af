"""ISMRMRD files, written by the ismrmrd library."""

import contextlib
import subprocess
import sys
import time

import h5py
import numpy as np
import pytest
import torch

import sample_files
from lipspline.formats import ismrmrd_header, mri
from lipspline.formats.kspace import Kspace
from lipspline.formats.validation import FileError


def read(path, slices=slice(None)) -> Kspace:
    found = mri.read(path, slices)
    assert isinstance(found, Kspace)
    return found


def test_readouts_are_sorted_into_kspace_and_noise_scans_left_out(tmp_path):
    found = read(sample_files.write_ismrmrd(tmp_path / "raw.h5"))
    assert np.array_equal(found.data.numpy(), sample_files.multi_coil() * sample_files.columns_mask())
    assert np.array_equal(found.mask.numpy(), sample_files.columns_mask())


@pytest.mark.parametrize("features", [*((feature,) for feature in sample_files.RAW_FEATURES), ("reversed", "masks")])
@pytest.mark.parametrize("depth", [False, True])
def test_whatever_else_a_scanner_writes_the_image_is_that_of_its_lines(features, depth, tmp_path):
    """Readouts of another encoding, calibration lines, navigators, reversed lines: nothing of it is averaged in."""
    masks = sample_files.raw_masks(features)
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5", *features, depth=depth)
    if depth and "masks" in features:
        assert "two directions of phase encoding" in read(path).notes[-1]
        return
    found, plain = read(path), read(sample_files.write_ismrmrd(tmp_path / "plain.h5", depth=depth))
    if not depth:
        assert np.array_equal(found.data.numpy(), sample_files.multi_coil() * masks[:, None, None])
    if "masks" not in features:
        assert torch.equal(found.data, plain.data)
    for s, mask in enumerate(masks):
        assert np.array_equal(found.mask_of(s).numpy(), mask)


def test_what_was_left_out_or_averaged_is_said(tmp_path):
    features = ("navigator", "phase correction", "other encoding", "external calibration")
    lines = 3 * int(sample_files.columns_mask().sum())
    assert read(sample_files.write_ismrmrd(tmp_path / "raw.h5", *features, averages=2)).notes == (
        "1 noise measurements left out: too few",
        "1 navigators left out",
        "1 phase correction lines left out",
        "1 calibration lines left out",
        f"{lines} readouts of other encodings left out",
        "2 averages averaged",
    )


def changed(path, change) -> None:
    """Change the headers of the readouts of a file in place."""
    import h5py

    with h5py.File(path, "r+") as file:
        lines = file["dataset/data"][:]
        change(lines["head"])
        file["dataset/data"][:] = lines


def set_counter(name: str, value: int):
    def change(heads):
        heads["idx"][name][2] = value

    return change


def set_field(name: str, value: int, which: int | slice = 2):
    def change(heads):
        heads[name][which] = value

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (set_counter("kspace_encode_step_2", 1), "readouts of 2 partitions, but one in its XML header"),
        (set_counter("kspace_encode_step_1", 0), r"2 readouts for column 0 of slice 0.* no counter that tells them"),
        (set_counter("kspace_encode_step_1", 60000), "outside the 20 x 16 points"),
        (set_field("encoding_space_ref", 4), "readouts of encoding 4; its XML header describes 1"),
        (set_field("flags", 1 << 19), "calibration lines of the mode ''; .* must be embedded, separate or external"),
        (set_field("flags", 1 << 52), "compressed readouts"),
        (set_field("active_channels", 1), "readouts of 1 and of 2 coils"),
        (set_field("channel_mask", 3), "different coils"),
        (set_field("center_sample", 3), "does not fit the 20 rows"),
    ],
)
def test_readouts_that_do_not_belong_together_are_refused_by_name(change, message, tmp_path):
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    changed(path, change)
    with pytest.raises(FileError, match=message):
        read(path)


def test_calibration_lines_alone_are_no_image(tmp_path):
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5", "external calibration")
    changed(path, set_field("flags", 1 << 19, slice(1, None)))
    with pytest.raises(FileError, match="calibration lines only"):
        read(path)


@pytest.mark.parametrize("early", [False, True])
def test_a_reversed_line_is_turned_whichever_way_its_middle_is_counted(early, tmp_path):
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5", "reversed")

    def change(heads):
        heads["center_sample"][(heads["flags"] & np.uint64(1 << 21)) != 0] -= early

    changed(path, change)
    assert np.array_equal(read(path).data.numpy(), sample_files.multi_coil() * sample_files.columns_mask())


def test_a_reversed_line_that_could_lie_at_two_places_is_refused(tmp_path):
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5", "reversed")
    changed(path, set_field("discard_pre", 3, slice(None)))
    with pytest.raises(FileError, match="whose middle is not clear"):
        read(path)


def test_points_that_a_short_readout_lacks_are_not_measured(tmp_path):
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    changed(path, set_field("discard_pre", 5, slice(None)))
    found = read(path)
    expected = np.broadcast_to(sample_files.columns_mask(), (sample_files.HEIGHT, sample_files.WIDTH)).copy()
    expected[:5] = False
    assert np.array_equal(found.mask.numpy(), expected)


def test_slices_that_are_not_evenly_spaced_lose_their_place_and_it_is_said(tmp_path):
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")

    def change(heads):
        heads["position"][heads["idx"]["slice"] == 1, 2] = 8

    changed(path, change)
    found = read(path)
    assert found.affine is not None
    assert found.affine[:3, 3].tolist() == [0, 0, 0]
    assert "not parallel and evenly spaced" in found.notes[-1]


@pytest.mark.parametrize(
    "middle",
    [
        "<reconSpace>" * 35_000,
        "<encoding " * 40_000,
        "<a>" * 60_000 + "</a>" * 60_000,
        "<encodedSpace>x</encodedSpace " * 14_000,
        '<a b="' + "x" * 400_000,
        "<a>" + "&amp;" * 80_000 + "</a>",
    ],
)
def test_headers_are_parsed_in_linear_time(middle, tmp_path):
    """420 kB of header: minutes by regular expressions, milliseconds by a parser."""
    begin = time.process_time()
    with contextlib.suppress(FileError):
        ismrmrd_header.space_of_images(tmp_path, f"<ismrmrdHeader>{middle}</ismrmrdHeader>")
    assert time.process_time() - begin < 2


def test_entities_are_not_expanded(tmp_path):
    """A billion laughs: a kilobyte that would become gigabytes."""
    entities = "".join(f'<!ENTITY a{i} "{10 * f"&a{i - 1};"}">' for i in range(1, 10))
    xml = f'<!DOCTYPE lolz [<!ENTITY a0 "ha">{entities}]><ismrmrdHeader>&a9;</ismrmrdHeader>'
    with pytest.raises(FileError, match="document type, which is not read"):
        ismrmrd_header.space_of_images(tmp_path, xml)


def test_a_header_that_is_no_xml_is_one_sentence(tmp_path):
    with pytest.raises(FileError, match=r"XML header that is damaged \(mismatched tag"):
        ismrmrd_header.space_of_images(tmp_path, "<a><b></a>")
    assert ismrmrd_header.space_of_images(tmp_path, " ") == {}


def test_a_header_longer_than_a_megabyte_is_refused(tmp_path):
    import h5py

    with h5py.File(tmp_path / "k.h5", "w") as file:
        file["kspace"] = sample_files.single_coil()
        file["ismrmrd_header"] = "<a>" + 2**20 * " " + "</a>"
    with pytest.raises(FileError, match="is a text of 1048583 bytes"):
        mri.read(tmp_path / "k.h5")


def test_averages_are_averaged(tmp_path):
    found = read(sample_files.write_ismrmrd(tmp_path / "raw.h5", averages=2))
    np.testing.assert_allclose(found.data.numpy(), sample_files.multi_coil() * sample_files.columns_mask(), atol=1e-6)


def test_slices_are_chosen_by_their_number_in_the_scan(tmp_path):
    found = read(sample_files.write_ismrmrd(tmp_path / "raw.h5"), slice(1, 3))
    assert np.array_equal(found.data.numpy(), sample_files.multi_coil()[1:3] * sample_files.columns_mask())
    assert found.affine is not None
    assert found.affine[2, 3] == 11  # the second slice of a stack 4 mm apart that begins at 7 mm


def test_a_third_dimension_is_transformed(tmp_path):
    found = read(sample_files.write_ismrmrd(tmp_path / "raw.h5", depth=True), slice(0, 2))
    depth = sample_files.multi_coil() * sample_files.columns_mask()
    expected = np.fft.fftshift(np.fft.ifft(np.fft.ifftshift(depth, axes=0), axis=0, norm="ortho"), axes=0)
    np.testing.assert_allclose(found.data.numpy(), expected[:2], atol=1e-6)


def test_oversampled_readouts_are_cropped_and_the_middle_of_the_image_lies_where_the_scanner_says(tmp_path):
    found = read(sample_files.write_ismrmrd(tmp_path / "raw.h5"))
    assert found.crop == (sample_files.HEIGHT // 2, sample_files.WIDTH)
    assert found.affine is not None
    centre = torch.tensor([sample_files.WIDTH // 2, sample_files.HEIGHT // 4, 0, 1], dtype=torch.float64)
    assert (found.affine @ centre)[:3].tolist() == [-5, -6, 7]  # to the left and back is positive for a scanner


def test_a_trajectory_that_is_not_in_the_file_is_refused(tmp_path):
    with pytest.raises(FileError, match="spiral trajectory, which is not in the file"):
        mri.read(sample_files.write_ismrmrd(tmp_path / "raw.h5", trajectory="spiral"))


def test_a_file_without_readouts_or_header_is_refused(tmp_path):
    import h5py

    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    with h5py.File(path, "r+") as file:
        del file["dataset/xml"]
    with pytest.raises(FileError, match="no readable XML header"):
        mri.read(path)
    with h5py.File(tmp_path / "odd.h5", "w") as file:
        file["dataset/data"], file["dataset/xml"] = (
            np.zeros(3),
            sample_files.XML.format(
                rows=4, half=2, columns=4, depth=1, extent=1, last=3, middle=2, trajectory="cartesian"
            ),
        )
    with pytest.raises(FileError, match="does not hold readouts"):
        mri.read(tmp_path / "odd.h5")


def test_a_readout_that_claims_gigabytes_is_refused_before_they_are_allocated(tmp_path):
    """The library allocates what an entry of varying length claims, even to read the other fields."""
    import h5py

    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    with h5py.File(path, "r+") as file:
        lines = file["dataset/data"]
        start = lines.id.get_type().get_member_offset(2)
        content = bytearray(lines.id.read_direct_chunk((3,))[1])
        content[start : start + 4] = (2**30).to_bytes(4, "little")
        lines.id.write_direct_chunk((3,), bytes(content))
    with pytest.raises(FileError, match="claims 1073741824 values, more than the file holds"):
        mri.read(path)


def test_a_header_that_claims_gigabytes_is_refused_too(tmp_path):
    import h5py

    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    with h5py.File(path, "r") as file:
        place = file["dataset/xml"].id.get_offset()
    content = bytearray(path.read_bytes())
    content[place : place + 4] = (2**30).to_bytes(4, "little")
    path.write_bytes(content)
    with pytest.raises(FileError, match="claims 1073741824 values"):
        mri.read(path)


@pytest.mark.parametrize("where", ["/dataset/xml", "/dataset/data"])
def test_a_damaged_collection_of_values_is_refused(tmp_path, where):
    """Free space of length 0 in a collection of values of varying length: the HDF5 library would search for ever."""
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    content = bytearray(path.read_bytes())
    start = content.find(b"GCOL") if where.endswith("xml") else content.rfind(b"GCOL")
    entry = start + 16
    while int.from_bytes(content[entry : entry + 2], "little"):
        length = int.from_bytes(content[entry + 8 : entry + 16], "little")
        entry += 16 + length + -length % 8
    content[entry + 8 : entry + 16] = bytes(8)
    path.write_bytes(content)
    code = f"from lipspline.formats import mri\ntry: mri.read({str(path)!r})\nexcept ValueError as e: print(e)"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300)
    assert "are not where they are said to be" in result.stdout, result.stderr


def test_a_piece_of_the_wrong_size_is_refused(tmp_path):
    """The library would write as many bytes as the piece claims into memory for one of the right size."""
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    with h5py.File(path) as file:
        size, pieces = file["dataset/data"].id.get_type().get_size(), []
        file["dataset/data"].id.chunk_iter(lambda piece: pieces.append(piece.byte_offset))
    content = bytearray(path.read_bytes())
    # An entry of the index: the size of the piece, a mask of filters, two coordinates, its address.
    changed = 0
    for address in pieces:
        at = content.find(address.to_bytes(8, "little"))
        while at >= 0:
            if content[at - 24 : at - 20] == size.to_bytes(4, "little"):
                content[at - 24 : at - 20] = (size + 2**14).to_bytes(4, "little")
                changed += 1
            at = content.find(address.to_bytes(8, "little"), at + 1)
        if changed:
            break
    assert changed
    path.write_bytes(content)
    with pytest.raises(FileError, match="lies outside the file or has the wrong size"):
        mri.read(path)


KINDS = ("contrast", "phase", "repetition", "set")


@pytest.mark.parametrize("kind", KINDS)
def test_contrasts_phases_repetitions_and_sets_are_images_of_their_own(kind, tmp_path):
    """Two averages, kspace - 1 and kspace + 1, that are told apart by another counter instead."""
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5", averages=2)

    def change(heads):
        heads["idx"][kind], heads["idx"]["average"] = 3 * heads["idx"]["average"], 0

    changed(path, change)
    found, mask = read(path), sample_files.columns_mask()
    expected = np.concatenate([sample_files.multi_coil() - 1, sample_files.multi_coil() + 1]) * mask
    np.testing.assert_allclose(found.data.numpy(), expected, atol=1e-6)
    assert any("2 images of each slice" in note for note in found.notes)
    some = read(path, slice(sample_files.SLICES - 1, sample_files.SLICES + 1))
    np.testing.assert_allclose(some.data.numpy(), expected[sample_files.SLICES - 1 :][:2], atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_in_three_dimensions_they_are_refused(kind, tmp_path):
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5", depth=True)
    changed(path, set_counter(kind, 1))
    with pytest.raises(FileError, match=f"2 of the kind '{kind}'"):
        read(path)


def test_noise_measurements_give_the_covariance_of_the_coils_for_the_sampling_time_of_the_image(tmp_path):
    library = pytest.importorskip("ismrmrd")
    path = sample_files.write_ismrmrd(tmp_path / "raw.h5")
    assert read(path).noise is None  # one short measurement
    changed(path, set_field("sample_time_us", 10, slice(1, None)))
    changed(path, set_field("sample_time_us", 5, 0))  # the noise measurement that is there comes first
    stream = np.random.default_rng(0)
    white = stream.standard_normal((2, 2, 5000))
    mixed = np.array([[1, 0], [0.6 + 0.3j, 2]]) @ (white[0] + 1j * white[1])
    with library.Dataset(str(path), "dataset", create_if_needed=False) as dataset:
        line = library.Acquisition()
        line.resize(5000, 2)
        line.data[:] = mixed
        line.sample_time_us = 5
        line.setFlag(library.ACQ_IS_NOISE_MEASUREMENT)
        dataset.append_acquisition(line)
    noise = read(path).noise
    assert next(note for note in read(path).notes if "noise" in note) == "2 noise measurements read"
    assert noise is not None
    expected = mixed @ mixed.conj().T / (2 * 5000)
    ratio = noise.numpy() / expected
    np.testing.assert_allclose(ratio.real, ratio.real[0, 0], rtol=0.05)  # one factor, and no conjugate
    np.testing.assert_allclose(ratio.imag, 0, atol=0.05)
    assert ratio.real.mean() == pytest.approx(0.5, rel=0.02)

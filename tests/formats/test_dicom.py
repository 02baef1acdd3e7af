"""DICOM, written and read by pydicom."""

import nibabel
import numpy as np
import pydicom
import pytest
import torch

import sample_files
from lipspline.formats import dicom, nifti
from lipspline.formats.validation import FileError
from lipspline.formats.volume import Volume

HOUNSFIELD = np.rint(1000 * sample_files.images() + 24) - 1024


def save(path, image):
    image.save_as(path, enforce_file_format=True)
    return path


def test_one_file_is_read_in_hounsfield_units(tmp_path):
    volume = dicom.read(sample_files.write_dicom(tmp_path / "s.dcm"))
    assert np.array_equal(volume.slices.numpy(), HOUNSFIELD[:1].astype(np.float32))
    assert volume.unit == "hounsfield"
    assert volume.identity["PatientName"] == "Doe^J"


def test_a_series_is_sorted_by_position_whatever_its_numbers_are(tmp_path):
    volume = dicom.read(sample_files.write_dicom_series(tmp_path / "series"))
    assert np.array_equal(volume.slices.numpy(), HOUNSFIELD[::-1].astype(np.float32))
    assert volume.voxel == pytest.approx((0.8, 0.7, 3.0))


def test_pixels_lie_where_dicom_says(tmp_path):
    """The formula of the standard: position + column * spacing[1] * X + row * spacing[0] * Y, L and P positive."""
    volume = dicom.read(sample_files.write_dicom_series(tmp_path / "series"), slice(1, 3))
    assert volume.affine is not None
    there = volume.affine @ torch.tensor([2.0, 5, 1, 1], dtype=torch.float64)
    left, posterior, head = 10 + 2 * 0.8, 20 + 5 * 0.7, 30.0
    assert there[:3].tolist() == pytest.approx([-left, -posterior, head])


def test_slices_of_a_turned_series_are_sorted_along_their_normal(tmp_path):
    folder = tmp_path / "sagittal"
    folder.mkdir()
    for number in range(3):
        image = sample_files.dicom_image(number)
        image.ImageOrientationPatient = [0, 1, 0, 0, 0, -1]  # normal to the right: L falls
        image.ImagePositionPatient = [4 * number, 0, 0]
        save(folder / f"{number}.dcm", image)
    volume = dicom.read(folder)
    assert np.array_equal(volume.slices.numpy(), HOUNSFIELD[::-1].astype(np.float32))
    assert volume.affine is not None
    assert volume.affine[:3, 2].tolist() == pytest.approx([4, 0, 0])


def test_frames_of_one_file_are_slices(tmp_path):
    image = sample_files.dicom_image(0)
    image.NumberOfFrames = 3
    image.PixelData = np.rint(1000 * sample_files.images() + 24).astype("<u2").tobytes()
    for name in ("ImagePositionPatient", "ImageOrientationPatient", "PixelSpacing"):
        delattr(image, name)
    measures, orientation = pydicom.Dataset(), pydicom.Dataset()
    measures.PixelSpacing, orientation.ImageOrientationPatient = [0.7, 0.8], [1, 0, 0, 0, 1, 0]
    shared = pydicom.Dataset()
    shared.PixelMeasuresSequence, shared.PlaneOrientationSequence = [measures], [orientation]
    image.SharedFunctionalGroupsSequence, image.PerFrameFunctionalGroupsSequence = [shared], []
    for number in range(3):
        position, group = pydicom.Dataset(), pydicom.Dataset()
        position.ImagePositionPatient = [0, 0, 5 * number]
        group.PlanePositionSequence = [position]
        image.PerFrameFunctionalGroupsSequence.append(group)
    volume = dicom.read(save(tmp_path / "m.dcm", image))
    assert np.array_equal(volume.slices.numpy(), HOUNSFIELD.astype(np.float32))
    assert volume.voxel == pytest.approx((0.8, 0.7, 5.0))


def as_jpeg(image):
    """Pixels that claim to be compressed in a way that they are not."""
    image.file_meta.TransferSyntaxUID = pydicom.uid.JPEGLSLossless
    image.PixelData = pydicom.encaps.encapsulate([b"no picture"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: delattr(i, "PixelData"), "without pixels"),
        (lambda i: setattr(i, "Rows", 0), "without pixels"),
        (lambda i: i.update({"Rows": 65535, "Columns": 65535, "NumberOfFrames": 10**6}), "GB"),
        (lambda i: setattr(i, "SamplesPerPixel", 3), "colour"),
        (lambda i: setattr(i, "PixelData", b"\0\0"), "damaged"),
        (lambda i: setattr(i, "BitsAllocated", 7), "damaged"),
        (lambda i: as_jpeg(i), "damaged"),
        (lambda i: setattr(i, "RescaleSlope", 1e308), "NaN|damaged"),
    ],
)
def test_what_is_wrong_is_one_sentence(change, message, tmp_path):
    path = sample_files.write_dicom(tmp_path / "s.dcm")
    image = pydicom.dcmread(path)
    change(image)
    with pytest.raises(FileError, match=message) as caught:
        dicom.read(save(path, image))
    assert "s.dcm" in str(caught.value)


def test_a_deflated_file_is_refused_unread(tmp_path):
    image = sample_files.dicom_image(0)
    image.file_meta.TransferSyntaxUID = pydicom.uid.DeflatedExplicitVRLittleEndian
    with pytest.raises(FileError, match="deflated as a whole"):
        dicom.read(save(tmp_path / "s.dcm", image))


def test_two_series_in_one_folder_are_refused(tmp_path):
    folder = sample_files.write_dicom_series(tmp_path / "series")
    image = sample_files.dicom_image(0)
    image.SeriesInstanceUID = "1.2.99"
    save(folder / "other.dcm", image)
    with pytest.raises(FileError, match="2 different series"):
        dicom.read(folder)


def test_other_files_in_the_folder_are_passed_over_and_no_files_are_an_error(tmp_path):
    folder = sample_files.write_dicom_series(tmp_path / "series")
    (folder / "notes.txt").write_text("not an image")
    assert len(dicom.read(folder).slices) == 3
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileNotFoundError, match="holds no DICOM file"):
        dicom.read(tmp_path / "empty")


# Writing


def volume_with_place(unit="hounsfield", **identity) -> Volume:
    turn, _ = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64))
    affine = torch.eye(4, dtype=torch.float64)
    affine[:3, :3] = turn * torch.tensor([0.8, 0.7, 3.0], dtype=torch.float64)
    affine[:3, 3] = torch.tensor([-31.5, 12.25, 100])
    return Volume(1000 * torch.randn(3, 6, 5), affine, unit, identity)


def test_a_series_comes_back_as_it_was_written(tmp_path):
    volume = volume_with_place(PatientID="7", StudyInstanceUID="1.2.30")
    dicom.write(tmp_path / "out", volume, modality="CT", description="test")
    result = dicom.read(tmp_path / "out")
    span = float(volume.slices.max() - volume.slices.min())
    ascending = torch.linalg.det(volume.affine[:3, :3]) > 0  # type: ignore[index]
    slices = volume.slices if ascending else volume.slices.flip(0)
    torch.testing.assert_close(result.slices, slices, atol=0.51 * span / 65534, rtol=0)
    corner = torch.tensor([1.0, 2, 1, 1], dtype=torch.float64)
    assert result.affine is not None
    assert volume.affine is not None
    torch.testing.assert_close(result.affine @ corner, volume.affine @ corner, atol=1e-4, rtol=0)
    assert (result.unit, result.identity["PatientID"]) == ("hounsfield", "7")


def test_dicom_and_nifti_agree_on_where_voxels_lie(tmp_path):
    volume = dicom.read(sample_files.write_dicom_series(tmp_path / "series"))
    nifti.write(tmp_path / "v.nii", volume)
    image = nibabel.load(tmp_path / "v.nii")
    assert image.affine @ [2, 5, 1, 1] == pytest.approx([-(10 + 1.6), -(20 + 3.5), 27, 1])


def test_the_file_is_a_derived_secondary_capture_with_new_identifiers_and_nothing_invented(tmp_path):
    source = sample_files.dicom_image(0)
    volume = dicom.read(save(tmp_path / "s.dcm", source))
    dicom.write(tmp_path / "out.dcm", volume, modality="CT", description="test")
    image = pydicom.dcmread(tmp_path / "out.dcm")
    assert image.SOPClassUID == pydicom.uid.SecondaryCaptureImageStorage
    assert list(image.ImageType) == ["DERIVED", "SECONDARY"]
    assert image.SOPInstanceUID not in (source.SOPInstanceUID, "")
    assert image.SeriesInstanceUID != source.SeriesInstanceUID
    assert image.StudyInstanceUID == source.StudyInstanceUID
    assert len({image.StudyInstanceUID, image.SeriesInstanceUID, image.SOPInstanceUID, image.SOPClassUID}) == 4
    assert image.file_meta.MediaStorageSOPInstanceUID == image.SOPInstanceUID
    assert (str(image.PatientName), image.PatientID) == ("Doe^J", "7")
    assert (image.PatientBirthDate, image.PatientSex, image.StudyDate) == ("", "", "")
    assert list(image.ImagePositionPatient) == list(source.ImagePositionPatient)
    assert list(image.PixelSpacing) == list(source.PixelSpacing)
    assert image.RescaleType == "HU"


def test_window_thickness_and_descriptions_are_those_of_the_input(tmp_path):
    source = sample_files.dicom_image(0)
    source.WindowCenter, source.WindowWidth, source.SliceThickness = [50, -600], [350, 1500], 2.5
    source.StudyDescription, source.BodyPartExamined, source.PatientAge = "CT ABDOMEN", "ABDOMEN", "061Y"
    dicom.write(tmp_path / "o.dcm", dicom.read(save(tmp_path / "s.dcm", source)), modality="CT", description="test")
    image = pydicom.dcmread(tmp_path / "o.dcm")
    assert (image.WindowCenter, image.WindowWidth, image.SliceThickness) == (50, 350, 2.5)
    assert (image.StudyDescription, image.BodyPartExamined, image.PatientAge) == ("CT ABDOMEN", "ABDOMEN", "061Y")
    assert "ProtocolName" not in image


def test_without_a_window_there_is_one_in_which_something_is_seen(tmp_path):
    """Soft tissue for Hounsfield units, else up to what few pixels exceed."""
    for name, volume in (("ct", volume_with_place()), ("mr", Volume(torch.rand(2, 40, 40) / 50))):
        dicom.write(tmp_path / name, volume, modality=name.upper(), description="test")
    ct, mr = (pydicom.dcmread(tmp_path / name / "0001.dcm") for name in ("ct", "mr"))
    assert (ct.WindowCenter, ct.WindowWidth) == (40, 400)
    assert mr.WindowCenter + mr.WindowWidth / 2 == pytest.approx(0.02, rel=0.02)
    assert mr.VOILUTFunction == "LINEAR_EXACT"


def test_the_distance_of_slices_is_not_their_thickness(tmp_path):
    dicom.write(tmp_path / "ct", volume_with_place(), modality="CT", description="test")
    image = pydicom.dcmread(tmp_path / "ct" / "0001.dcm")
    assert image.SpacingBetweenSlices == pytest.approx(3)
    assert "SliceThickness" not in image


@pytest.mark.parametrize("said", [{}, {"SliceThickness": 2.5}, {"SpacingBetweenSlices": 4.0}])
def test_what_a_single_slice_does_not_say_of_its_neighbours_is_not_invented(said, tmp_path):
    source = sample_files.dicom_image(0)
    for key in ("SliceThickness", "SpacingBetweenSlices"):
        if key in source:
            delattr(source, key)
    for key, value in said.items():
        setattr(source, key, value)
    dicom.write(tmp_path / "o.dcm", dicom.read(save(tmp_path / "s.dcm", source)), modality="CT", description="test")
    image = pydicom.dcmread(tmp_path / "o.dcm")
    found = {key: image[key].value for key in ("SliceThickness", "SpacingBetweenSlices") if key in image}
    assert found == said


def test_a_slice_of_a_series_knows_how_far_its_neighbours_are(tmp_path):
    dicom.write(tmp_path / "series", volume_with_place(), modality="CT", description="test")
    one = dicom.read(tmp_path / "series", slice(1, 2))
    dicom.write(tmp_path / "o.dcm", one, modality="CT", description="test")
    assert pydicom.dcmread(tmp_path / "o.dcm").SpacingBetweenSlices == pytest.approx(3)
    assert dicom.read(tmp_path / "o.dcm").voxel[2] == pytest.approx(3)


def test_a_long_description_ends_with_a_whole_word(tmp_path):
    words = "lipspline 1.0: Minimum with ridge-adaptive. CT, fan beam, 181 angles, 560 detectors; pixels of 0.148 mm"
    dicom.write(tmp_path / "o.dcm", Volume(torch.rand(1, 8, 8)), modality="CT", description=words)
    image = pydicom.dcmread(tmp_path / "o.dcm")
    assert image.SeriesDescription == "lipspline 1.0: Minimum with ridge-adaptive. CT, fan beam, ..."
    assert image.DerivationDescription == words


@pytest.mark.parametrize("window", [("WindowCenter", 40), ("WindowWidth", 0)])
def test_half_a_window_or_an_empty_one_is_none(window, tmp_path):
    source = sample_files.dicom_image(0)
    setattr(source, *window)
    assert "WindowCenter" not in dicom.read(save(tmp_path / "s.dcm", source)).identity


SECONDARY_CAPTURE_NEEDS = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex"),
    *("StudyInstanceUID", "StudyDate", "StudyTime", "ReferringPhysicianName", "StudyID", "AccessionNumber"),
    *("Modality", "SeriesInstanceUID", "SeriesNumber", "ConversionType", "InstanceNumber"),
    *("SamplesPerPixel", "PhotometricInterpretation", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit"),
    *("PixelRepresentation", "PixelData", "SOPClassUID", "SOPInstanceUID", "RescaleSlope", "RescaleIntercept"),
)


@pytest.mark.parametrize("volume", [volume_with_place(), Volume(torch.rand(1, 4, 4))], ids=["placed", "anywhere"])
def test_every_attribute_that_the_standard_wants_is_there(volume, tmp_path):
    """Types 1 and 2 of the modules of a secondary capture; an unknown patient stays empty."""
    dicom.write(tmp_path / "out", volume, modality="MR", description="test")
    for path in (tmp_path / "out").iterdir():
        image = pydicom.dcmread(path)
        assert not [name for name in SECONDARY_CAPTURE_NEEDS if name not in image]
        assert (str(image.PatientName), image.PatientID) == ("", "")
        assert ("ImagePositionPatient" in image) == (volume.affine is not None)
        assert all(len(str(value)) <= 16 for value in (image.RescaleSlope.original_string, image.RescaleIntercept))


def test_a_constant_image_is_written_too(tmp_path):
    dicom.write(tmp_path / "out.dcm", Volume(torch.full((1, 4, 4), 5.0)), modality="MR", description="test")
    assert torch.equal(dicom.read(tmp_path / "out.dcm").slices, torch.full((1, 4, 4), 5.0))


def test_several_slices_do_not_fit_into_one_file_and_skewed_ones_into_none(tmp_path):
    with pytest.raises(ValueError, match="holds one slice, but there are 3"):
        dicom.write(tmp_path / "out.dcm", volume_with_place(), modality="CT", description="test")
    skewed = torch.eye(4, dtype=torch.float64)
    skewed[0, 1] = 0.5
    with pytest.raises(ValueError, match="not at right angles"):
        dicom.write(tmp_path / "o", Volume(torch.rand(1, 4, 4), skewed), modality="CT", description="test")


# What the numbers mean


def test_monochrome1_is_turned_so_that_white_is_large(tmp_path):
    image = sample_files.dicom_image(0, "MR")
    del image.RescaleSlope, image.RescaleIntercept
    image.BitsStored, image.HighBit = 12, 11
    plain = dicom.read(save(tmp_path / "plain.dcm", image)).slices
    image.PhotometricInterpretation = "MONOCHROME1"
    assert torch.equal(dicom.read(save(tmp_path / "inverse.dcm", image)).slices, 4095 - plain)
    image.PixelRepresentation = 1
    assert torch.equal(dicom.read(save(tmp_path / "signed.dcm", image)).slices, -1 - plain)


def palette(image):
    image.PhotometricInterpretation = "PALETTE COLOR"
    for colour in ("Red", "Green", "Blue"):
        setattr(image, f"{colour}PaletteColorLookupTableDescriptor", [256, 0, 16])
        setattr(image, f"{colour}PaletteColorLookupTableData", np.arange(256, dtype="<u2").tobytes())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda i: setattr(i, "PhotometricInterpretation", "MONOCHROME1"), "MONOCHROME1.*and a unit too"),
        (palette, r"colour image \(PALETTE COLOR\)"),
        (lambda i: i.update({"SamplesPerPixel": 3, "PlanarConfiguration": 1}), "colour image"),
        (lambda i: setattr(i, "ModalityLUTSequence", [pydicom.Dataset()]), "ModalityLUTSequence"),
    ],
)
def test_values_of_unknown_meaning_are_refused(change, message, tmp_path):
    image = sample_files.dicom_image(0)
    change(image)
    with pytest.raises(FileError, match=message):
        dicom.read(save(tmp_path / "s.dcm", image))


# Where slices lie


def series(folder, positions, change=lambda image, number: None):
    folder.mkdir()
    for number, position in enumerate(positions):
        image = sample_files.dicom_image(number % 3)
        image.SOPInstanceUID = f"1.2.3.{number + 1}"
        image.ImagePositionPatient = position if isinstance(position, list) else [0, 0, position]
        change(image, number)
        save(folder / f"{number}.dcm", image)
    return folder


@pytest.mark.parametrize(
    ("positions", "message"),
    [
        ((0, 3, 30), r"a step from \(0, 0, 3\) to \(0, 0, 30\) among steps of 3 mm"),
        ((0, 3, 6, 12, 15), r"a step from \(0, 0, 6\) to \(0, 0, 12\) among steps of 3 mm"),
        ((0, 3, 3, 6, 9), r"two images at \(0, 0, 3\) mm"),
        ((5, 5), r"two images at \(0, 0, 5\) mm"),
        ((0, 0, 0), r"two images at \(0, 0, 0\) mm"),
        ((0, 3, 6.2, 9), r"a step from"),
        ([[0, 0, 0], [0, 0, 3], [9, 0, 6], [0, 0, 9]], "not one stack of 4 slices"),
    ],
)
def test_a_series_with_missing_or_doubled_slices_is_refused_and_the_positions_named(positions, message, tmp_path):
    with pytest.raises(FileError, match=message):
        dicom.read(series(tmp_path / "series", positions))


@pytest.mark.parametrize("positions", [(0, 3, 6.1, 9), (-2.5, 0, 2.5), (7,), [[0, 0, 0], [0, 1, 3], [0, 2, 6]]])
def test_even_steps_that_are_rounded_or_oblique_are_accepted(positions, tmp_path):
    assert len(dicom.read(series(tmp_path / "series", positions)).slices) == len(positions)


def test_the_same_file_twice_and_images_without_position_are_refused(tmp_path):
    folder = sample_files.write_dicom_series(tmp_path / "series")
    (folder / "copy.dcm").write_bytes((folder / "1.dcm").read_bytes())
    with pytest.raises(FileError, match="the same image in several files"):
        dicom.read(folder)

    def drop(image, number):
        if number == 1:
            del image.ImagePositionPatient

    with pytest.raises(FileError, match="3 images, and 1 of them have no position"):
        dicom.read(series(tmp_path / "other", (0, 3, 6), drop))


@pytest.mark.parametrize(
    ("keyword", "value"),
    [
        ("ImageOrientationPatient", [0, 0, 0, 0, 0, 0]),
        ("ImageOrientationPatient", [1, 0, 0, 1, 0, 0]),
        ("ImageOrientationPatient", [1, 0, 0]),
        ("PixelSpacing", [0, 0]),
        ("PixelSpacing", [-1, 1]),
    ],
)
def test_directions_that_are_none_are_not_known(keyword, value, tmp_path):
    image = sample_files.dicom_image(0)
    setattr(image, keyword, value)
    assert dicom.read(save(tmp_path / "s.dcm", image)).affine is None


@pytest.mark.parametrize(
    "affine",
    [torch.zeros(4, 4), torch.diag(torch.tensor([1.0, 0, 1, 1])), torch.full((4, 4), torch.nan), torch.ones(4, 4)],
)
def test_a_volume_with_a_degenerate_place_is_written_without_one(affine, tmp_path):
    volume = Volume(torch.rand(2, 4, 5), affine.double())
    dicom.check_affine(volume.affine)
    dicom.write(tmp_path / "series", volume, modality="MR", description="")
    written = pydicom.dcmread(tmp_path / "series" / "0001.dcm")
    assert "ImageOrientationPatient" not in written
    assert "ImagePositionPatient" not in written
    nifti.write(tmp_path / "v.nii", volume)
    assert np.isfinite(nibabel.load(tmp_path / "v.nii").affine).all()


def test_rows_that_are_not_at_right_angles_to_columns_are_refused_before_the_work():
    with pytest.raises(ValueError, match="not at right angles"):
        dicom.check_affine(torch.tensor([[1.0, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]).double())


# Multi-frame files


@pytest.mark.parametrize("packed", [False, True])
def test_a_file_of_many_frames_is_read_once(packed, tmp_path, monkeypatch):
    image, count = sample_files.dicom_image(0), 200
    stored = np.random.default_rng(0).integers(0, 4096, (count, sample_files.HEIGHT, sample_files.WIDTH), np.uint16)
    image.NumberOfFrames, image.PixelData = count, stored.tobytes()
    del image.ImagePositionPatient
    if packed:
        image.compress(pydicom.uid.RLELossless)
    path, reads, dcmread = save(tmp_path / "m.dcm", image), [], pydicom.dcmread
    monkeypatch.setattr(pydicom, "dcmread", lambda *args, **named: reads.append(args) or dcmread(*args, **named))
    assert np.array_equal(dicom.read(path).slices.numpy(), stored.astype(np.float32) - 1024)
    assert len(reads) == 2  # once for what it is, once for its pixels
    assert np.array_equal(dicom.read(path, slice(17, 20)).slices.numpy(), stored[17:20].astype(np.float32) - 1024)


# Names and what the standard asks for


@pytest.mark.parametrize("name", ["山田^太郎", "Müller^Jörg", "Yamada^Tarou=山田^太郎=やまだ^たろう", "Иванов^Иван"])
def test_names_in_any_script_are_kept(name, tmp_path):
    image = sample_files.dicom_image(0)
    image.SpecificCharacterSet, image.PatientName = "ISO_IR 192", name
    volume = dicom.read(save(tmp_path / "in.dcm", image))
    assert volume.identity["PatientName"] == name
    dicom.write(tmp_path / "out.dcm", volume, modality="CT", description="größer")
    written = pydicom.dcmread(tmp_path / "out.dcm")
    assert (written.PatientName, written.DerivationDescription) == (name, "größer")
    assert written.SpecificCharacterSet == "ISO_IR 192"


def test_a_name_in_another_character_set_is_kept_too(tmp_path):
    image = sample_files.dicom_image(0)
    image.SpecificCharacterSet, image.PatientName = "ISO_IR 100", "Müller^Jörg"
    dicom.write(tmp_path / "o.dcm", dicom.read(save(tmp_path / "i.dcm", image)), modality="CT", description="")
    assert pydicom.dcmread(tmp_path / "o.dcm").PatientName == "Müller^Jörg"


TYPE_1 = (
    *("SOPClassUID", "SOPInstanceUID", "StudyInstanceUID", "SeriesInstanceUID", "Modality", "ConversionType"),
    *("SamplesPerPixel", "PhotometricInterpretation", "Rows", "Columns", "BitsAllocated", "BitsStored", "HighBit"),
    *("PixelRepresentation", "PixelData", "RescaleSlope", "RescaleIntercept", "RescaleType"),
)
TYPE_2 = (
    *("PatientName", "PatientID", "PatientBirthDate", "PatientSex", "StudyDate", "StudyTime", "AccessionNumber"),
    *("ReferringPhysicianName", "StudyID", "SeriesNumber", "InstanceNumber", "Laterality", "PatientOrientation"),
)
"""Of the modules of a secondary capture: attributes with a value, and attributes that may be empty (2 and 2C)."""


@pytest.mark.parametrize("affine", [None, torch.eye(4, dtype=torch.float64)])
def test_every_attribute_that_the_standard_asks_for_is_there(affine, tmp_path):
    dicom.write(tmp_path / "o.dcm", Volume(torch.rand(1, 4, 5), affine), modality="MR", description="derived")
    written = pydicom.dcmread(tmp_path / "o.dcm")
    assert [key for key in TYPE_1 if written.get(key) in (None, "")] == []
    assert [key for key in TYPE_2 if key not in written] == []


@pytest.mark.filterwarnings("ignore:The value length")
def test_odd_values_of_the_input_are_copied_and_stop_nothing(tmp_path):
    identity = {"PatientSex": "x" * 40, "StudyDate": "20201", "PatientID": "7" * 200}
    dicom.write(tmp_path / "o.dcm", Volume(torch.rand(1, 4, 5), identity=identity), modality="MR", description="")
    assert pydicom.dcmread(tmp_path / "o.dcm").PatientID == "7" * 200

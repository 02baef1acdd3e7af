"""Raw data of Siemens scanners: files in the layout of VB are written here, as pymapvbvd only reads."""

from pathlib import Path

import numpy as np
import pytest
import torch

import lipspline as ls
from lipspline.formats import mri
from lipspline.formats.validation import FileError

pytest.importorskip("mapvbvd", reason="pymapvbvd, extra siemens, is not installed")
HEADER = 10240  # bytes; a shorter one would be that of another version
COUNTERS = ("Lin", "Ave", "Sli", "Par", "Eco", "Phs", "Rep", "Set", "Seg")
LAST, NOISE, BACKWARDS = 0, 25, 24
SLICES, COILS, ROWS, COLUMNS = 2, 3, 16, 12


def kspace(seed: int = 0) -> np.ndarray:
    draw = np.random.default_rng(seed)
    parts = draw.normal(size=(2, SLICES, COILS, ROWS, COLUMNS)).astype(np.float32)
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


def line(
    samples: np.ndarray, *, bits: tuple[int, ...] = (), middle=(ROWS // 2, COLUMNS // 2, 0), **counters: int
) -> bytes:
    """One readout (C, samples): 128 bytes before the samples of each coil."""
    head = np.zeros(128, dtype=np.uint8)
    head[20:24] = np.array([sum(1 << bit for bit in bits)], dtype="<u4").view(np.uint8)
    loops = [counters.get(name, 0) for name in COUNTERS] + [0] * 5
    head[28:60] = np.array([samples.shape[1], samples.shape[0], *loops], dtype="<u2").view(np.uint8)
    head[64:66] = np.array([middle[0]], dtype="<u2").view(np.uint8)
    head[76:80] = np.array(middle[1:], dtype="<u2").view(np.uint8)
    head[:3] = np.array([samples.shape[0] * (128 + 8 * samples.shape[1])], dtype="<u4").view(np.uint8)[:3]
    return b"".join(head.tobytes() + coil.astype("<c8").tobytes() for coil in samples)


def write(path: Path, lines: list[bytes], buffers: bytes = b"", count: int = 0) -> Path:
    header = np.array([HEADER, count], dtype="<u4").tobytes() + buffers
    end = line(np.zeros((1, 16), dtype=np.complex64), bits=(LAST,))
    path.write_bytes(header.ljust(HEADER, b"\0") + b"".join(lines) + end)
    return path


def plain_lines(data: np.ndarray, columns=range(COLUMNS), **counters: int) -> list[bytes]:
    return [line(data[s, :, :, c], Lin=c, Sli=s, **counters) for c in columns for s in range(len(data))]


def test_lines_are_sorted_into_kspace(tmp_path):
    found = mri.read(write(tmp_path / "raw.dat", plain_lines(kspace())))
    assert isinstance(found, mri.Kspace)
    torch.testing.assert_close(found.data, torch.from_numpy(kspace()))
    assert found.mask.all()
    some = mri.read(tmp_path / "raw.dat", slice(1, 2))
    torch.testing.assert_close(some.data, torch.from_numpy(kspace()[1:]))


def test_averages_noise_and_missing_lines(tmp_path):
    one, other = kspace(), kspace(1)
    columns = [0, 3, 5, 6, 7, 9]
    noise = line(kspace(2)[0, :, :, 0], bits=(NOISE,))
    lines = [noise, *plain_lines(one, columns), *plain_lines(other, columns, Ave=1)]
    found = mri.read(write(tmp_path / "raw.dat", lines))
    expected = torch.zeros(COLUMNS, dtype=torch.bool)
    expected[columns] = True
    assert torch.equal(found.mask, expected)
    torch.testing.assert_close(found.data, torch.from_numpy((one + other) / 2) * expected)
    assert {"Siemens: averages averaged", "Siemens: the noise measurement is not used"} <= set(found.notes)


def test_oversampled_readouts_are_cropped_as_the_header_says(tmp_path):
    text = b'<ParamMap."DICOM"> { <ParamDouble."flReadoutOSFactor"> { <Precision> 6 2.000000 } }'
    buffers = b"Dicom\0" + np.array([len(text)], dtype="<u4").tobytes() + text
    found = mri.read(write(tmp_path / "raw.dat", plain_lines(kspace()), buffers, 1))
    assert found.crop == (ROWS // 2, COLUMNS)
    assert not any("oversampled" in note for note in found.notes)
    plain = mri.read(write(tmp_path / "plain.dat", plain_lines(kspace())))
    assert plain.crop is None
    assert any("does not say how readouts are oversampled" in note for note in plain.notes)


def test_repetitions_and_echoes_are_images_of_their_own(tmp_path):
    lines = [*plain_lines(kspace(), Rep=0), *plain_lines(kspace(1), Rep=1)]
    found = mri.read(write(tmp_path / "raw.dat", lines))
    torch.testing.assert_close(found.data, torch.from_numpy(np.concatenate([kspace(), kspace(1)])))


def test_asymmetric_echoes_lie_around_their_middle(tmp_path):
    """The first five samples were not measured."""
    data = kspace()[:1, :, 5:]
    middle = (ROWS // 2 - 5, COLUMNS // 2, 0)
    lines = [line(data[0, :, :, c], Lin=c, middle=middle) for c in range(COLUMNS)]
    found = mri.read(write(tmp_path / "raw.dat", lines))
    assert found.data.shape == (1, COILS, ROWS, COLUMNS)
    torch.testing.assert_close(found.data[:, :, 5:], torch.from_numpy(data))
    assert not found.data[:, :, :5].any()


def test_partitions_become_slices(tmp_path):
    data = kspace()
    middle = (ROWS // 2, COLUMNS // 2, 1)
    lines = [line(data[p, :, :, c], Lin=c, Par=p, middle=middle) for p in range(2) for c in range(COLUMNS)]
    found = mri.read(write(tmp_path / "raw.dat", lines))
    shifted = np.fft.ifftshift(data, axes=0)
    expected = np.fft.fftshift(np.fft.ifft(shifted, axis=0, norm="ortho"), axes=0)
    torch.testing.assert_close(found.data, torch.from_numpy(expected.astype(np.complex64)), atol=1e-5, rtol=1e-5)


def test_what_is_not_understood_is_refused_in_a_sentence(tmp_path):
    backwards = [line(kspace()[0, :, :, 0], Lin=0, bits=(BACKWARDS,))]
    with pytest.raises(FileError, match="measured backwards"):
        mri.read(write(tmp_path / "epi.dat", backwards))
    moved = [*plain_lines(kspace()), line(kspace()[0, :, :, 0], middle=(3, 6, 0))]
    with pytest.raises(FileError, match="different middles of k-space"):
        mri.read(write(tmp_path / "moved.dat", moved))
    whole = write(tmp_path / "whole.dat", plain_lines(kspace())).read_bytes()
    (tmp_path / "cut.dat").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(FileError, match="ends early"):
        mri.read(tmp_path / "cut.dat")
    (tmp_path / "text.dat").write_text("time 1 2 3\n" * 9)
    with pytest.raises(FileError, match=r"text.dat"):
        mri.read(tmp_path / "text.dat")


def test_the_image_is_that_of_the_array(tmp_path):
    path = write(tmp_path / "raw.dat", plain_lines(kspace()))
    from_file, from_array = (
        ls.reconstruct(data, prior="tv", strength=0.1, max_steps=3).images for data in (path, kspace())
    )
    torch.testing.assert_close(from_file, from_array)

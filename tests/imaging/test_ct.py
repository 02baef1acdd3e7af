"""CT slices as problems: geometry, units, noise."""

import math
from dataclasses import replace

import numpy as np
import pydicom
import pytest
import torch

import lipspline as ls
import sample_files
from lipspline.formats import ct as ct_files
from lipspline.formats.sinograms import Sinograms
from lipspline.formats.volume import Volume
from lipspline.imaging.counts import negative_note, without_rings
from lipspline.imaging.ct import MeasuredCT, Scanner, SimulatedCT
from lipspline.imaging.problem import Iteration, solve_problem
from lipspline.operators import FanBeamCT, ParallelBeamCT, WeightedCT
from lipspline.priors.sparsity import TotalVariation

IMAGES = torch.from_numpy(sample_files.images())
SINOGRAMS = Sinograms(torch.from_numpy(sample_files.sinograms()))


def test_without_a_size_images_have_as_many_pixels_as_there_are_detectors():
    H = MeasuredCT(SINOGRAMS).geometry
    assert (H.size, H.spacing, H.pixel, len(H.angles), H.detectors) == (23, 1.0, 1.0, 12, 23)


def test_a_size_does_not_change_the_spacing_and_a_spacing_is_in_pixels():
    assert MeasuredCT(SINOGRAMS, Scanner(size=20)).geometry.spacing == 1
    H = MeasuredCT(SINOGRAMS, Scanner(size=20, spacing=1.5)).geometry
    assert H.spacing / H.pixel == 1.5
    assert MeasuredCT(SINOGRAMS, Scanner(spacing=2.0)).geometry.size == 46


def test_angles_come_from_the_user_else_from_the_file_else_are_even():
    even = torch.arange(12, dtype=torch.float64) * (math.pi / 12)
    assert torch.equal(MeasuredCT(SINOGRAMS).geometry.angles, even)
    of_file = Sinograms(SINOGRAMS.data, even + 0.1)
    assert torch.equal(MeasuredCT(of_file).geometry.angles, even + 0.1)
    assert torch.equal(MeasuredCT(of_file, Scanner(angles=even + 0.2)).geometry.angles, even + 0.2)
    torch.testing.assert_close(MeasuredCT(SINOGRAMS, Scanner(arc=360)).angles, 2 * even)
    torch.testing.assert_close(MeasuredCT(SINOGRAMS, Scanner(convention="odl")).angles, even + math.pi / 24)
    assert torch.equal(MeasuredCT(of_file, Scanner(every=3)).angles, even[::3] + 0.1)


def test_the_unit_of_the_sinogram_changes_the_scale_and_nothing_else():
    one, other = MeasuredCT(SINOGRAMS).problem(1), MeasuredCT(Sinograms(1e4 * SINOGRAMS.data)).problem(1)
    torch.testing.assert_close(one.y, other.y)
    assert other.scale == pytest.approx(1e4 * one.scale)
    assert 0.5 < float(one.direct.abs().max()) < 2


def test_a_wrong_number_of_angles_is_refused_and_a_turned_sinogram_named():
    with pytest.raises(ValueError, match=r"has 12 rows, but 23 angles are given\. It seems to be turned"):
        MeasuredCT(SINOGRAMS, Scanner(angles=23)).problem(0)
    with pytest.raises(ValueError, match=r"has 12 rows, but 7 angles are given\.$"):
        MeasuredCT(SINOGRAMS, Scanner(angles=7)).problem(0)


def test_simulated_sinograms_are_the_papers_operator_plus_noise():
    square = Volume(torch.rand(2, 64, 64))
    problem = SimulatedCT(square, 40, 60, noise=2.0).problem(1)
    assert problem.truth is not None
    H = ParallelBeamCT.paper(64, angles=40, detectors=60)
    noise = problem.y - H.forward(problem.truth[None, None])
    assert float(noise.std()) == pytest.approx(2.0, rel=0.05)
    assert float(problem.truth.max()) == 1


def test_hounsfield_units_are_undone_in_the_result():
    volume = Volume(1500 * torch.rand(1, 20, 20) - 1000, unit="hounsfield")
    scan = SimulatedCT(volume, 30, 40)
    problem = scan.problem(0)
    assert problem.truth is not None
    torch.testing.assert_close(scan.values(problem.truth, problem.scale), volume.slices[0], atol=1e-3, rtol=0)


def test_images_that_are_no_squares_are_padded_and_cropped():
    scan = SimulatedCT(Volume(IMAGES), 60, 40, noise=0.0)
    problem = scan.problem(0)
    assert problem.direct.shape[-2:] == (20, 20)
    assert problem.truth is not None
    found = problem.image(problem.direct)
    assert found.shape == problem.truth.shape == (20, 16)
    assert float((found - problem.truth).abs().mean()) < 0.1


def test_the_noise_of_a_slice_does_not_depend_on_which_others_are_chosen():
    whole = SimulatedCT(Volume(IMAGES), 12, 30, seed=3).problem(2)
    part = SimulatedCT(Volume(IMAGES[2:]), 12, 30, seed=3, first=2).problem(0)
    assert torch.equal(whole.y, part.y)


def test_air_is_refused():
    with pytest.raises(ValueError, match="zero everywhere"):
        SimulatedCT(Volume(torch.full((1, 16, 16), -1000.0), unit="hounsfield"), 12, 30).problem(0)
    with pytest.raises(ValueError, match="zero everywhere"):
        MeasuredCT(Sinograms(0 * SINOGRAMS.data)).problem(0)


# Conventions of others


def phantom(size):
    """An object without symmetry, inside the circle."""
    image = torch.zeros(size, size)
    image[size // 4 : size // 2, size // 3 : size // 2 + 3] = 1
    image[size // 2 + 2 : size // 2 + 8, size // 2 : 3 * size // 4] = 0.5
    return image


def inside(truth):
    """Where the object is 1, away from its edges."""
    return -torch.nn.functional.max_pool2d(-truth[None, None], 5, 1, 2)[0, 0] == 1


def relative(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.parametrize("size", [64, 65])
@pytest.mark.parametrize("circle", [True, False])
def test_what_radon_returns_comes_out_right_side_up_to_scale_and_better_than_by_iradon(size, circle):
    transform = pytest.importorskip("skimage.transform")
    truth, degrees = phantom(size), np.arange(0, 180, 2.0)
    sinogram = transform.radon(truth.numpy(), degrees, circle=circle)
    scan = MeasuredCT(
        Sinograms(torch.from_numpy(sinogram).float()[None]), Scanner(convention="scikit-image", size=size)
    )
    problem = scan.problem(0)
    ours = scan.values(problem.image(problem.direct), problem.scale)
    theirs = torch.from_numpy(transform.iradon(sinogram, degrees, output_size=size, circle=circle)).float()
    assert ours.shape == (size, size)
    position = torch.arange(size) - size // 2
    seen = position.view(-1, 1).square() + position.square() <= (size // 2) ** 2  # iradon is zero outside the circle
    assert relative(ours[seen], truth[seen]) <= 1.01 * relative(theirs[seen], truth[seen])
    assert relative(problem.H.forward(_placed(truth, problem.H.size)), problem.y * problem.scale) < 0.03


def test_corners_that_a_limited_angle_does_not_see_stay_zero_and_are_counted():
    """What `radon(image, range(30, 90))` returns: two corners of the square are met by no ray."""
    transform = pytest.importorskip("skimage.transform")
    truth, degrees = phantom(64), np.arange(30.0, 90.0)
    sinogram = torch.from_numpy(transform.radon(truth.numpy(), degrees, circle=True)).float()
    scanner = Scanner(convention="scikit-image", angles=torch.from_numpy(degrees * math.pi / 180))
    scan = MeasuredCT(Sinograms(sinogram[None]), scanner)
    problem = scan.problem(0)
    done = solve_problem("tv", problem, TotalVariation(), 1e-3, Iteration(max_steps=20))
    unseen = problem.image(done.solution.value) == 0
    count = int(scan.summary.split("; ")[-1].split(" of 64x64 pixels are met by no ray and stay zero")[0])
    assert 0 < count <= int(unseen.sum())
    assert "no ray" not in MeasuredCT(Sinograms(sinogram.mT[None]), Scanner(angles=60)).summary


def _placed(image, size):
    """An image of even size in one that is a pixel larger, so that pixel N // 2 is in the middle."""
    padded = torch.zeros(1, 1, size, size)
    padded[..., : image.shape[0], : image.shape[1]] = image
    return padded


def test_a_turned_sinogram_is_refused_and_transposed_on_request():
    truth = phantom(48)
    H = ParallelBeamCT(48, 90, 48, spacing=1.0)
    y = H.forward(truth[None, None])[0]
    with pytest.raises(ValueError, match=r"vary by \d+ % of their mean .* \(give convention=scikit-image for"):
        MeasuredCT(Sinograms(y.mT)).problem(0)
    with pytest.raises(ValueError, match=r"turned: give convention=scikit-image .* or transpose=True for other data"):
        MeasuredCT(Sinograms(y.mT), Scanner(angles=90)).problem(0)
    scan = MeasuredCT(Sinograms(y.mT), Scanner(transpose=True))
    torch.testing.assert_close(scan.problem(0).y, MeasuredCT(Sinograms(y)).problem(0).y)


def test_the_angles_of_odl_lie_in_the_middle_of_their_cells():
    truth, angles = phantom(48), (torch.arange(60, dtype=torch.float64) + 0.5) * (math.pi / 60)
    y = ParallelBeamCT(48, angles, 48, spacing=1.0).forward(truth[None, None])[0]
    problem = MeasuredCT(Sinograms(y), Scanner(convention="odl")).problem(0)
    assert relative(problem.H.forward(truth[None, None]), problem.y * problem.scale) < 1e-5


# Units and fans


def fan_scan(**options):
    truth, angles = phantom(48), torch.arange(120, dtype=torch.float64) * (2 * math.pi / 120)
    distances = {"source_origin": 40.0, "source_detector": 60.0}
    H = FanBeamCT(48, angles, 80, 0.3, **distances, pixel=0.2)
    sinograms = Sinograms(0.02 * H.forward(truth[None, None])[0], angles, **distances, pixel=0.3)
    return truth, MeasuredCT(sinograms, Scanner(**options))


def test_a_fan_gives_attenuation_per_millimetre():
    truth, scan = fan_scan(size=48)
    problem = scan.problem(0)
    assert isinstance(problem.H, FanBeamCT)
    assert problem.H.pixel == pytest.approx(0.2)
    image = scan.values(problem.image(problem.direct), problem.scale)
    assert float(image[inside(truth)].mean()) == pytest.approx(0.02, rel=0.03)
    assert "fan beam" in scan.summary
    assert "pixels of 0.2 mm" in scan.summary


def test_the_attenuation_of_water_gives_hounsfield_units():
    truth, scan = fan_scan(size=48, water=0.02)
    problem = scan.problem(0)
    image = scan.values(problem.image(problem.direct), problem.scale)
    assert scan.unit == "hounsfield"
    assert abs(float(image[inside(truth)].mean())) < 30
    assert float(image[:8, :8].mean()) == pytest.approx(-1000, abs=30)


def test_water_per_millimetre_needs_the_size_of_a_pixel():
    """Without it images are per pixel, and values of tens of thousands of Hounsfield units came out."""
    with pytest.raises(ValueError, match="Give pixel_size= in millimetres too, or pixel_size=1 if water= is per pixel"):
        MeasuredCT(SINOGRAMS, Scanner(water=0.02))
    assert MeasuredCT(SINOGRAMS, Scanner(water=0.02, pixel_size=1.0)).unit == "hounsfield"
    assert MeasuredCT(replace(SINOGRAMS, pixel=0.5), Scanner(water=0.02)).unit == "hounsfield"


@pytest.mark.parametrize(("angles", "detectors", "every"), [(1, 40, 1), (40, 7, 1), (4, 40, 4)])
def test_sinograms_of_one_angle_or_few_detectors_are_refused(angles, detectors, every):
    words = f"at least 2 angles and 8 detectors, but there are {-(-angles // every)} and {detectors}"
    with pytest.raises(ValueError, match=words):
        MeasuredCT(Sinograms(torch.ones(1, angles, detectors)), Scanner(every=every))
    assert MeasuredCT(Sinograms(torch.ones(1, 2, 8))).count == 1


def test_line_integrals_of_the_wrong_sign_are_spoken_of():
    assert (
        "their sign may be turned, or -log was not taken"
        in MeasuredCT(replace(SINOGRAMS, data=-SINOGRAMS.data)).summary
    )
    assert "sign" not in MeasuredCT(SINOGRAMS).summary
    noise = torch.randn(1, 30, 40, generator=torch.Generator().manual_seed(0))
    assert not negative_note(noise[0] - 0.01)


def test_attenuations_are_per_millimetre_or_per_pixel():
    assert MeasuredCT(SINOGRAMS, Scanner()).unit == "per pixel"
    assert MeasuredCT(SINOGRAMS, Scanner(pixel_size=0.5)).unit == "per millimetre"


def test_the_place_is_axial_with_the_axis_at_the_origin():
    _, scan = fan_scan(size=48)
    assert scan.affine is not None
    torch.testing.assert_close(scan.affine.diagonal(), torch.tensor([-0.2, -0.2, 0.2, 1.0], dtype=torch.float64))
    middle = scan.affine @ torch.tensor([23.5, 23.5, 0, 1], dtype=torch.float64)
    torch.testing.assert_close(middle, torch.tensor([0.0, 0, 0, 1], dtype=torch.float64))
    assert MeasuredCT(SINOGRAMS).affine is None


def test_a_pixel_size_scales_parallel_beams():
    one = MeasuredCT(SINOGRAMS)
    other = MeasuredCT(SINOGRAMS, Scanner(pixel_size=0.5))
    first, second = (scan.values(p.direct, p.scale) for scan in (one, other) for p in [scan.problem(0)])
    torch.testing.assert_close(second, 2 * first)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"convention": "matlab"}, "convention must be one of"),
        ({"detector": "round"}, "detector must be one of"),
        ({"every": 0}, "every must be at least 1"),
        ({"axis": "left"}, "axis must be one of"),
        ({"axis": math.nan}, "axis must be a detector"),
        ({"source_origin": 10.0}, "Give both source_origin= and source_detector="),
        ({"arc": 360.0, "angles": torch.ones(3)}, "arc= is for angles that are evenly spread"),
        ({"water": -1.0}, "water must be a positive finite number"),
    ],
)
def test_scanners_that_make_no_sense_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        Scanner(**options)


def test_a_fan_needs_the_size_of_its_pixels():
    with pytest.raises(ValueError, match="Give pixel_size= of the detector"):
        MeasuredCT(SINOGRAMS, Scanner(source_origin=400.0, source_detector=600.0))


# Counts


def counted(truth, *, photons=2e4, axis=None, seed=0, arc=math.pi):
    """Photons counted through an object, with a dead detector, zingers, and flat and dark fields."""
    D, A = 96, 120
    axis = (D - 1) / 2 if axis is None else axis
    angles = torch.arange(A, dtype=torch.float64) * (arc / A)
    H = ParallelBeamCT(len(truth), angles, D, 1.0, offset=(D - 1) / 2 - axis)
    stream = torch.Generator().manual_seed(seed)
    flat = photons * (1 + 0.2 * torch.rand(D, generator=stream))
    flat[17] = 0
    dark = torch.full((D,), 100.0)
    mean = flat * torch.exp(-0.05 * H.forward(truth[None, None])[0, 0].float())
    counts = torch.poisson(mean, generator=stream) + dark
    counts[30, 40] += 30 * photons
    counts[77, 60] += 3 * photons
    return Sinograms(counts[None], angles, (flat + dark)[None], dark[None])


def test_counts_give_the_attenuation_with_dead_detectors_and_zingers_left_out():
    truth = phantom(64)
    scan = MeasuredCT(counted(truth), Scanner(size=64, axis="middle"))
    problem = scan.problem(0)
    assert isinstance(problem.H, WeightedCT)
    assert "1 dead detectors, 2 zingers left out" in scan.summary
    weights = problem.H.root[0, 0] if problem.H.root.ndim == 4 else problem.H.root
    assert float(weights[:, 17].max()) == 0
    assert float(weights[30, 40]) == 0
    assert float(weights[77, 60]) == 0
    image = scan.values(problem.image(problem.direct), problem.scale)
    assert float(image[inside(truth)].mean()) == pytest.approx(0.05, rel=0.03)


def test_the_weighted_noise_is_that_of_the_photons():
    """The variance of -log(I/F) is about 1/I; weights are I over its mean: so n² = 1 / mean."""
    truth, found = phantom(64), counted(phantom(64), photons=2e3)
    scan = MeasuredCT(found, Scanner(size=64, axis="middle"))
    problem = scan.problem(0)
    signal = found.data[0] - 100
    usual = float(signal[(signal > 100) & (signal < 4e3)].mean())
    assert problem.noise * problem.scale == pytest.approx(usual**-0.5, rel=0.1)
    misfit = problem.misfit(truth[None, None] * 0.05 / problem.scale)
    assert misfit.value == pytest.approx(misfit.noise, rel=0.2)


@pytest.mark.parametrize("axis", [47.5, 44.2, 55.0])
@pytest.mark.parametrize("arc", [math.pi, 2 * math.pi])
def test_the_axis_of_rotation_is_found_with_its_uncertainty(axis, arc):
    scan = MeasuredCT(counted(phantom(64), axis=axis, arc=arc), Scanner(size=64))
    assert scan.axis.uncertainty is not None
    assert abs(scan.axis.column - axis) <= max(0.15, 2 * scan.axis.uncertainty)
    assert scan.axis.uncertainty <= 0.3
    assert "estimated from the data" in scan.summary


@pytest.mark.parametrize(("spacing", "size"), [(0.5, 48), (1 / 3, 32), (2.0, 192)])
def test_the_axis_is_found_whatever_the_pixels_of_the_image(spacing, size):
    """It was looked for in an image that the detectors did not cover."""
    found = counted(phantom(64), axis=44.2)
    axis = MeasuredCT(found, Scanner(size=size, spacing=spacing)).axis
    assert axis.uncertainty is not None
    assert axis.column == MeasuredCT(found, Scanner(size=64)).axis.column


def test_the_axis_of_a_fan_is_found():
    truth, angles = phantom(64), torch.arange(120, dtype=torch.float64) * (2 * math.pi / 120)
    distances = {"source_origin": 200.0, "source_detector": 300.0}
    H = FanBeamCT(64, angles, 96, 1.5, **distances, offset=1.5 * (47.5 - 50.3))
    sinograms = Sinograms(H.forward(truth[None, None])[0], angles, **distances, pixel=1.5)
    found = MeasuredCT(sinograms, Scanner(axis="auto", size=64)).axis
    assert found.column == pytest.approx(50.3, abs=0.15)


def test_too_small_an_arc_says_that_the_axis_is_assumed():
    scan = MeasuredCT(counted(phantom(64), arc=1.5), Scanner(size=64))
    assert scan.axis.uncertainty is None
    assert "cover too little" in scan.axis.how


def test_every_second_angle_of_counts():
    whole, half = (MeasuredCT(counted(phantom(64)), Scanner(size=64, axis="middle", every=k)) for k in (1, 2))
    assert half.problem(0).y.shape[-2] == 60
    assert relative(half.problem(0).direct, whole.problem(0).direct) < 1


def test_counts_without_a_beam_are_refused():
    ones = torch.ones(1, 5, 8)
    with pytest.raises(ValueError, match="flat field is not above the dark field"):
        MeasuredCT(Sinograms(ones, None, ones[:, 0], ones[:, 0])).problem(0)
    with pytest.raises(ValueError, match="Every detector is dead"):
        MeasuredCT(Sinograms(ones, None, 2 * ones[:, 0])).problem(0)


# Rings


def test_removing_rings_is_linear_and_enlarges_nothing():
    basis = torch.eye(4 * 13, dtype=torch.float64).view(-1, 4, 13)
    matrix = torch.stack([without_rings(y).flatten() for y in basis], dim=1)
    values = torch.linalg.eigvalsh(matrix)
    torch.testing.assert_close(matrix, matrix.T)
    assert values.min() >= -1e-12
    assert values.max() <= 1 + 1e-12


def test_detectors_whose_gain_is_off_draw_no_rings():
    """Of an object that is not centred: the image with gain errors, corrected, is nearer to the one without them."""
    H = ParallelBeamCT(192, 90, 192, spacing=1.0)
    position = torch.arange(192) - 95.5
    disk = ((position - 27).square() + (position.view(-1, 1) + 12).square() < 45**2).float()
    clean = H.forward(disk[None, None])[0, 0]
    off = 0.5 * torch.randn(192, generator=torch.Generator().manual_seed(0))
    wrong, right = (
        MeasuredCT(Sinograms((clean + off)[None]), Scanner(rings=rings)).problem(0) for rings in (False, True)
    )
    truth = MeasuredCT(Sinograms(clean[None])).problem(0)
    errors = [float((p.direct * p.scale - truth.direct * truth.scale).norm()) for p in (wrong, right)]
    assert errors[1] < 0.4 * errors[0]
    assert "rings removed" in MeasuredCT(SINOGRAMS, Scanner(rings=True)).summary


# Units and place, from a sinogram to files


@pytest.mark.parametrize(("prior", "words"), [("tv", "Minimum with tv."), ("lls", "Plug-and-play, lls.")])
def test_dicom_says_how_its_image_was_made(prior, words, tmp_path):
    done = ls.reconstruct(sample_files.sinograms()[:1], acquisition="ct", prior=prior, noise=15, max_steps=2)
    done.save(tmp_path / "out.dcm")
    assert words in pydicom.dcmread(tmp_path / "out.dcm").SeriesDescription


@pytest.mark.parametrize("name", ["image.nii.gz", "series"])
def test_an_object_is_where_it_was_in_millimetres_and_has_its_hounsfield_units(name, tmp_path):
    """A disc of twice the attenuation of water, 6 mm to the right and 9 mm up on the screen, pixels of 0.5 mm."""
    H = ParallelBeamCT(96, 120, 96, spacing=0.5, pixel=0.5)
    position = (torch.arange(96) - 47.5) * 0.5
    disk = ((position - 6).square() + (-position.view(-1, 1) - 9).square() < 5**2).float()
    sinogram = 0.04 * H.forward(disk[None, None])[0, 0]
    scanner = ls.ScannerCT(pixel_size=0.5, water=0.02)
    done = ls.reconstruct(sinogram, acquisition=scanner, prior="tv", max_steps=60)
    done.save(tmp_path / name)
    found = ct_files.read(tmp_path / name)
    assert found.unit == "hounsfield"
    assert found.voxel == pytest.approx((0.5, 0.5, 0.5))
    image = found.slices[0]
    bright = image > 0
    rows, columns = (torch.nonzero(bright).double().mean(dim=0)).tolist()
    left, front, _, _ = (found.affine @ torch.tensor([columns, rows, 0, 1], dtype=torch.float64)).tolist()
    assert (left, front) == pytest.approx((-6, 9), abs=0.1)  # the right of the screen is the left of the patient
    assert float(image[bright].median()) == pytest.approx(1000, abs=20)
    assert float(image[~bright].median()) == pytest.approx(-1000, abs=10)
    assert float(image.min()) >= -1000.1  # attenuation is never negative


def over(degrees, rows=60):
    return torch.linspace(0, degrees, rows + 1, dtype=torch.float64)[:-1] * math.pi / 180


@pytest.mark.parametrize(
    ("angles", "share"),
    [
        (over(180), None),
        (over(360), None),
        (over(90), "90 of the 180 degrees that parallel beams need (50 %)"),
        (torch.cat([over(45, 30), over(45, 30) + math.pi]), "45 of the 180 degrees"),  # the same rays twice
        (torch.arange(60) * 1.9416, None),  # by the golden angle
    ],
)
def test_a_limited_angle_is_said_with_what_is_needed(angles, share):
    scan = MeasuredCT(Sinograms(torch.ones(1, 60, 23), angles))
    assert (not scan.notes) if share is None else (share in scan.notes[0] and "comes from the prior" in scan.notes[0])


def test_a_fan_needs_half_a_turn_and_its_own_angle():
    for arc, needed in ((360.0, None), (200.0, None), (90.0, "degrees that a fan of")):
        notes = fan_scan(arc=arc)[1].notes
        assert (notes == ()) if needed is None else (needed in notes[0])


def test_few_projections_are_said_with_the_numbers_of_measurements_and_pixels():
    notes = MeasuredCT(Sinograms(torch.ones(1, 4, 64))).notes
    assert notes[0].startswith("4 projections are few: 256 numbers were measured for 3,217 pixels")
    assert SimulatedCT(Volume(IMAGES), 180, 40).notes == ()


def test_counts_without_a_flat_field_are_not_taken_for_line_integrals():
    counts = torch.randint(500, 900, (2, 20, 24), generator=torch.Generator().manual_seed(0)).float()
    with pytest.raises(ValueError, match=r"Slice 3 holds whole numbers up to 89\d, which are counts rather than line"):
        MeasuredCT(Sinograms(counts), Scanner(), 2).problem(1)
    MeasuredCT(Sinograms(counts + 0.5), Scanner()).problem(1)
    MeasuredCT(Sinograms(torch.randint(0, 20, (1, 20, 24)).float()), Scanner()).problem(0)


def test_angles_that_nobody_names_are_said_to_be_guessed():
    data = torch.rand(1, 20, 24)
    assert "20 angles taken to be evenly spread over 180 degrees, 24" in MeasuredCT(Sinograms(data), Scanner()).summary
    fan = Scanner(source_origin=100, source_detector=150, pixel_size=0.2)
    assert "over 360 degrees" in MeasuredCT(Sinograms(data), fan).summary
    for found, scanner in (
        (Sinograms(data, torch.linspace(0, 3, 20)), Scanner()),
        (Sinograms(data), Scanner(arc=180)),
        (Sinograms(data), Scanner(angles=20)),
    ):
        assert "20 angles, 24 detectors" in MeasuredCT(found, scanner).summary


def test_a_curved_detector_without_a_fan_is_refused():
    with pytest.raises(ValueError, match="detector= is for fans"):
        MeasuredCT(Sinograms(torch.rand(1, 20, 24)), Scanner(detector="curved"))


def radon_of(truth, degrees):
    transform = pytest.importorskip("skimage.transform")
    return torch.from_numpy(transform.radon(truth.numpy(), degrees)).float()


@pytest.mark.parametrize("arc", [None, 180])
def test_what_radon_returns_may_have_been_turned_before_it_was_saved(arc):
    sinogram = radon_of(phantom(64), np.arange(0, 180, 3.0))
    scanner = Scanner(convention="scikit-image", arc=arc)
    as_returned, turned = (MeasuredCT(Sinograms(y[None]), scanner) for y in (sinogram, sinogram.mT))
    torch.testing.assert_close(turned.problem(0).direct, as_returned.problem(0).direct)
    assert turned.summary == as_returned.summary


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_evenly_spread_angles_of_a_whole_turn_are_noticed(noise):
    sinogram = radon_of(phantom(64), np.arange(0, 360, 3.0))
    sinogram += noise * torch.randn(sinogram.shape, generator=torch.Generator().manual_seed(0))
    scan = MeasuredCT(Sinograms(sinogram[None]), Scanner(convention="scikit-image"))
    known = MeasuredCT(Sinograms(sinogram[None]), Scanner(convention="scikit-image", arc=360))
    torch.testing.assert_close(scan.problem(0).direct, known.problem(0).direct)
    assert "the second half mirrors the first, taken to be evenly spread over 360 degrees" in scan.summary
    half = MeasuredCT(Sinograms(sinogram[None, :, :60]), Scanner(convention="scikit-image"))
    assert "evenly spread over 180 degrees" in half.summary


def test_an_object_that_looks_the_same_from_both_sides_does_not_decide_about_the_turn():
    disc = (torch.linspace(-1, 1, 64).view(-1, 1) ** 2 + torch.linspace(-1, 1, 64) ** 2 < 0.5).float()
    square = torch.zeros(64, 64)
    square[16:48, 16:48] = 1
    for truth in (disc, square):
        y = ParallelBeamCT(64, 60, 64, spacing=1.0).forward(truth[None, None])[0]
        y = y + 0.3 * torch.randn(y.shape, generator=torch.Generator().manual_seed(0))
        assert "over 180 degrees" in MeasuredCT(Sinograms(y)).summary


def test_an_axis_beside_the_middle_of_line_integrals_is_spoken_of():
    sinogram = radon_of(phantom(64), np.arange(0, 180, 3.0)).mT
    noisy = sinogram + 0.3 * torch.randn(sinogram.shape, generator=torch.Generator().manual_seed(0))
    for y in (sinogram, noisy):
        (note,) = MeasuredCT(Sinograms(y[None])).notes
        assert "put the axis of rotation at detector 3" in note
        assert "taken to be in the middle, at 31.5," in note
        for known in (Scanner(convention="scikit-image"), Scanner(axis=32), Scanner(axis="middle")):
            assert MeasuredCT(Sinograms(y[None]), known).notes == ()
    centred = ParallelBeamCT(64, 60, 64, spacing=1.0).forward(phantom(64)[None, None])[0]
    assert MeasuredCT(Sinograms(centred + noisy - sinogram)).notes == ()

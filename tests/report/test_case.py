"""What a page shows of a problem."""

import math
import re
from dataclasses import replace

import pytest
import torch

from lipspline.functional.quality import object_mask, psnr, ssim
from lipspline.report import Case, DataMisfit, Picture, Rescale
from lipspline.report.drawing import asset, robust_window
from lipspline.report.section import case_section


def test_the_reference_comes_first_and_is_what_errors_are_against(case):
    assert [picture.name for picture in case.shown()] == ["Reference", "Zero-filled", "Plain", "Fast"]
    for picture, error in case.errors():
        torch.testing.assert_close(error, (picture.image - case.reference)[0, 0].abs().double())


def test_without_reference_differences_are_to_the_first_picture(case):
    alone = Case("Alone", case.pictures)
    assert [picture.name for picture, _ in alone.errors()] == ["Plain", "Fast"]
    assert alone.quality(case.pictures[0]) is None
    assert alone.window().high == robust_window(case.pictures[-1].image[0, 0]).high


def test_quality_is_psnr_and_ssim_in_units_of_the_brightest_value(case):
    picture = case.pictures[1]
    pair = picture.image / 0.8, case.reference / 0.8  # the brightest value of the reference counts as 1
    wanted = (psnr(*pair).item(), ssim(*pair).item())
    assert case.quality(picture) == pytest.approx(wanted, rel=1e-6)


def test_quality_of_complex_images_is_that_of_the_modulus(case):
    turned = Picture("Turned", case.pictures[1].image.abs() * 1j)
    plain = Picture("Plain", case.pictures[1].image.abs())
    assert case.quality(turned) == pytest.approx(case.quality(plain))


def test_tiny_images_have_no_quality():
    assert (
        Case("Tiny", (Picture("x", torch.zeros(3, 3)),), torch.ones(3, 3)).quality(Picture("x", torch.ones(3, 3)))
        is None
    )


def test_equal_images_have_infinite_psnr():
    image = torch.rand(8, 8)
    assert Case("Same", (Picture("x", image),), image).quality(Picture("x", image))[0] == math.inf


def test_pictures_of_different_sizes_are_refused():
    with pytest.raises(ValueError, match=r"'Odd' have different sizes: \[\(8, 8\), \(8, 9\)\]\."):
        Case("Odd", (Picture("a", torch.zeros(8, 8)), Picture("b", torch.zeros(8, 9))))


def test_a_case_without_pictures_is_refused():
    with pytest.raises(ValueError, match="'Empty' has no picture"):
        Case("Empty", ())


def knee(bright: float) -> Case:
    """An image in [0, 1] with one pixel in a thousand far brighter."""
    image = torch.linspace(0, 1, 4000).view(40, 100)
    image[0, :4] = bright
    return Case("Knee", (Picture("x", image),))


@pytest.mark.parametrize("bright", [1.0, 3.0, 50.0])
def test_a_few_bright_pixels_do_not_turn_the_rest_black(bright):
    """One in 200 lies above the window that is shown first; the page has shades for 1.6 times that."""
    shown, stored = knee(bright).window(), knee(bright).stored_window()
    values = knee(bright).pictures[0].pixels
    assert shown.low == stored.low == 0
    assert (values > shown.high).sum() == len(values.flatten()) // 200 - 1
    assert stored.high == pytest.approx(min(bright, 1.6 * shown.high))


def test_hounsfield_units_are_shown_in_the_window_of_soft_tissue():
    """x = 1 is water: 0 HU; x = 0 is air."""
    case = Case("Abdomen", (Picture("x", torch.rand(8, 8) * 2),), rescale=Rescale(1000.0, -1000.0, "HU"))
    window = case.window()
    assert (window.low, window.high) == pytest.approx((0.84, 1.24))
    assert case.stored_window().low == pytest.approx(0.0)
    section = case_section(case, 0)
    assert 'data-low="-1000"' in section
    assert all(name in section for name in ("Soft tissue", "Lung", "Bone", "Brain"))


def test_errors_are_in_the_unit_of_the_images():
    truth = torch.ones(8, 8)
    case = Case("Abdomen", (Picture("x", truth + 0.25),), reference=truth, rescale=Rescale(1000.0, -1000.0, "HU"))
    assert "Colours from 0 to 250 HU" in case_section(case, 0)


def test_a_phantom_without_soft_tissue_is_shown_from_air_up():
    image = torch.full((8, 8), 0.2)
    image[:, :4] = 0
    case = Case("Phantom", (Picture("x", image),), rescale=Rescale(1000.0, -1000.0, "HU"))
    assert (case.window().low, case.window().high) == pytest.approx((0.0, 0.2))


def test_images_without_hounsfield_units_have_no_such_presets(case):
    assert "Soft tissue" not in case_section(case, 0)


def test_columns_of_which_nothing_is_known_are_left_out():
    bare = Case("Bare", (Picture("x", torch.rand(8, 8)), Picture("y", torch.rand(8, 8), seconds=1.0)))
    section = case_section(bare, 0)
    assert re.findall(r'<th scope="col">([^<]*)</th>', section) == ["", "Time"]
    assert "–" not in section


def test_a_misfit_that_noise_cannot_explain_takes_the_ticks_away(case):
    """The same certificate, with data that the image does and does not predict."""
    for misfit, ticks in ((DataMisfit(0.012, 0.01), True), (DataMisfit(0.07, 0.01), False)):
        last = replace(case.pictures[-1], misfit=misfit)
        section = case_section(replace(case, pictures=(*case.pictures[:-1], last)), 0)
        verdict = section[section.index('class="verdict"') : section.index('class="bench"')]
        assert ('class="good"' in verdict) == ticks
        assert ("Noise cannot explain" in verdict) == (not ticks)
        assert ("Check angles, rotation axis" in section) == (not ticks)
        assert f"{100 * misfit.value:g}<small> %</small>" in section


def test_noise_that_is_hardly_possible_takes_the_ticks_away(case):
    last = replace(case.pictures[-1], misfit=DataMisfit(0.35, 0.38, estimated=True))
    section = case_section(replace(case, pictures=(*case.pictures[:-1], last)), 0)
    assert "The noise seems to be 38 % of the measurements, which is hardly possible" in section
    assert 'class="good"' not in section


def test_notes_stand_above_the_ticks(case):
    section = case_section(replace(case, notes=("Half of the angles are missing.",)), 0)
    assert section.index("Half of the angles are missing.") < section.index('class="verdict"')


def test_a_measured_reference_gives_scores_within_the_object(case):
    measured = replace(case, reference_measured=True)
    section = case_section(measured, 0)
    assert re.findall(r'<th scope="col">([^<]*object)</th>', section) == ["PSNR, object", "SSIM, object"]
    assert "over the pixels of the object only (profile paper)" in section
    truth = case.reference[0, 0].double()
    peak = truth.max()
    pair = (case.pictures[1].image.double() / peak, truth[None, None] / peak)
    wanted = [float(score(*pair, within=object_mask(truth))) for score in (psnr, ssim)]
    assert measured.quality(case.pictures[1]) == pytest.approx(wanted)


def test_held_out_is_explained_where_it_is_shown(case):
    held = replace(case, pictures=(*case.pictures[:-1], replace(case.pictures[-1], held_out=DataMisfit(0.1, 0.1))))
    assert "Held out: the same for measurements that were left out" in case_section(held, 0)
    assert "Held out" not in case_section(case, 0)


def test_the_colours_of_errors_span_the_results_and_not_the_direct_image(case):
    """Else the map of a good result is black."""
    poor = replace(case.pictures[0], image=case.pictures[0].image + 3)
    poorly = replace(case, pictures=(poor, *case.pictures[1:]))
    errors = {picture.name: float(error.max()) for picture, error in poorly.errors()}
    assert errors["Zero-filled"] > 2
    top = f"{max(errors['Plain'], errors['Fast']):.3g}"
    assert f'aria-label="Colours from 0 to {top}"' in case_section(poorly, 0)


def test_every_number_has_its_label_for_narrow_screens(case):
    section = case_section(case, 0)
    assert 'data-label="PSNR"' in section
    assert 'data-label="Steps"' in section
    assert "content: attr(data-label)" in asset("page.css")

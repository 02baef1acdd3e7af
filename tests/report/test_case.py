"""What a page shows of a problem."""

import math

import pytest
import torch

from lipspline.functional.quality import psnr, ssim
from lipspline.report import Case, Picture


def test_the_reference_comes_first_and_is_what_errors_are_against(case):
    assert [picture.name for picture in case.shown()] == ["Reference", "Zero-filled", "Plain", "Fast"]
    for picture, error in case.errors():
        torch.testing.assert_close(error, (picture.image - case.reference)[0, 0].abs().double())


def test_without_reference_differences_are_to_the_first_picture(case):
    alone = Case("Alone", case.pictures)
    assert [picture.name for picture, _ in alone.errors()] == ["Plain", "Fast"]
    assert alone.quality(case.pictures[0]) is None
    assert alone.window().high == pytest.approx(float(case.pictures[-1].image.max()))


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

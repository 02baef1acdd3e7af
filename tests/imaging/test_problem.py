"""One slice as a problem: its scale, its wanted part, its quality."""

import torch

from lipspline.functional.quality import psnr, ssim
from lipspline.imaging.problem import Problem, brightness, middle
from lipspline.operators import Identity


def test_brightness_is_the_value_one_pixel_in_a_thousand_exceeds():
    values = torch.arange(10000.0)[torch.randperm(10000)].view(100, 100)
    assert brightness(values) == 9990
    assert brightness(torch.tensor([3.0, -4.0])) == 4
    assert brightness(torch.tensor([3 + 4j])) == 5


def test_the_middle_is_where_frequency_zero_and_the_centre_of_an_image_are():
    image = torch.zeros(9, 12)
    image[4, 6] = 1
    for size in ((3, 4), (4, 3), (9, 12), (1, 1)):
        part = middle(image, size)
        assert part.shape == size
        assert part[size[0] // 2, size[1] // 2] == 1


def test_quality_is_that_of_the_cropped_modulus_in_units_of_the_maximum_of_the_truth():
    truth = 0.3 * torch.rand(12, 10)
    x = torch.zeros(1, 1, 16, 10, dtype=torch.complex64)
    x[0, 0, 2:14] = -(truth + 0.01 * torch.randn(12, 10)).clamp_min(0)
    problem = Problem(x, Identity((1, 16, 10)), x, 7.0, 0.0, crop=(12, 10), truth=truth)
    pair = (x[0, 0, 2:14].abs()[None, None] / truth.max(), truth[None, None] / truth.max())
    assert problem.quality(x) == {"psnr": float(psnr(*pair)), "ssim": float(ssim(*pair))}
    assert Problem(x, Identity((1, 16, 10)), x, 7.0, 0.0).quality(x) == {}

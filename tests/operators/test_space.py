"""Shapes, real or complex numbers and batch sizes, and when two of them agree."""

import torch

from lipspline.operators import Space


def test_an_open_size_accepts_any_and_a_fixed_one_only_itself():
    fixed, open_ = Space((1, 4, 6)), Space((1, None, 6))
    assert fixed.fits_into(open_)
    assert not open_.fits_into(fixed)
    assert fixed.meet(open_) == fixed


def test_complex_data_do_not_fit_where_real_numbers_are_wanted():
    real, complex_, either = (Space((3,), field) for field in ("real", "complex", "any"))
    assert not complex_.fits_into(real)
    assert real.fits_into(complex_)
    assert real.meet(complex_) is None
    assert either.meet(complex_) == complex_


def test_spaces_of_another_rank_size_or_batch_do_not_meet():
    assert Space((3,)).meet(Space((3, 1))) is None
    assert Space((3,)).meet(Space((4,))) is None
    assert Space((3,), batch=2).meet(Space((3,), batch=5)) is None
    assert Space((3,), batch=2).meet(Space((3,))) == Space((3,), batch=2)


def test_a_sample_lies_in_its_space_and_is_the_same_for_one_seed():
    space = Space((2, None), "complex", batch=3)
    x = space.sample(seed=4)
    assert x.shape == (3, 2, 1)
    assert x.dtype == torch.complex128
    assert space.check("test", x) is x
    assert torch.equal(x, space.sample(seed=4))

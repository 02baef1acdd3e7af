"""Identity and inpainting."""

import pytest
import torch
from operator_cases import random

from lipspline.operators import Identity, Inpainting


def test_the_identity_returns_its_input():
    x = random(2, 1, 3, 4)
    H = Identity((1, 3, 4))
    assert H.forward(x) is x
    assert H.adjoint(x) is x
    assert H.norm_bounds() == (1.0, 1.0)
    assert H.smallest_singular_value() == 1.0


def test_inpainting_keeps_what_the_mask_shows():
    mask = torch.tensor([[[True, False], [False, True]]])
    y = Inpainting(mask).forward(torch.ones(1, 1, 2, 2))
    assert torch.equal(y[0], mask.float())
    assert Inpainting(mask).norm_bounds() == (1.0, 1.0)


def test_inpainting_is_injective_only_if_all_is_seen():
    """[eq:H_invert]"""
    assert Inpainting(torch.ones(3, dtype=torch.bool)).smallest_singular_value() == 1.0
    assert Inpainting(torch.tensor([True, False])).smallest_singular_value() is None


def test_nonsense_is_refused():
    with pytest.raises(ValueError, match="nothing would be measured"):
        Inpainting(torch.zeros(1, 3, 3, dtype=torch.bool))
    with pytest.raises(ValueError, match=r"needs a bool mask, but got torch\.float32\. Convert with mask != 0"):
        Inpainting(torch.ones(1, 3, 3))
    with pytest.raises(ValueError, match="must be at least 1, but is 0"):
        Identity((1, 0, 3))

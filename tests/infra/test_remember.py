"""Numbers remembered by the values of a tensor."""

import torch

from lipspline._infra.devices import remembered


def counted():
    """A remembered sum, and the list of tensors it was really computed for."""
    calls = []

    def total(x):
        calls.append(x.clone())
        return float(x.double().sum())

    return total, calls


def test_equal_values_are_computed_once():
    total, calls = counted()
    known = remembered(total)
    x = torch.randn(3, 4)
    assert known(x) == known(x.clone()) == known(x.t().contiguous().t()) == total(x)
    assert len(calls) == 2


def test_any_change_of_values_type_or_shape_is_noticed():
    total, calls = counted()
    known = remembered(total)
    x = torch.ones(2, 3)
    assert known(x) == 6
    x.data[0, 0] = 5  # autograd's counter does not see this
    assert known(x) == 10
    for other in (x.double(), x.reshape(3, 2), x.flatten()):
        known(other)
    assert len(calls) == 5


def test_only_the_last_results_are_kept():
    total, calls = counted()
    known = remembered(total, size=2)
    tensors = [torch.full((2,), float(i)) for i in range(3)]
    for x in (*tensors, tensors[2], tensors[1]):
        known(x)
    assert len(calls) == 3
    known(tensors[0])
    assert len(calls) == 4

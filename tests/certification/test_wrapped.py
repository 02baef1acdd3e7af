"""Models within wrappers of torch: looked into where the wrapper adds nothing, and refused where it does."""

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel

import lipspline as ls
from lipspline.certification import estimate_lower


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(ls.nn.linear(3, 4), ls.nn.LinearSpline(4, init="abs"), ls.nn.linear(4, 2))


WRAPPERS = {
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "parallel": nn.DataParallel,
    "averaged": AveragedModel,
    "twice": lambda model: AveragedModel(nn.DataParallel(model)),
}


@pytest.mark.parametrize("name", WRAPPERS)
@pytest.mark.parametrize("shape", [None, (3,), torch.ones(2, 3)], ids=["none", "shape", "example"])
def test_a_wrapper_changes_nothing(name: str, shape):
    expected, seen = (ls.certify(model, shape) for model in (network(), WRAPPERS[name](network())))
    assert seen == expected
    assert ls.certify(ls.plain(WRAPPERS[name](network()))).upper <= 1


def test_a_distributed_model_has_both_bounds(group):
    """Its copy cannot be made: what is inside is copied."""
    model = nn.parallel.DistributedDataParallel(network())
    assert ls.certify(model, (3,)) == ls.certify(network(), (3,))
    assert estimate_lower(model, (3,)) == estimate_lower(network(), (3,))
    assert torch.equal(ls.plain(model)(torch.ones(1, 3)), ls.plain(network())(torch.ones(1, 3)))


def test_the_plain_form_of_a_wrapped_model_is_not_wrapped():
    plain = ls.plain(nn.DataParallel(network()))
    assert list(plain.state_dict()) == list(ls.plain(network()).state_dict())


@pytest.mark.parametrize("name", ["parallel", "averaged"])
@pytest.mark.parametrize("shape", [None, (3,), torch.ones(2, 3)], ids=["none", "shape", "example"])
def test_what_a_wrapper_does_beside_is_not_forgotten(name: str, shape):
    """A hook of the wrapper, or a forward put in its place, may stretch as it likes."""
    hooked, replaced = WRAPPERS[name](network()), WRAPPERS[name](network())
    hooked.register_forward_hook(lambda module, inputs, output: 10 * output)
    replaced.forward = lambda x: 10 * replaced.module(x)
    for model in (hooked, replaced):
        for proof in (lambda m: ls.certify(m, shape), ls.plain):
            with pytest.raises(ValueError, match=r"has (forward hooks|a forward that was set on the instance)"):
                proof(model)

"""A short hunt for networks above their bound, and that it would find one."""

import hunt
import pytest
from torch import nn

from lipspline.certification import linear_rules, proof


@pytest.mark.parametrize("first", range(10**6, 10**6 + 300, 50))
def test_no_random_or_tampered_network_exceeds_its_certificate(first: int):
    """Any precision, parametrizations of torch and ours, folded or not; some reach their bound, many are refused."""
    counts = hunt.hunt(range(first, first + 50), report=lambda line: None)
    assert counts["ABOVE"] == 0
    assert counts["below"] >= 20
    assert counts["tight within 10 %"] >= 5
    assert counts["refused"] >= 2


WRONG = {
    "the stride of a convolution": lambda: (linear_rules, "sizes_of", lambda name, value, axes, **_: (9,) * axes),
    "padding that shows pixels twice": lambda: (linear_rules, "padding_upper", lambda mode, padding: 1.0),
    "sums": lambda: ("rule", hunt.Sum, (1.0, "wrong")),
    "concatenations": lambda: ("rule", hunt.Concatenated, (1.0, "wrong")),
    "leaky slopes": lambda: ("rule", nn.LeakyReLU, (1.0, "wrong")),
    "gains": lambda: ("rule", nn.BatchNorm1d, (1.0, "wrong")),
    "the smooth": lambda: ("rule", nn.SiLU, (1.0, "wrong")),
    "hooks": lambda: ("lipspline.certification.inspection", "_check_hooks", lambda module: None),
    "methods": lambda: ("lipspline.certification.inspection", "_check_instance", lambda module, kind: None),
}


@pytest.mark.slow
@pytest.mark.parametrize("what", WRONG)
def test_the_hunt_finds_what_is_wrong(what: str, monkeypatch):
    """Each mistake planted in the rules is met by one of a few hundred networks."""
    where, name, wrong = WRONG[what]()
    if where == "rule":
        entry = proof._Entry(lambda *_: wrong, proof._RULES[name].composite, proof._RULES[name].forward)
        monkeypatch.setitem(proof._RULES, name, entry)
    elif isinstance(where, str):
        monkeypatch.setattr(f"{where}.{name}", wrong)
    else:
        monkeypatch.setattr(where, name, wrong)
    assert any(hunt.examine(seed).outcome == "ABOVE" for seed in range(1500))

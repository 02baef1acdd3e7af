"""Where the denoisers of an experiment come from, and how they serve at any noise level [sec:exp_pnp]."""

import pytest
import torch

from lipspline.networks.builders import denoiser
from lipspline.networks.files import save
from lipspline.paper import networks
from lipspline.paper.networks import Family, Source
from lipspline.pnp import lipschitz_bound


def small(activation: str = "lls"):
    return denoiser(activation, channels=4, depth=2)  # type: ignore[arg-type]


def test_between_trained_levels_the_nearest_one_serves():
    """Rescaled up, so that it sees images with less contrast than in training, and not brighter ones; else averaged."""
    low, high = small(), small()
    family = Family({4: low, 15: high})
    x = torch.rand(1, 1, 9, 9)
    assert family.at(15) is high
    with torch.no_grad():
        torch.testing.assert_close(family.at(7)(x), (7 / 4) * low(x * (4 / 7)))
        torch.testing.assert_close(family.at(12)(x), 0.8 * high(x) + 0.2 * x)
        torch.testing.assert_close(family.at(20)(x), (20 / 15) * high(x * (15 / 20)))
        torch.testing.assert_close(family.at(1)(x), 0.25 * low(x) + 0.75 * x)


def test_untrained_denoisers_are_certified_and_always_the_same():
    family = Source(activation="av", untrained=True).load((5, 15))
    assert family is not None
    assert all((lipschitz_bound(family.at(noise)) or 2) <= 1 for noise in (1, 15, 40))
    again = Source(activation="av", untrained=True).load((5, 15))
    assert again is not None
    assert family.checksums() == again.checksums()


def test_files_of_ones_own_are_read_by_noise_level(tmp_path):
    save(small(), tmp_path / "a.safetensors")
    save(small(), tmp_path / "b.safetensors")
    files = {"5": str(tmp_path / "a.safetensors"), "15": str(tmp_path / "b.safetensors")}
    family = Source(activation="lls", files=files).load((5, 10, 15))
    assert family is not None
    assert list(family.trained) == [5, 15]
    sums = family.checksums()
    assert list(sums) == ["5", "15"]
    assert sums["5"] != sums["15"]


def test_what_ships_is_used_and_what_does_not_is_left_out(monkeypatch, tmp_path):
    monkeypatch.setattr(networks, "WEIGHTS", tmp_path)
    monkeypatch.setattr(networks, "available", lambda: {("lls", 5): "", ("lls", 15): "", ("av", 15): ""})
    monkeypatch.setattr(networks, "_shipped", lambda activation, noise: (activation, noise))
    family = Source(activation="lls").load((5, 10, 15))
    assert family is not None
    assert dict(family.trained) == {5: ("lls", 5), 15: ("lls", 15)}
    assert Source(activation="hh").load((5, 10, 15)) is None


def test_only_the_levels_asked_for_are_used(monkeypatch, tmp_path):
    """To be fair, all networks of a table use the same."""
    monkeypatch.setattr(networks, "WEIGHTS", tmp_path)
    monkeypatch.setattr(networks, "available", lambda: {("lls", 5): "", ("lls", 15): "", ("av", 15): ""})
    monkeypatch.setattr(networks, "_shipped", lambda activation, noise: (activation, noise))
    family = Source(activation="lls").load((15,))
    assert family is not None
    assert dict(family.trained) == {15: ("lls", 15)}
    assert Source(activation="av").load((5,)) is None
    save(small(), tmp_path / "a.safetensors")
    assert Source(activation="lls", files={"5": str(tmp_path / "a.safetensors")}).load((15,)) is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"files": {"low": "a"}}, "a whole number in units of 1/255, but there is 'low'"),
        ({"files": {"0": "a"}}, "a whole number in units of 1/255, but there is '0'"),
        ({"files": {"5": "a"}, "untrained": True}, "either read from files or untrained"),
    ],
)
def test_nonsense_is_refused(options, words):
    with pytest.raises(ValueError, match=words):
        Source(activation="lls", **options)

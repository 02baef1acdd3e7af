"""`lipspline certify module.py:function`: whatever the file does, exit code 0 is a proof, and errors are sentences."""

import json
import sys

import pytest

from lipspline import cli

MODULES = """
import sys
from torch import nn
from beside import WIDTH

print("chatter")

def good(): return nn.ReLU()
def talks():
    print("more chatter")
    return nn.ReLU()
def wants(width): return nn.Linear(width, width)
def fails(): return {}["weights"]
def leaves(): sys.exit(0)
def odd(): raise RuntimeError
def long(): raise RuntimeError("one\\n  two")
NETWORK = nn.Linear(3, 3)

class Leaves(nn.Module):
    def forward(self, x): sys.exit(0)
class Fails(nn.Module):
    def forward(self, x): return {}["layer"]

def steep():
    layer = nn.Linear(2, 2)
    nn.init.eye_(layer.weight).data.mul_(1.00001)
    return layer
def half(): return nn.Sequential(nn.Linear(2, 2), nn.ReLU()).half()
def integers():
    import torch.ao.quantization as quantization
    model = nn.Sequential(nn.Linear(2, 2)).eval()
    return quantization.quantize_dynamic(model, {nn.Linear})
class Unknown(nn.Module):
    def forward(self, x): return nn.functional.linear(x, x.new_ones(3, 3))
def unknown(): return Unknown()
def steep_pool(): return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.PReLU(init=2.0))
"""


@pytest.fixture
def certify(tmp_path, monkeypatch, capsys):
    (tmp_path / "nets.py").write_text(MODULES)
    (tmp_path / "beside.py").write_text("WIDTH = 3\n")
    (tmp_path / "broken.py").write_text("\n\ndef f(:\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    for name in ("nets", "beside", "broken"):
        monkeypatch.delitem(sys.modules, name, raising=False)

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["lipspline", "certify", *words])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        streams = capsys.readouterr()
        return int(stop.value.code or 0), streams.out, streams.err.replace("\n", " ")

    return run


def test_a_function_of_a_file_with_others_beside_it_is_certified(certify):
    code, out, _ = certify("nets.py:good", "--json")
    assert code == 0
    assert json.loads(out)["upper"] == 1.0
    code, out, err = certify("nets.py:talks", "--json")
    assert code == 0
    assert json.loads(out)["upper"] == 1.0
    assert "more chatter" in err


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        ("nets.py:wants", "nets.py:wants ended with TypeError: wants() missing 1 required positional argument"),
        ("nets.py:fails", "nets.py:fails ended with KeyError: 'weights' (line 13: `def fails(): return"),
        ("nets.py:leaves", "nets.py:leaves ended with SystemExit: 0 (line 14"),
        ("nets.py:odd", "nets.py:odd ended with RuntimeError (line 15"),
        ("broken.py:f", "broken.py:f ended with SyntaxError: "),
        ("nets.py:Leaves", "SystemExit"),
        ("nets.py:Fails", "KeyError"),
        ("nets.py", "Write nets.py:function"),
    ],
)
def test_what_goes_wrong_in_the_file_is_a_sentence_and_no_proof(certify, place: str, expected: str):
    code, out, err = certify(place, "--shape", "2", "--json")
    assert code == 2
    assert out == ""
    assert expected in err
    assert "Traceback" not in err


def test_what_is_missing_is_named_as_an_option(certify):
    """The library says input_shape, its argument."""
    code, _, err = certify("nets.py:unknown")
    assert code == 2
    assert "Give --shape, or an example input" in err
    code, _, err = certify("nets.py:unknown", "--shape", "2,3,4,5,6")
    assert code == 2
    assert "Give --shape, the shape of one input without batch." in err
    assert "input_shape" not in err


@pytest.mark.parametrize("name", ["weights.pt", "weights.pth", "weights.ckpt"])
def test_weights_without_a_network_say_what_is_missing(certify, tmp_path, name: str):
    (tmp_path / name).write_bytes(b"PK")
    code, _, err = certify(name)
    assert code == 2
    assert "weights alone do not say what network they belong to" in err
    assert "module.py:function" in err


def test_with_a_shape_the_smaller_of_both_bounds_counts(certify):
    """The mean of 16 pixels halves twice, which a rule for inputs of every size cannot know."""
    assert certify("nets.py:steep_pool")[0] == 1
    code, out, _ = certify("nets.py:steep_pool", "--shape", "1,4,4", "--json")
    assert code == 0
    assert json.loads(out)["upper"] == pytest.approx(0.5)
    assert json.loads(out)["lower"] == pytest.approx(0.5)


def test_a_bound_that_exceeds_by_rounding_says_what_to_do(certify):
    code, _, err = certify("nets.py:steep", "--shape", "2")
    assert code == 1
    assert "lipspline.plain" in err
    code, _, err = certify("nets.py:steep", "--lipschitz", "0.5")
    assert code == 1
    assert "lipspline.plain" not in err


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["half", "integers"])
def test_rounding_is_bounded_where_inputs_are(certify, name):
    code, out, _ = certify(f"nets.py:{name}", "--shape", "2", "--input-bound", "1", "--lipschitz", "9", "--json")
    assert code == 0
    assert json.loads(out)["rounding"]["error"] > 0
    code, _, err = certify(f"nets.py:{name}", "--input-bound", "1")
    assert code == 2
    assert "--input-bound needs --shape" in err


@pytest.mark.parametrize("asked", ["nan", "inf", "0", "-1"])
def test_a_constant_that_is_none_is_refused(certify, asked):
    """No bound exceeds NaN: exit code 0 would say that it was proved."""
    code, out, err = certify("nets.py:steep", "--lipschitz", asked)
    assert (code, out) == (2, "")
    assert "lipschitz must be a positive finite number" in err


def test_a_network_in_the_place_of_a_function_is_said_to_be_one(certify):
    code, _, err = certify("nets.py:NETWORK", "--shape", "3")
    assert code == 2
    assert "nets.py has no function 'NETWORK', but a Linear: write a function that returns it." in err


def test_errors_of_several_lines_become_one(certify):
    code, _, err = certify("nets.py:long")
    assert code == 2
    assert "RuntimeError: one two (line" in err


def test_an_input_that_memory_cannot_hold_is_one_sentence(certify):
    code, _, err = certify("nets.py:good", "--shape", "3,1000000,1000000")
    assert code == 2
    assert "Traceback" not in err
    assert "not enough memory" in err

"""Networks of integers: their exact function, where they round, and what is refused."""

import json
from collections.abc import Callable
from itertools import pairwise

import pytest
import rounding_hunt
import torch
import torch.ao.nn.quantized as integers
import torch.ao.quantization as quantization
from torch import Tensor, nn

import lipspline as ls
from lipspline.certification import quantized
from lipspline.certification.quantized import exact_function
from lipspline.functional.matrices import spectral_norm_upper

ENGINES = [engine for engine in torch.backends.quantized.supported_engines if engine != "none"]
pytestmark = [
    pytest.mark.skipif(not ENGINES, reason="this torch has no engine for integers"),
    pytest.mark.filterwarnings("ignore"),
]


@pytest.fixture(autouse=True)
def _engine_stays():
    before = torch.backends.quantized.engine
    yield
    torch.backends.quantized.engine = before


def dynamic(*sizes: int) -> nn.Module:
    """Dense layers with ReLU between them, dynamically quantised."""
    layers: list[nn.Module] = []
    for n, m in pairwise(sizes):
        layers += [nn.Linear(n, m), nn.ReLU()]
    return quantization.quantize_dynamic(nn.Sequential(*layers[:-1]).eval(), {nn.Linear}, dtype=torch.qint8)


def static(engine: str = "", *, fused: bool = True) -> nn.Module:
    """Convolutions, pooling and a dense layer, statically quantised."""
    torch.backends.quantized.engine = engine or ENGINES[-1]
    model = rounding_hunt.Static(1, 1).eval()
    if fused:
        quantization.fuse_modules(model, [["first", "relu"]], inplace=True)
    model.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)  # type: ignore[assignment]
    observed = quantization.prepare(model)
    observed(torch.rand(20, 1, 6, 6) * 2 - 1)
    return quantization.convert(observed)


def one_product(weight: float, bias: float, step: float, output_step: float) -> nn.Module:
    """`x -> weight x + bias` on integers, with an integer as weight."""
    layer = integers.Linear(1, 1)
    layer.set_weight_bias(
        torch.quantize_per_tensor(torch.tensor([[weight]]), 1.0, 0, torch.qint8), torch.tensor([bias])
    )
    layer.scale, layer.zero_point = output_step, 0
    before = integers.Quantize(torch.tensor([step]), torch.tensor([0]), torch.quint8)
    return nn.Sequential(before, layer, integers.DeQuantize())


def bound_and_error(model: nn.Module, x: Tensor, size: float) -> tuple[float, float]:
    """What is certified, and the largest distance to the exact function on inputs."""
    rounding = ls.certify(model, x[:1], input_bound=size).rounding
    assert rounding is not None
    assert rounding.error is not None, rounding.reason
    return rounding.error, rounding_hunt.largest_error(model, exact_function(model, x[:1]), x, size, 0)


@pytest.mark.parametrize("first", range(0, 80, 20))
def test_no_random_network_of_integers_rounds_more_than_its_bound(first: int):
    """Dynamic and static, by every engine that torch has here, also beyond the range that was calibrated."""
    counts = rounding_hunt.rounding_hunt(range(first, first + 20), integers=True, report=pytest.fail)
    assert counts["within"] == 20


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("fused", [True, False])
def test_static_networks_follow_their_exact_function(engine: str, fused: bool):
    model, x = static(engine, fused=fused), torch.rand(200, 1, 6, 6) * 2 - 1
    bound, error = bound_and_error(model, x, 1.0)
    assert 0 < error <= bound <= 60 * error


def test_the_constant_is_that_of_the_weights_that_integers_stand_for():
    model = dynamic(6, 4)
    layer = next(model.children())
    weight = layer.weight().dequantize().double()  # type: ignore[operator]
    certificate = ls.certify(model, (6,), input_bound=1.0)
    assert certificate.upper == pytest.approx(spectral_norm_upper(weight), rel=1e-6)
    assert certificate.lower == pytest.approx(certificate.upper, rel=1e-2)
    assert "integers and float32" in str(certificate)
    assert json.loads(certificate.to_json())["rounding"]["input_bound"] == 1.0


def test_weights_are_exact_and_integers_end():
    """In the middle of its range the exact function is affine with the very weights; beyond it is constant."""
    exact = exact_function(one_product(3.0, 0.25, step=0.01, output_step=0.1), torch.zeros(1, 1))
    values = exact(torch.tensor([[0.1], [0.2], [1e3], [-1e3]], dtype=torch.float64)).flatten()
    highest = float(torch.tensor(0.01)) * 255
    assert values.tolist() == pytest.approx([0.55, 0.85, 3 * highest + 0.25, 0.25], rel=1e-9)


def test_half_a_step_is_reached():
    """Numbers between two integers: the bound is within a thousandth of the error."""
    model = nn.Sequential(
        integers.Quantize(torch.tensor([0.5]), torch.tensor([10]), torch.quint8), integers.DeQuantize()
    )
    bound, error = bound_and_error(model, torch.tensor([[0.25], [0.75], [1.2499]]), 2.0)
    assert error <= bound <= 1.001 * error


@pytest.mark.parametrize("engine", [engine for engine in ENGINES if engine == "qnnpack"])
def test_a_bias_may_become_an_integer_itself(engine: str):
    """By half the product of the steps of input and weight; this engine does so."""
    torch.backends.quantized.engine = engine
    model = one_product(0.0, 0.5, step=1.0, output_step=0.01)
    bound, error = bound_and_error(model, torch.zeros(1, 1), 1e-3)
    assert 0.4 < error <= bound < 1.02 * error


def test_dynamic_steps_are_never_tiny():
    """Where all numbers are small torch takes a larger step, and everything is rounded away."""
    layer = nn.Linear(1, 1, bias=False)
    nn.init.constant_(layer.weight, 1.0)
    model = quantization.quantize_dynamic(nn.Sequential(layer).eval(), {nn.Linear}, dtype=torch.qint8)
    bound, error = bound_and_error(model, torch.full((1, 1), 1e-5), 1e-5)
    assert 0.9e-5 < error <= bound < 4e-5


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], Callable[..., None], tuple[str, ...]]] = {
    "small steps": (
        lambda patch: patch.setattr(quantized, "SMALLEST_STEP", 0.0),
        test_dynamic_steps_are_never_tiny,
        (),
    ),
    "the bias": (
        lambda patch: patch.setattr(quantized, "_error_of_bias", lambda *_: 0.0),
        test_a_bias_may_become_an_integer_itself,
        ("qnnpack",),
    ),
}  # fmt: skip


@pytest.mark.skipif("qnnpack" not in ENGINES, reason="this torch has no qnnpack, which rounds the bias")
@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch):
    plant, found_by, arguments = PLANTED[mistake]
    plant(monkeypatch)
    with pytest.raises(AssertionError):
        found_by(*arguments)


def test_half_of_half_a_step_is_found(monkeypatch: pytest.MonkeyPatch):
    before = quantized._steps

    def halved(*arguments) -> quantized.Steps:
        step, *rest = before(*arguments)
        return (step / 2, *rest)  # type: ignore[return-value]

    monkeypatch.setattr(quantized, "_steps", halved)
    with pytest.raises(AssertionError):
        test_half_a_step_is_reached()


def test_the_network_stays_as_it_was():
    model, x = static(), torch.rand(3, 1, 6, 6)
    before, kinds = model(x), [type(part) for part in model.modules()]
    ls.certify(model, x, input_bound=1.0)
    assert torch.equal(model(x), before)
    assert [type(part) for part in model.modules()] == kinds
    assert not any(part._forward_pre_hooks for part in model.modules())


# What is refused


def test_without_an_input_bound_the_way_is_said():
    with pytest.raises(ValueError, match=r"rounds to integers.*input_bound"):
        ls.certify(dynamic(4, 2), (4,))


class WithProduct(nn.Module):
    def __init__(self):
        super().__init__()
        self.before, self.after = quantization.QuantStub(), quantization.DeQuantStub()
        self.both = torch.ao.nn.quantized.FloatFunctional()

    def forward(self, x: Tensor) -> Tensor:
        x = self.before(x)
        return self.after(self.both.mul_scalar(x, 0.5))


def test_layers_of_integers_without_a_rule_are_named():
    model = WithProduct().eval()
    model.qconfig = quantization.get_default_qconfig(torch.backends.quantized.engine)  # type: ignore[assignment]
    observed = quantization.prepare(model)
    observed(torch.rand(4, 3))
    with pytest.raises(ValueError, match=r"no rule for integers in QFunctional\.mul_scalar"):
        ls.certify(quantization.convert(observed), (3,), input_bound=1.0)
    halves = quantization.quantize_dynamic(nn.Sequential(nn.Linear(3, 2)).eval(), {nn.Linear}, dtype=torch.float16)
    with pytest.raises(ValueError, match=r"its weight is torch\.float"):
        ls.certify(halves, (3,), input_bound=1.0)


def test_sums_that_a_processor_may_not_hold_are_refused(monkeypatch: pytest.MonkeyPatch):
    """Two products of eight bits exceed sixteen, which processors without the newer instructions add them in."""
    torch.backends.quantized.engine = next((e for e in ENGINES if e != "qnnpack"), ENGINES[0])
    if torch.backends.quantized.engine == "qnnpack":
        pytest.skip("this torch has only qnnpack, which does not add in 16 bits")
    model = dynamic(6, 4)
    monkeypatch.setattr(torch.cpu, "_is_vnni_supported", lambda: False, raising=False)
    with pytest.raises(ValueError, match="adds pairs of its products in 16 bits"):
        ls.certify(model, (6,), input_bound=1.0)


@pytest.mark.skipif("qnnpack" not in ENGINES, reason="this torch has no qnnpack, which makes the bias an integer")
def test_a_bias_of_too_many_steps_is_refused():
    """The integer saturates, so that the engine returns another number altogether."""
    torch.backends.quantized.engine = "qnnpack"
    layer = nn.Linear(4, 1)
    with torch.no_grad():
        layer.weight.fill_(1e-5)
        layer.bias.fill_(100.0)
    model = nn.Sequential(quantization.QuantStub(), layer, quantization.DeQuantStub()).eval()
    model.qconfig = quantization.get_default_qconfig("qnnpack")  # type: ignore[assignment]
    observed = quantization.prepare(model)
    observed(torch.linspace(-1, 1, 4)[None])
    with pytest.raises(ValueError, match=r"its bias is .* an integer that may exceed 32 bits"):
        ls.certify(quantization.convert(observed), (4,), input_bound=1.0)


def test_operations_on_integers_without_a_rule_have_no_bound():
    model = nn.Sequential(next(static().children()), nn.Hardtanh())
    rounding = ls.certify(model, (1, 6, 6), input_bound=1.0).rounding
    assert rounding is not None
    assert rounding.error is None
    assert "how it rounds integers is not known" in rounding.reason


def test_other_ways_to_quantise():
    """Graphs of `torch.ao.quantization.quantize_pt2e` are no longer in torch: another package makes them."""
    quantize_pt2e = pytest.importorskip("torch.ao.quantization.quantize_pt2e", reason="not in this torch")
    assert quantize_pt2e is not None

"""How far what runs is from the exact function: the bound holds, is reached in cases made for it, and can be wrong."""

import json
import math
from collections.abc import Callable
from dataclasses import dataclass

import pytest
import rounding_hunt
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import lipspline as ls
from lipspline.certification import rounding, rounding_rules
from lipspline.certification.rounding import rounding_bound

HALVES = (torch.bfloat16, torch.float16)


class Function(nn.Module):
    """A function of one tensor as a module; its constants are rounded to the type of the module."""

    def __init__(self, function: Callable[..., Tensor], *constants: Tensor):
        super().__init__()
        self.function = function
        for i, constant in enumerate(constants):
            self.register_buffer(f"constant{i}", constant)

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x, *self._buffers.values())


def bound_of(model: nn.Module, x: Tensor, size: float, accumulator: torch.dtype | None = None) -> float:
    result = rounding_bound(model, x[:1], size, accumulator=accumulator)
    assert result.error is not None, result.reason
    return result.error


def error_of(model: nn.Module, x: Tensor) -> float:
    """The largest distance to the same module in float64."""
    return rounding_hunt.largest_error(model, rounding_hunt.hunt.as_torch_runs_it(model), x, 1.0, 0)


# It holds


@pytest.mark.parametrize("first", range(0, 120, 30))
def test_no_random_network_rounds_more_than_its_bound(first: int):
    """Rows of layers, images, residual sums, concatenations; any precision; `rounding_hunt.py` runs thousands."""
    counts = rounding_hunt.rounding_hunt(range(first, first + 30), report=pytest.fail)
    assert counts["within"] >= 15


SMOOTH = {
    **{name: getattr(F, name) for name in ("tanh", "sigmoid", "silu", "mish", "selu", "hardswish", "softshrink")},
    **{name: getattr(torch, name) for name in ("erf", "sin", "cos", "atan", "asinh")},
    "gelu": F.gelu,
    "gelu by tanh": lambda x: F.gelu(x, approximate="tanh"),
    "elu": lambda x: F.elu(x, 1.7),
    "celu": lambda x: F.celu(x, 0.6),
    "softplus": lambda x: F.softplus(x, threshold=40),
    "softplus of a multiple": lambda x: F.softplus(x, beta=5.0, threshold=40),
    "hardsigmoid": F.hardsigmoid,
    "log_sigmoid": F.logsigmoid,
    "leaky_relu": lambda x: F.leaky_relu(x, 0.3),
    "relu6": F.relu6,
    "clamp": lambda x: x.clamp(-0.3, 0.7),
    "affine": lambda x: 0.1 + x / 3.7,
}


def values_below(size: float, dtype: torch.dtype) -> Tensor:
    """All numbers of a type of 16 bits that are not larger, or very many of float32."""
    if dtype.itemsize == 2:
        every = torch.arange(-(2**15), 2**15, dtype=torch.int16).view(dtype)
        return every[every.abs() <= size]
    x = torch.cat([torch.linspace(-1, 1, 100_001), torch.logspace(-44, 0, 50_000), -torch.logspace(-44, 0, 50_000)])
    return size * x.to(dtype)


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_functions_of_one_variable_are_right_for_every_number(name: str, dtype: torch.dtype):
    """For 16 bits that is all of them: on this machine, and for these sizes, a proof."""
    model = Function(SMOOTH[name])
    for size in (1e-3, 0.7, 4.0, 100.0):
        x = values_below(size, dtype)
        error = (model(x).double() - model(x.double())).abs().max()
        assert float(error) <= bound_of(model, x[:1, None], size)


def test_two_outputs_are_as_far_apart_as_constant_and_rounding_allow():
    """The statement itself, in bfloat16, where rounding is most of it for neighbouring inputs."""
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3)).eval()
    nn.init.constant_(next(iter(model)).bias, 2.0)  # type: ignore[arg-type]
    model = model.bfloat16()
    certificate = ls.certify(model, (8,), input_bound=1.0)
    assert certificate.rounding is not None
    error = certificate.rounding.error
    assert error is not None
    x = (torch.rand(500, 8) * 2 - 1).bfloat16()
    y = (x + 2.0**-8 * torch.randint(-1, 2, x.shape)).clamp(-1, 1).bfloat16()
    with torch.no_grad():
        apart = (model(x).double() - model(y).double()).norm(dim=1)
    distance = (x.double() - y.double()).norm(dim=1)
    assert bool((apart <= certificate.upper * distance + 2 * error).all())
    assert bool((apart > certificate.upper * distance).any())  # so that a constant alone would not be true


# It is reached, and mistakes are found


@dataclass(frozen=True)
class Case:
    """A module and inputs whose error comes near the bound, up to a factor."""

    model: nn.Module
    x: Tensor
    size: float
    factor: float
    accumulator: torch.dtype | None = None

    @property
    def bound(self) -> float:
        return bound_of(self.model, self.x, self.size, self.accumulator)

    @property
    def error(self) -> float:
        return error_of(self.model, self.x)


def _dense(weight: list[list[float]], bias: list[float] | None, dtype: torch.dtype) -> nn.Linear:
    layer = nn.Linear(len(weight[0]), len(weight), bias=bias is not None)
    layer.weight.data = torch.tensor(weight)
    if bias is not None:
        layer.bias.data = torch.tensor(bias)
    return layer.to(dtype)


def _many_additions(x: Tensor, half_an_ulp: Tensor) -> Tensor:
    """Each addition to 1 is rounded away."""
    for _ in range(20):
        x = x + half_an_ulp
    return x


def cases() -> dict[str, Case]:
    bf16, f16, one = torch.bfloat16, torch.float16, torch.ones(1, 1)
    steps = torch.linspace(0.5, 1, 129)[:, None]
    additions = Function(_many_additions, torch.tensor([2.0**-8])).to(bf16)
    product = Function(torch.mul, torch.tensor([1 + 2.0**-7])).to(bf16)
    long = nn.Sequential(*[_dense([[1 + 2.0**-7]], None, bf16) for _ in range(12)])
    small, flushed = _dense([[2.0**-12]], None, f16), Function(torch.mul, torch.tensor([2.0**-12])).to(f16)
    image = nn.Conv2d(1, 1, 1, bias=False).to(bf16)
    image.weight.data.fill_(1 + 2.0**-7)
    shifted = _dense([[2.0**-7]], [1.0], bf16)
    return {
        "one product": Case(product, steps.to(bf16), 1.0, 1.1),
        "additions, each rounded": Case(additions, one.to(bf16), 1.0, 1.2),
        "a dense layer": Case(long[0], steps.to(bf16), 1.0, 3.2),
        "a dense layer, sums in float32": Case(long[0], steps.to(bf16), 1.0, 2.2, torch.float32),
        "a convolution": Case(image, steps[..., None, None].to(bf16), 1.0, 3.2),
        "twelve layers": Case(long, steps.to(bf16), 1.0, 15),
        "a bias": Case(shifted, steps.to(bf16), 1.0, 4),
        "a product that vanishes": Case(flushed, torch.full((1, 1), 2.0**-13).to(f16), 2.0**-13, 2.1),
        "a sum that vanishes": Case(small, torch.full((1, 1), 2.0**-13).to(f16), 2.0**-13, 16),
    }  # fmt: skip


@pytest.mark.parametrize("name", cases())
def test_the_bound_is_reached_within_a_factor(name: str):
    case = cases()[name]
    assert case.error <= case.bound <= case.factor * case.error


def _without_bias(monkeypatch: pytest.MonkeyPatch) -> None:
    before = rounding.Operation.__init__

    def forgets(self: rounding.Operation, *arguments) -> None:
        before(self, *arguments)
        self.at_zero = 0.0

    monkeypatch.setattr(rounding.Operation, "__init__", forgets)


_WITHOUT_ERROR = rounding.Computed((), torch.float32, 1.0, 1.0, 0.0)


def _halved(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (rounding, rounding_rules):
        monkeypatch.setattr(module, "growth", lambda count, unit: 0.5 * count * unit)


PLANTED: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "half of gamma": (_halved, ("one product", "additions, each rounded")),
    "no underflow": (
        lambda patch: patch.setattr(rounding, "underflow", lambda dtype: 0.0),
        ("a product that vanishes", "a sum that vanishes"),
    ),
    "no bias": (_without_bias, ("a bias",)),
    "eps for a half of eps in the wrong direction": (
        lambda patch: patch.setattr(rounding, "unit_roundoff", lambda dtype: torch.finfo(dtype).eps / 4),
        ("one product", "additions, each rounded"),
    ),
    "errors are forgotten from layer to layer": (
        lambda patch: patch.setattr(rounding.Operation, "carried", lambda self, of: [of(_WITHOUT_ERROR)]),
        ("additions, each rounded",),
    ),
}  # fmt: skip


@pytest.mark.parametrize("mistake", PLANTED)
def test_a_planted_mistake_is_found(mistake: str, monkeypatch: pytest.MonkeyPatch):
    plant, found_by = PLANTED[mistake]
    plant(monkeypatch)
    for name in found_by:
        case = cases()[name]
        assert case.error > case.bound, name


# What it says, and what it refuses


def test_the_certificate_has_it_in_table_and_json():
    model = nn.Sequential(nn.Linear(4, 4), nn.ReLU()).half().eval()
    certificate = ls.certify(model, (4,), input_bound=2.0)
    assert certificate.rounding is not None
    assert certificate.rounding.error is not None
    assert "Rounding (float16, sums accumulated in float16 or better): what runs is within " in str(certificate)
    assert str(certificate).endswith("of that function, where no entry of the input exceeds 2")
    assert "no constant bounds" not in certificate.valid_for
    assert json.loads(certificate.to_json())["rounding"]["error"] == certificate.rounding.error
    assert ls.certify(model, (4,)).rounding is None
    finer = ls.certify(model, (4,), input_bound=2.0, accumulator=torch.float32).rounding
    assert finer is not None
    assert (finer.error or math.inf) < certificate.rounding.error
    assert "sums accumulated in float32 or better" in str(finer)


def test_it_grows_with_the_input_and_shrinks_with_the_precision():
    model = nn.Sequential(nn.Linear(4, 4, bias=False), nn.Tanh(), nn.Linear(4, 2))
    errors = [bound_of(model.to(dtype), torch.zeros(1, 4, dtype=dtype), 1.0) for dtype in (*HALVES, torch.float32)]
    assert errors == sorted(errors, reverse=True)
    assert bound_of(model, torch.zeros(1, 4), 2.0) > bound_of(model, torch.zeros(1, 4), 1.0)


def test_an_input_bound_needs_an_input():
    with pytest.raises(ValueError, match="give input_shape, too"):
        ls.certify(nn.Linear(2, 2), input_bound=1.0)
    with pytest.raises(ValueError, match="input_bound must be a positive finite number"):
        ls.certify(nn.Linear(2, 2), (2,), input_bound=-1.0)
    for size, accumulator in ((None, torch.float32), (1.0, torch.int32)):
        with pytest.raises(ValueError, match="accumulator is a floating-point type, beside an input_bound"):
            ls.certify(nn.Linear(2, 2), (2,), input_bound=size, accumulator=accumulator)


BETWEEN_TYPES = {
    "clamp": lambda x, c: x.clamp(max=c),
    "maximum": lambda x, c: torch.maximum(x, c),
    "fmin": lambda x, c: torch.fmin(c, x),
}


@pytest.mark.parametrize("name", BETWEEN_TYPES)
@pytest.mark.parametrize("dtype", [*HALVES, torch.float32])
def test_numbers_of_a_wider_type_are_rounded_when_compared(name: str, dtype: torch.dtype):
    """A single number, whatever its type, becomes one of the type of the tensor that it is compared with."""
    level, x = torch.tensor(0.3001, dtype=torch.float64), torch.linspace(-1, 1, 8, dtype=dtype)[None]
    model = Function(lambda x: BETWEEN_TYPES[name](x, level))
    seen = float((model(x).double() - model(x.double())).norm())
    assert 0 < seen <= bound_of(model, x, 1.0)
    same = Function(lambda x: BETWEEN_TYPES[name](x, level.to(x)))
    assert bound_of(same, x, 1.0) == 0


def test_a_list_of_one_tensor_is_a_list():
    assert bound_of(Function(lambda x: x.chunk(2, 1)[0]), torch.zeros(1, 1), 1.0) == 0


def test_float16_does_not_hold_all_numbers_of_bfloat16():
    x = torch.full((1, 4), 1e-9, dtype=torch.bfloat16)
    cast = Function(lambda x: x.to(torch.float16))
    assert float(cast(x).double().sub(x.double()).norm()) <= bound_of(cast, x, 1.0) <= 2e-7
    assert bound_of(Function(lambda x: x.float()), x, 1.0) == 0


def test_a_factor_below_the_smallest_number_is_taken_for_zero():
    x = torch.full((1, 4), 1e30)
    model = Function(lambda x: x * 1e-46)
    assert float(model(x.double()).norm()) <= bound_of(model, x, 1e30)
    layer = nn.BatchNorm1d(4).eval()
    with torch.no_grad():
        layer.weight.fill_(1e-41)  # type: ignore[union-attr]
        exact = float(layer.double()(x.double()).norm())
    assert exact <= bound_of(layer.float(), x, 1e30)  # some processors take the weight for zero


NO_BOUND = {
    "a divisor that is infinite": (Function(lambda x: x / 1e39), torch.float32, 1.0, "too small or too large"),
    "a divisor that is zero": (Function(lambda x: x / 1e-46), torch.float32, 1e-10, "too small or too large"),
    "an operation without a rule": (
        Function(lambda x: x.softmax(-1)),
        torch.float32,
        1.0,
        "how it rounds is not known",
    ),
    "numbers that are too large": (Function(lambda x: 3 * x), torch.float16, 6e4, "may exceed what float16 holds"),
    "sums that are too long": (nn.Linear(2**18, 1), torch.bfloat16, 1.0, "too long for a bound in bfloat16"),
    "places": (Function(lambda x: x.gather(1, x.sort(1).indices)), torch.float32, 1.0, "gather"),
    "a product of two": (Function(lambda x: x * x), torch.float32, 1.0, "multiplies"),
}


@pytest.mark.parametrize("what", NO_BOUND)
def test_what_has_no_bound_says_why(what: str):
    model, dtype, size, reason = NO_BOUND[what]
    n = next((p.shape[1] for p in model.parameters()), 4)
    result = rounding_bound(model.to(dtype), torch.zeros(1, n, dtype=dtype), size)
    assert result.error is None
    assert result.reason.startswith("No rounding bound: ")
    assert reason in str(result)


def test_products_in_a_lower_precision_have_no_bound():
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        assert "in a lower precision" in rounding_bound(nn.Linear(2, 2), torch.zeros(1, 2), 1.0).reason
    finally:
        torch.set_float32_matmul_precision(before)


def test_circular_padding_does_not_count_pixels_twice():
    """Eight circular layers of norm 1: errors add, and are not doubled by each padding."""
    layers = [ls.nn.conv2d(4, 4, 3, padding_mode="circular") for _ in range(8)]
    x = torch.zeros(1, 4, 8, 8)
    errors = [bound_of(nn.Sequential(*layers[:k]), x, 1.0) for k in (1, 8)]
    assert errors[1] < 30 * errors[0]


def test_networks_with_winograd_convolutions_are_within_their_bound():
    model = ls.plain(ls.models.denoiser("lls", channels=16, depth=3))
    x = torch.rand(2, 1, 12, 12)
    exact = ls.plain(model).double()
    with torch.no_grad():
        seen = (model(x).double() - exact(x.double())).flatten(1).norm(dim=1)
    assert 0 < float(seen.max()) <= bound_of(model, x, 1.0)


def test_growth_has_no_limit_of_terms():
    assert rounding.growth(1, 0.25) == pytest.approx(0.25)
    assert rounding.growth(3, 0.25) == pytest.approx(1.25**3 - 1)
    assert rounding.growth(10**6, 2.0**-8) == math.inf

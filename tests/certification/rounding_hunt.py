"""A hunt for networks that round more than their bound says: `python tests/certification/rounding_hunt.py 5000`.

Each seed makes a random network of some precision, bounds its rounding for inputs up to a random size, and runs it on
inputs that are random, made of signs, aligned with weights, or so small that products vanish; they are then changed
step by step to make the error larger. The exact function is the same network in float64. With `int8` as second argument
the networks are dynamically and statically quantised, and their exact function is that of `exact_function`.
"""

import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import hunt
import torch
import torch.ao.quantization as quantization
from torch import Tensor, nn
from torch.nn import functional as F

from lipspline.certification.quantized import exact_function
from lipspline.certification.rounding import rounding_bound

warnings.filterwarnings("ignore")
DTYPES = (torch.float32, torch.bfloat16, torch.float16)


@dataclass(frozen=True)
class Run:
    """What became of one network: the bound and the largest error seen, or why there is no bound."""

    bound: float
    seen: float = 0.0
    reason: str = ""
    model: str = ""

    @property
    def outcome(self) -> str:
        if self.reason:
            return "no bound"
        return "ABOVE" if not self.seen <= self.bound else "within"


class Residual(nn.Module):
    """A network that is no row of layers."""

    def __init__(self, inner: nn.Module, kind: str, factor: float):
        super().__init__()
        self.inner, self.kind, self.factor = inner, kind, factor

    def forward(self, x: Tensor) -> Tensor:
        y = self.inner(x)
        z = y.flatten(1)[:, :1]
        if self.kind == "sum":
            return torch.add(y, z.reshape(-1, *[1] * (y.ndim - 1)), alpha=self.factor)
        if self.kind == "scaled":
            return (y * self.factor - 0.3) / 1.7 + y
        if self.kind == "cancelled":
            return torch.sub(y, y, alpha=1.001)
        if self.kind == "joined":
            return torch.cat([y, F.silu(y), y.clamp(-0.7, 0.3)], dim=1)
        if self.kind == "lerp":
            return torch.lerp(y, y.abs(), 0.3)
        if self.kind == "mean":
            return y - y.mean(dim=-1, keepdim=True)
        return torch.maximum(F.leaky_relu(y, 0.1), F.gelu(y)).sum(dim=-1)


KINDS = ("sum", "scaled", "cancelled", "joined", "lerp", "mean", "largest")


def network(random: Random) -> tuple[nn.Module, tuple[int, ...]]:
    """A random network and the shape of its input."""
    if random.random() < 0.6:
        model, shape = hunt.network(random)
    elif random.random() < 0.5:
        n = random.choice((3, 30, 100))
        model, shape = nn.Sequential(nn.Linear(n, 8), nn.ReLU(), nn.Linear(8, random.choice((1, 5)))), (n,)
    else:
        c = random.choice((1, 3, 16))
        mode = random.choice(("zeros", "circular", "reflect"))
        first = nn.Conv2d(c, 16, 3, padding=1, padding_mode=mode, stride=random.choice((1, 2)))
        pool = random.choice((nn.AvgPool2d(2), nn.MaxPool2d(2), nn.AdaptiveAvgPool2d(2), nn.BatchNorm2d(16)))
        model, shape = nn.Sequential(first, nn.ReLU(), pool, nn.Conv2d(16, 4, 2)), (c, 6, 6)
    if random.random() < 0.3:
        model = Residual(model, random.choice(KINDS), random.uniform(-3, 3))
    size = 10.0 ** random.choice((0, 0, 0, -2, -3, 1))
    with torch.no_grad():
        for layer in model.modules():
            if isinstance(layer, (nn.Linear, nn.Conv2d)) and not hasattr(layer, "parametrizations"):
                layer.weight.mul_(size)
    return model, shape


def inputs_for(model: nn.Module, shape: tuple[int, ...], bound: float, dtype: torch.dtype) -> Tensor:
    """Inputs with entries up to `bound` that make large errors likely."""
    x = torch.rand(24, *shape, dtype=torch.float64) * 2 - 1
    x[6:12] = x[6:12].sign()
    weight = next((p.detach().double() for p in model.parameters() if p.ndim > 1), None)
    if weight is not None and weight[0].numel() == x[0].numel():
        rows = weight.reshape(len(weight), *shape)[:6]
        x[12 : 12 + len(rows)] = rows.sign() * (1 - torch.rand(rows.shape, dtype=torch.float64) / 64)
    x[18:21] *= 2.0**-12
    x[21:24] *= 2.0**-22
    return (x * bound * (1 - 2**-8)).to(dtype)  # rounding may not exceed the bound


@torch.no_grad()
def largest_error(ran: nn.Module, exact: Callable[[Tensor], Tensor], x: Tensor, bound: float, climbs: int) -> float:
    """The largest distance of what runs to the exact function that was found, one input at a time."""

    def errors(x: Tensor) -> Tensor:
        y = torch.cat([ran(image[None].clone()) for image in x]).double()
        return (y - torch.cat([exact(image[None].double()) for image in x])).reshape(len(x), -1).norm(dim=1)

    best = errors(x)
    for k in range(climbs):
        moved = x.double() + bound * 2.0 ** -(1 + k % 12) * torch.randn_like(x.double())
        moved = moved.clamp(-bound * (1 - 2**-8), bound * (1 - 2**-8)).to(x.dtype)
        trial = errors(moved)
        better = trial > best
        x[better], best[better] = moved[better], trial[better]
    return float(best.max())


def examine(seed: int, *, climbs: int = 2) -> Run:
    """Bound the rounding of one random network in floating point, and measure it."""
    random = Random(seed)
    torch.manual_seed(seed)
    dtype = random.choice(DTYPES)
    model, shape = network(random)
    model = model.to(dtype).eval()
    size = random.choice((1.0, 1.0, 0.1, 30.0))
    try:
        exact = hunt.as_torch_runs_it(model)
        model(torch.zeros(1, *shape, dtype=dtype))
    except (RuntimeError, NotImplementedError, ValueError):
        return Run(0.0, reason="torch cannot run it in this precision")
    accumulator = random.choice((None, None, torch.float32))
    result = rounding_bound(model, torch.zeros(1, *shape, dtype=dtype), size, accumulator=accumulator)
    if result.error is None:
        return Run(0.0, reason=result.reason)
    seen = largest_error(model, exact, inputs_for(model, shape, size, dtype), size, climbs)
    return Run(result.error, seen, model=f"{dtype} {model}")


class Static(nn.Module):
    """A network for static quantisation: convolutions, residual sums, pooling and a dense layer."""

    def __init__(self, channels: int, stride: int):
        super().__init__()
        self.before, self.after = quantization.QuantStub(), quantization.DeQuantStub()
        self.first, self.relu = nn.Conv2d(channels, 4, 3, padding=1, stride=stride), nn.ReLU()
        self.second, self.pool = nn.Conv2d(4, 4, 3, groups=2, padding=1), nn.MaxPool2d(2, ceil_mode=True)
        self.mean, self.last = nn.AdaptiveAvgPool2d(2), nn.Linear(16, 3)
        self.sum, self.sum_of_all = (torch.ao.nn.quantized.FloatFunctional() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.first(self.before(x)))
        z = self.sum.add_relu(y, self.second(y))
        return self.after(self.last(self.mean(self.pool(self.sum_of_all.add(y, z))).flatten(1)))


def quantized(random: Random, engine: str) -> tuple[nn.Module, tuple[int, ...]]:
    """A random network of integers for one engine of torch, and the shape of its input."""
    torch.backends.quantized.engine = engine
    if random.random() < 0.5:
        n = random.choice((1, 3, 40))
        model = nn.Sequential(nn.Linear(n, 8), nn.ReLU(), nn.Linear(8, 5, bias=random.random() < 0.5)).eval()
        with torch.no_grad():
            next(model.parameters()).mul_(10.0 ** random.choice((0, 0, -3, 1)))
        return quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8), (n,)
    channels = random.choice((1, 3))
    model = Static(channels, random.choice((1, 2))).eval()
    if random.random() < 0.5:
        quantization.fuse_modules(model, [["first", "relu"]], inplace=True)
    model.qconfig = quantization.get_default_qconfig(engine)  # type: ignore[assignment]
    observed = quantization.prepare(model)
    observed(torch.rand(20, channels, 6, 6) * random.choice((0.5, 1, 2)))  # other numbers than will be seen
    return quantization.convert(observed), (channels, 6, 6)


def examine_integers(seed: int, *, climbs: int = 2) -> Run:
    """The same for a network of integers."""
    random = Random(seed)
    torch.manual_seed(seed)
    engines = [e for e in torch.backends.quantized.supported_engines if e != "none"]
    before = torch.backends.quantized.engine
    try:
        model, shape = quantized(random, random.choice(engines))
        size, example = random.choice((0.1, 1.0, 3.0)), torch.zeros(1, *shape)
        exact = exact_function(model, example)
        result = rounding_bound(exact, example.double(), size, arithmetic=torch.float32)
        if result.error is None:
            return Run(0.0, reason=result.reason)
        x = inputs_for(nn.Identity(), shape, size, torch.float32)
        return Run(result.error, largest_error(model, exact, x, size, climbs), model=f"{seed} {model}")
    finally:
        torch.backends.quantized.engine = before


def rounding_hunt(seeds: range, *, integers: bool = False, report: Callable[[str], None] = print) -> Counter:
    """Examine many networks; reports each one above its bound."""
    counts, start = Counter(), time.monotonic()
    for seed in seeds:
        run = (examine_integers if integers else examine)(seed)
        counts[run.outcome] += 1
        if run.outcome == "within" and run.seen:
            counts["within a factor of 10" if run.bound <= 10 * run.seen else "looser"] += 1
        elif run.outcome == "no bound":
            counts[run.reason.split("`: ")[-1].strip()[:60]] += 1
        elif run.outcome == "ABOVE":
            report(f"seed {seed}: {run.seen!r} > {run.bound!r}: {run.model}")
        if (seed + 1 - seeds.start) % 500 == 0:
            report(f"{seed + 1 - seeds.start} networks, {time.monotonic() - start:.0f} s: {dict(counts)}")
    return counts


if __name__ == "__main__":
    torch.set_num_threads(1)
    result = rounding_hunt(range(int(sys.argv[1])), integers="int8" in sys.argv)
    print(dict(result))
    sys.exit(1 if result["ABOVE"] else 0)

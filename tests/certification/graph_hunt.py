"""A hunt for graphs that stretch more than their certificate says: `python tests/certification/graph_hunt.py 100000`.

Each seed makes a small module with a `forward` of its own: a random program of operations on signals, images and
volumes, with residual sums, branches, concatenations, splits and several uses of one tensor. No singular value of its
exact Jacobian, at several points, may exceed the bound of its graph.

`certify` traces modules by `torch.export`, which takes ten times as long as the bound. Here the operations are recorded
while the module runs; every hundredth graph is traced by `torch.export` as well, and must have the same bound.
"""

import gc
import operator
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random

import torch
from torch import Tensor, nn
from torch._dispatch.python import enable_python_dispatcher
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode
from torch.fx.node import map_aggregate
from torch.nn import functional as F
from torch.utils._python_dispatch import TorchDispatchMode

from lipspline.certification.graph import graph_bounds, walked
from lipspline.nn import GroupSort, Householder, LinearSpline, MaxMin

warnings.filterwarnings("ignore")
LARGEST = 160
WRONG = ("ABOVE", "DIFFERENT")
Step = tuple[Callable[..., Tensor], list[int]]


class Program(nn.Module):
    """A random forward: steps that read earlier tensors and append one."""

    def __init__(self, layers: list[nn.Module]):
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self.steps: list[Step] = []
        self.names: list[str] = []

    def forward(self, x: Tensor) -> Tensor:
        values = [x]
        for function, inputs in self.steps:
            values.append(function(*(values[i] for i in inputs)))
        return values[-1]


def _convolution(random: Random, x: Tensor) -> nn.Module:
    axes = x.ndim - 2
    kernel, stride, dilation = random.choice((1, 2, 3)), random.choice((1, 1, 2)), random.choice((1, 1, 2))
    groups = random.choice([g for g in (1, 2, x.shape[1]) if x.shape[1] % g == 0])
    out = groups * random.choice((1, 2))
    mode = random.choice(("zeros", "zeros", "zeros", "circular", "reflect", "replicate"))
    padding = random.choice((0, 0, 1, "same")) if stride == 1 else random.choice((0, 1))
    if random.random() < 0.5:
        out = x.shape[1]
    if out % groups:
        groups = 1
    kind = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[axes - 1]
    return kind(x.shape[1], out, kernel, stride, padding, dilation, groups, padding_mode=mode)


def _transposed(random: Random, x: Tensor) -> nn.Module:
    kind = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[x.ndim - 3]
    stride = random.choice((1, 2))
    return kind(x.shape[1], x.shape[1], random.choice((1, 2, 3)), stride, random.choice((0, 1)))


def _norm(random: Random, x: Tensor) -> nn.Module:
    layer = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[x.ndim - 2](x.shape[1])
    nn.init.uniform_(layer.running_var, 0.05, 3)  # type: ignore[arg-type]
    nn.init.normal_(layer.weight)
    return layer


def _spline(random: Random, x: Tensor) -> nn.Module:
    spline = LinearSpline(x.shape[1], regions=random.choice((2, 5)), radius=1.0, constraint="none")
    with torch.no_grad():
        spline.coefficients.add_(0.5 * torch.randn_like(spline.coefficients))
    return spline


LAYERS: list[Callable[[Random, Tensor], nn.Module]] = [
    lambda r, x: nn.Linear(x.shape[-1], r.choice((x.shape[-1], 3))),
    lambda r, x: nn.Linear(x.shape[-1], x.shape[-1], bias=False),
    _convolution,
    _convolution,
    _convolution,
    _transposed,
    _norm,
    _spline,
    lambda r, x: Householder(x.shape[1]),
    lambda r, x: r.choice((GroupSort(2), MaxMin())),
    lambda r, x: nn.PReLU(x.shape[1], init=r.uniform(-2, 2)),
]


def _by_axes(random: Random, x: Tensor, name: str, *options: object) -> Callable[[Tensor], Tensor]:
    """A function of torch for signals or for images, with its arguments after the first."""
    function = getattr(F, f"{name}{x.ndim - 2}d")
    return lambda y: function(y, *options)


def _resized(random: Random, x: Tensor) -> Callable[[Tensor], Tensor]:
    mode = ("linear", "bilinear", "trilinear")[x.ndim - 3]
    return partial(F.interpolate, scale_factor=2, mode=mode, align_corners=random.random() < 0.5)


def _padded(random: Random, x: Tensor) -> Callable[[Tensor], Tensor]:
    mode = random.choice(("constant", "reflect", "replicate", "circular"))
    return partial(F.pad, pad=[1, 1] * (x.ndim - 2), mode=mode)


def _half(random: Random, x: Tensor) -> Callable[[Tensor], Tensor]:
    which = random.choice((0, -1))
    return lambda y: y.chunk(2, 1)[which]


def _with_constant(random: Random, *shape: int, by: Callable[[Tensor, Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    constant = torch.randn(*shape, dtype=torch.float64)
    return lambda y: by(y, constant)


def _pairs_sorted(y: Tensor) -> Tensor:
    pairs = y.unflatten(1, (-1, 2))
    return torch.cat([pairs.max(2, keepdim=True)[0], pairs.min(2, keepdim=True)[0]], 2).flatten(1, 2)


FUNCTIONS: list[tuple[str, Callable[[Random, Tensor], Callable[[Tensor], Tensor]]]] = [
    ("relu", lambda r, x: F.relu),
    ("abs", lambda r, x: torch.abs),
    ("leaky", lambda r, x: partial(F.leaky_relu, negative_slope=r.uniform(0, 2))),
    ("smooth", lambda r, x: r.choice((F.gelu, F.silu, F.mish, torch.tanh, torch.sigmoid, F.hardswish, F.elu, F.selu))),
    ("smooth gate", lambda r, x: r.choice((F.silu, lambda y: y * y.sigmoid(), F.mish, F.hardswish))),
    ("scaled", lambda r, x: partial(torch.mul, other=r.uniform(-2, 2))),
    ("divided", lambda r, x: partial(torch.div, other=r.uniform(0.5, 2))),
    ("by channel", lambda r, x: _with_constant(r, x.shape[1], *[1] * (x.ndim - 2), by=torch.mul)),
    ("shifted", lambda r, x: lambda y: 1 - y),
    ("flipped", lambda r, x: lambda y: y.flip(-1)),
    ("transposed", lambda r, x: lambda y: y.transpose(1, -1)),
    ("rolled", lambda r, x: lambda y: y.roll(1, 1)),
    ("sliced", lambda r, x: lambda y: y[..., : max(1, y.shape[-1] - 1)]),
    ("stepped", lambda r, x: lambda y: y[:, ::2]),
    ("half", _half),
    ("repeated", lambda r, x: lambda y: y.repeat_interleave(2, -1)),
    ("expanded", lambda r, x: lambda y: y.mean(-1, keepdim=True).expand_as(y)),
    ("sorted", lambda r, x: lambda y: y.sort(-1)[0]),
    ("sorted pairs", lambda r, x: _pairs_sorted),
    ("centred", lambda r, x: lambda y: y - y.mean(1, keepdim=True)),
    ("largest", lambda r, x: lambda y: y.amax(-1, keepdim=True)),
    ("summed", lambda r, x: lambda y: y.sum(1, keepdim=True)),
    ("softmax", lambda r, x: lambda y: y.softmax(1)),
    ("log softmax", lambda r, x: lambda y: y.log_softmax(1)),
    ("logsumexp", lambda r, x: lambda y: y.logsumexp(1, keepdim=True)),
    ("length", lambda r, x: lambda y: torch.linalg.vector_norm(y + 3, dim=1, keepdim=True)),
    ("padded", _padded),
    ("padded once", lambda r, x: partial(F.pad, pad=[r.randrange(3), 0])),
    ("max pool", lambda r, x: _by_axes(r, x, "max_pool", r.choice((2, 3)), r.choice((1, 2)))),
    ("avg pool", lambda r, x: _by_axes(r, x, "avg_pool", r.choice((2, 3)), r.choice((1, 2)), 1, True, False)),
    ("adaptive", lambda r, x: _by_axes(r, x, "adaptive_avg_pool", r.choice((1, 2, 3)))),
    ("adaptive max", lambda r, x: _by_axes(r, x, "adaptive_max_pool", r.choice((1, 2, 3)))),
    ("nearest", lambda r, x: partial(F.interpolate, scale_factor=r.choice((2, 1.5)))),
    ("linear", _resized),
    ("matrix", lambda r, x: _with_constant(r, x.shape[-1], x.shape[-1], by=torch.matmul)),
    ("left matrix", lambda r, x: _with_constant(r, 2, x.shape[-2], by=lambda y, w: w @ y)),
    ("shuffled", lambda r, x: partial(F.pixel_unshuffle, downscale_factor=2)),
]
PAIRS: list[tuple[str, Callable[[Tensor, Tensor], Tensor]]] = [
    ("+", torch.add),
    ("+", torch.add),
    ("+", torch.add),
    ("-", torch.sub),
    ("lerp", lambda a, b: torch.lerp(a, b, 0.3)),
    ("+ broadcast", lambda a, b: a + b.mean(-1, keepdim=True)),
    ("- broadcast", lambda a, b: b.amax(1, keepdim=True) - a),
    ("max", torch.maximum),
    ("max broadcast", lambda a, b: torch.maximum(a, b[:1, :, :1])),
    ("min", torch.minimum),
    ("sorted pair", lambda a, b: torch.cat([torch.maximum(a, b), torch.minimum(a, b)], 1)),
    ("cat", lambda a, b: torch.cat([a, b], 1)),
    ("stack", lambda a, b: torch.stack([a, b], -1).flatten(-2)),
    ("concatenated relu", lambda a, b: torch.cat([a.relu(), -b.relu()], 1)),
]


def program(seed: int) -> tuple[Program, Tensor]:
    """A random module and an input for it."""
    random = Random(seed)
    torch.manual_seed(seed)
    shape = random.choice(((4, 5), (2, 6), (4, 4), (2, 4, 4), (1, 4, 4), (4, 3, 3), (2, 2, 2, 3)))
    x = torch.randn(random.choice((1, 1, 2)), *shape, dtype=torch.float64)
    model = Program([])
    values = [x]
    for _ in range(random.choice((2, 3, 4, 5, 6, 8))):
        try:
            name, function, inputs = _step(random, model, values)
            result = function(*(values[i] for i in inputs))
        except (RuntimeError, ValueError, IndexError, AssertionError, NotImplementedError, TypeError):
            continue
        if result.numel() == 0 or result.numel() > LARGEST or result.ndim < 3 or not result.is_floating_point():
            continue
        model.steps.append((function, inputs))
        model.names.append(f"{name}{inputs}")
        values.append(result.detach())
    return model.eval(), x


def _step(random: Random, model: Program, values: list[Tensor]) -> tuple[str, Callable[..., Tensor], list[int]]:
    last = len(values) - 1
    kind = random.random()
    if kind < 0.35 and last:
        first = random.choice((last, random.randrange(last + 1)))
        alike = [i for i, v in enumerate(values) if v.shape == values[first].shape]
        name, function = random.choice(PAIRS)
        return name, function, [first, random.choice(alike)]
    place = random.choice((last, last, random.randrange(last + 1)))
    if kind < 0.7:
        layer = random.choice(LAYERS)(random, values[place]).double().eval().requires_grad_(False)
        model.layers.append(layer)
        return type(layer).__name__, layer, [place]
    name, maker = random.choice(FUNCTIONS)
    function = maker(random, values[place])
    return name, function, [place]


@dataclass(frozen=True)
class Finding:
    outcome: str
    upper: float = 0.0
    measured: float = 0.0
    what: str = ""


class Recorder(ProxyTorchDispatchMode):
    """Records the operations of a module as it runs, as `torch.export` would name them."""

    def __init__(self, x: Tensor):
        TorchDispatchMode.__init__(self, torch._C.DispatchKey.PreDispatch)
        self.pre_dispatch = True
        self.graph = torch.fx.Graph()
        self.constants: dict[torch.fx.Node, Tensor] = {}
        self.nodes: dict[int, tuple[torch.fx.Node, object]] = {id(x): (self.graph.placeholder("x"), x)}

    def __enter__(self):
        return TorchDispatchMode.__enter__(self)

    def __exit__(self, *error):
        return TorchDispatchMode.__exit__(self, *error)

    def node(self, value: object) -> object:
        if not isinstance(value, Tensor):
            return value
        if id(value) not in self.nodes:
            node = self.graph.get_attr(f"constant{len(self.constants)}")
            self.constants[node] = value
            self.nodes[id(value)] = node, value
        return self.nodes[id(value)][0]

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        inputs = map_aggregate(arguments, self.node), map_aggregate(options or {}, self.node)
        node = self.graph.call_function(function, *inputs)  # type: ignore[arg-type]
        node.meta["val"] = result
        self.nodes[id(result)] = node, result  # with the tensor, so that no other one gets its id
        if isinstance(result, (list, tuple)):
            for i, part in enumerate(result):
                self.nodes[id(part)] = self.graph.call_function(operator.getitem, (node, i)), part
        return result


def recorded_upper(model: nn.Module, x: Tensor) -> float:
    """The bound of the graph of what runs, without `torch.export`."""
    recorder = Recorder(x)
    torch.compiler._is_compiling_flag = True  # the library's kernels are recorded as one operation each
    try:
        with torch.no_grad(), enable_python_dispatcher(), recorder:
            recorder.graph.output(recorder.node(model(x)))
    finally:
        torch.compiler._is_compiling_flag = False
    return walked(recorder.graph, recorder.constants, x, {})[0]


def traced_upper(model: nn.Module, x: Tensor) -> float:
    return graph_bounds(model, x, lambda name, module: None)[0]


def measured(model: nn.Module, x: Tensor, points: int = 6) -> float:
    """The largest singular value of the exact Jacobian at several points."""
    scales = [10.0 ** (i % 3 - 1) for i in range(3)] + [3.0 ** (i - 4) for i in range(3, points)]
    inputs = torch.stack([(x if i < 3 else torch.randn_like(x)) * scale for i, scale in enumerate(scales)])
    function = torch.func.jacrev(model)
    if any(isinstance(layer, nn.PReLU) for layer in model.modules()):  # wrong under two transforms in torch 2.13
        jacobians = torch.stack([function(point) for point in inputs])
    else:
        jacobians = torch.vmap(function)(inputs)
    return float(torch.linalg.matrix_norm(jacobians.reshape(points, -1, x.numel()), ord=2).max())


def examine(seed: int, *, traced: bool = True) -> Finding:
    """Bound one random graph, and measure it; `traced` also by `torch.export`."""
    model, x = program(seed)
    if not model.steps:
        return Finding("empty")
    try:
        upper = recorded_upper(model, x)
        exported = traced_upper(model, x) if traced else upper
    except ValueError as error:
        return Finding("refused", what=str(error))
    what = f"{model.names} {[str(layer) for layer in model.layers]}"
    if exported != upper:
        return Finding("DIFFERENT", upper, exported, what)
    value = measured(model, x)
    return Finding("below" if value <= upper * (1 + 1e-9) + 1e-12 else "ABOVE", upper, value, what)


def finds(wrong_step: str, seeds: range) -> bool:
    """Whether the hunt meets a graph above its bound, among those with a step whose name contains `wrong_step`."""
    candidates = (seed for seed in seeds if any(wrong_step in name for name in program(seed)[0].names))
    return any(examine(seed, traced=False).outcome == "ABOVE" for seed in candidates)


def hunt(seeds: range, report: Callable[[str], None] = print) -> Counter:
    """Examine many graphs; reports each one above its bound."""
    counts, start = Counter(), time.monotonic()
    for seed in seeds:
        finding = examine(seed, traced=seed % 100 == 0)
        counts["traced by torch.export"] += seed % 100 == 0
        counts[finding.outcome] += 1
        if finding.outcome == "below":
            counts["tight within 1 %"] += finding.measured >= 0.99 * finding.upper
            counts["tight within 10 %"] += finding.measured >= 0.9 * finding.upper
            counts["tight within a factor 2"] += finding.measured >= 0.5 * finding.upper
        elif finding.outcome in WRONG:
            report(f"seed {seed}: {finding.outcome} {finding.measured!r}, bound {finding.upper!r}: {finding.what}")
        elif finding.outcome == "refused":
            counts[f"refused: {finding.what[:40]}"] += 1
        if (seed + 1 - seeds.start) % 2000 == 0:
            report(f"{seed + 1 - seeds.start} graphs, {time.monotonic() - start:.0f} s: {dict(counts)}")
    return counts


if __name__ == "__main__":
    torch.set_num_threads(1)
    gc.set_threshold(50_000, 20, 100)  # modules and graphs are cycles: by default a tenth of the time looks for them
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    result = hunt(range(first, first + int(sys.argv[1])))
    print(dict(result))
    sys.exit(1 if any(result[outcome] for outcome in WRONG) else 0)

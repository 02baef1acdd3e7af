"""A hunt for networks that stretch more than their certificate says: `python tests/certification/hunt.py 100000`.

Each seed makes a small network: dense or convolutional, any activation, of any precision, with parametrizations of
torch and of ours, folded or not, and often with something changed after construction, as an attacker would. What
`certify` does not refuse is copied, given the weights it runs with (read by torch, not by us) and measured in float64:
the singular values of its Jacobian at several points, and ratios of distances of pairs. No measurement may exceed the
certified bound. Then the network itself is run, in its own precision, on pairs that include the direction it stretches
most: outputs may lie further apart than the bound allows only by the round-off of both, which is bounded layer by
layer, and each output must be within its round-off of the exact one.
"""

import copy
import sys
import time
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations, parametrize

from lipspline.certification import certify
from lipspline.certification.round_off import EPS, evaluate_exactly
from lipspline.networks import plain
from lipspline.nn import (
    AbsoluteValue,
    Averaged,
    Concatenated,
    GroupSort,
    Householder,
    LinearSpline,
    LipschitzPReLU,
    MaxMin,
    Scaled,
    Sum,
    conv1d,
    conv2d,
    linear,
)
from lipspline.nn.inference import InferenceConv2d

warnings.filterwarnings("ignore")
C, LENGTH, WIDE = 4, 5, 16
DTYPES = (torch.float32, torch.float32, torch.float64, torch.bfloat16, torch.float16)


# What 3 x 3 kernels by Winograd's algorithm may lose, against the sum of products: the norm of |A|ᵀ diag(|G| e_p) |B|ᵀ
# over overlapping tiles of 4, at most 8.581 for each of the three taps p, in both directions.
WINOGRAD = 8.581**2


@dataclass(frozen=True)
class Finding:
    """What became of one network: refused, not able to run, below its bound, or above it."""

    outcome: str
    upper: float = 0.0
    measured: float = 0.0
    model: str = ""
    executed: str = ""
    """What came of running it: the precision, or why its round-off has no bound."""


def _spline(random: Random) -> nn.Module:
    spline = LinearSpline(
        C,
        regions=random.choice((2, 3, 8)),
        radius=random.choice((0.1, 1.0, 5.0)),
        constraint=random.choice(("clip", "clip", "normalize", "none")),
        shared=random.random() < 0.3,
    )
    with torch.no_grad():
        spline.coefficients.add_(random.choice((0.3, 2.0)) * spline.radius * torch.randn_like(spline.coefficients))
        spline.log_scale.add_(torch.randn_like(spline.log_scale))
    return spline


def _householder(_: Random) -> nn.Module:
    layer = Householder(C)
    nn.init.uniform_(layer.angle, -4, 4)
    return layer


ACTIVATIONS: list[Callable[[Random], nn.Module]] = [
    _spline,
    _spline,
    _householder,
    lambda r: nn.ReLU(inplace=r.random() < 0.3),
    lambda r: AbsoluteValue(),
    lambda r: LipschitzPReLU(C, init=r.uniform(-1, 1)),
    lambda r: r.choice((GroupSort(2), GroupSort(4), MaxMin())),
    lambda r: nn.LeakyReLU(r.uniform(0, 2), inplace=r.random() < 0.3),
    lambda r: nn.PReLU(C, init=r.uniform(-2, 2)),
    lambda r: r.choice((nn.Tanh(), nn.Sigmoid(), nn.GELU(), nn.GELU("tanh"), nn.SiLU(), nn.Mish(), nn.Hardswish())),
    lambda r: nn.ELU(r.uniform(0, 2), inplace=r.random() < 0.3),
    lambda r: r.choice((nn.SELU(), nn.Softplus(threshold=40), nn.Softsign(), nn.Tanhshrink(), nn.Identity())),
]


def _dense(random: Random) -> nn.Module:
    kind = random.randrange(7)
    if kind == 0:
        return linear(C, C, method=random.choice(("qr", "cayley", "polar")), lipschitz=random.choice((1.0, 0.5, 2.0)))
    if kind == 1:
        return linear(C, C, constraint="spectral")
    layer = nn.Linear(C, C, bias=random.random() < 0.5)
    return layer if kind == 2 else _by_torch(layer, random)


def _by_torch(layer: nn.Module, random: Random) -> nn.Module:
    """With a parametrization of torch, often of raw weights that are far too large or small."""
    maps = [parametrizations.weight_norm, parametrizations.spectral_norm]
    if isinstance(layer, nn.Linear):
        by = random.choice(("matrix_exp", "cayley", "householder"))
        maps += [lambda x: parametrizations.orthogonal(x, orthogonal_map=by)] * 3
    layer = random.choice(maps)(layer)
    size = 10.0 ** random.choice((0, 0, 1, 3, 5, -3))
    with torch.no_grad():
        for raw in layer.parametrizations.parameters():  # type: ignore[union-attr]
            raw.mul_(size)
    return layer


def _convolution(random: Random) -> nn.Module:
    kind = random.randrange(6)
    if kind == 0:
        return conv1d(C, C, random.choice((1, 2, 3)), padding_mode=random.choice(("zeros", "circular")))
    kernel, dilation = random.choice((1, 2, 3)), random.choice((1, 1, 2))
    layer = nn.Conv1d(
        *(C, C, kernel, random.choice((1, 1, 2, 3)), random.choice((0, 1, 2)), dilation, random.choice((1, 2, 4))),
        padding_mode=random.choice(("zeros", "circular", "reflect", "replicate")),
    )
    return _by_torch(layer, random) if kind == 1 else layer


def _linear_part(random: Random) -> nn.Module:
    choices: list[Callable[[], nn.Module]] = [
        lambda: nn.BatchNorm1d(C),
        lambda: nn.AvgPool1d(2, random.choice((1, 2))),
        lambda: nn.MaxPool1d(2, random.choice((1, 2))),
        lambda: nn.AdaptiveAvgPool1d(random.choice((1, 3))),
        lambda: random.choice((nn.ReflectionPad1d, nn.ReplicationPad1d, nn.CircularPad1d))((random.randrange(3), 1)),
        lambda: nn.ConstantPad1d((-1, 2), 3.0),
        lambda: nn.Upsample(scale_factor=(random.choice((1.0, 2.0, 3.0)),)),
        lambda: nn.ConvTranspose1d(C, C, random.choice((1, 3)), random.choice((1, 2)), groups=random.choice((1, 2))),
    ]
    layer = random.choice(choices)()
    if isinstance(layer, nn.BatchNorm1d):
        nn.init.uniform_(layer.running_var, 0.01, 3)  # type: ignore[arg-type]
        nn.init.normal_(layer.weight)
    return layer


def _composite(layer: nn.Module, random: Random) -> nn.Module:
    return random.choice((
        lambda: Averaged(layer, random.uniform(0.1, 0.9)),
        lambda: Sum(nn.Identity(), layer),
        lambda: nn.Sequential(Concatenated(layer, nn.Identity()), nn.Flatten(1), nn.Unflatten(1, (C, -1))),
        lambda: nn.Sequential(layer, Scaled(random.uniform(-2, 2))),
    ))()  # fmt: skip


def _for_images(random: Random) -> tuple[nn.Module, tuple[int, ...]]:
    """A network of 3 x 3 convolutions with enough channels for Winograd's algorithm, once it is plain."""
    first = conv2d(WIDE, WIDE, 3) if random.random() < 0.5 else nn.Conv2d(WIDE, WIDE, 3, padding=1)
    spline = LinearSpline(WIDE, regions=4, radius=1.0)
    nn.init.normal_(spline.coefficients)
    second = nn.Conv2d(WIDE, WIDE, 3, padding=1, padding_mode=random.choice(("zeros", "circular")))
    return plain(nn.Sequential(first, random.choice((spline, nn.ReLU(), MaxMin())), second)), (WIDE, 5, 5)


def network(random: Random) -> tuple[nn.Module, tuple[int, ...]]:
    """A random network and the shape of its input."""
    if random.random() < 0.005:
        return _for_images(random)
    dense = random.random() < 0.5
    layers: list[nn.Module] = []
    for _ in range(random.choice((1, 2, 2, 3))):
        if not dense and random.random() < 0.4:
            layers.append(_linear_part(random))
        else:
            layers.append((_dense if dense else _convolution)(random))
        if random.random() < 0.7:
            layers.append(random.choice(ACTIVATIONS)(random))
    if random.random() < 0.3:
        place = random.randrange(len(layers))
        layers[place] = _composite(layers[place], random)
    return nn.Sequential(*layers), ((C,) if dense else (C, LENGTH))


class Iterating(nn.Sequential):
    def __iter__(self):
        return iter([*self._modules.values(), Scaled(7.0)])


class Noise(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return weight * (1 + torch.rand(()))


def attack(model: nn.Module, random: Random) -> str:
    """Change something that is an ordinary attribute of some layer."""
    layer = random.choice(list(model.modules()))
    numbers = [name for name, value in vars(layer).items() if isinstance(value, (int, float)) and name[0] != "_"]
    kind = random.randrange(9)
    if kind <= 3 and numbers:
        name = random.choice(numbers)
        setattr(layer, name, random.choice((-1, 0, 1, 2, 3, 0.5, 5.0, -0.5, True)))
        return name
    if kind == 4 and isinstance(layer, nn.Conv1d):
        name = random.choice(("padding", "stride", "dilation", "padding_mode", "_reversed_padding_repeated_twice"))
        sizes = [random.randrange(4) for _ in range(2 if name[0] == "_" else 1)]
        mode = random.choice(("zeros", "circular", "reflect", "replicate"))
        setattr(layer, name, mode if name == "padding_mode" else sizes)
        return name
    if kind == 5:
        name = random.choice(("forward", "_call_impl", "_conv_forward", "_spline", "tables", "v"))
        if hasattr(layer, name):
            setattr(layer, name, lambda x, *rest: 7 * x)
        return name
    if kind == 6:
        layer.register_forward_hook(lambda module, inputs, output: 7 * output)
        return "hook"
    if kind == 7 and isinstance(model, nn.Sequential):
        model.__class__ = Iterating
        return "__iter__"
    if isinstance(getattr(layer, "weight", None), nn.Parameter):
        parametrize.register_parametrization(layer, "weight", Noise(), unsafe=True)
        return "noise"
    layer.training = True
    return "training"


def as_torch_runs_it(model: nn.Module) -> nn.Module:
    """A copy in float64, with the weights that torch reads."""
    running = copy.deepcopy(model)
    with torch.no_grad():
        for layer in list(running.modules()):
            if parametrize.is_parametrized(layer):  # torch's removal would change the class, which the model shares
                values = {name: getattr(layer, name).detach() for name in layer.parametrizations}  # type: ignore[union-attr]
                layer.__class__ = type(layer).__bases__[0]
                del layer.parametrizations
                for name, value in values.items():
                    layer.register_parameter(name, nn.Parameter(value))
    return running.double().requires_grad_(False)


def measured(model: nn.Module, inputs: Tensor) -> tuple[float, Tensor]:
    """The largest singular value of Jacobians, and ratio of pairs; with the direction that is stretched most."""
    x = inputs.clone().requires_grad_()
    y = model(x + 0).flatten(1)
    rows = [torch.autograd.grad(y[:, i].sum(), x, retain_graph=True)[0].flatten(1) for i in range(y.shape[1])]
    jacobians = torch.stack(rows, dim=1)
    _, values, directions = torch.linalg.svd(jacobians, full_matrices=False)
    steepest = float(values.max())
    with torch.no_grad():
        steps = torch.logspace(-3, 1, len(inputs), dtype=torch.float64).reshape(-1, *[1] * (inputs.ndim - 1))
        moved = inputs + steps * torch.randn_like(inputs)
        distances = (model(moved.clone()) - model(inputs.clone())).flatten(1).norm(dim=1)
        ratio = float((distances / (moved - inputs).flatten(1).norm(dim=1)).max())
    return max(steepest, ratio), directions[:, 0].reshape(inputs.shape)


@torch.no_grad()
def executed(model: nn.Module, running: nn.Module, inputs: Tensor, direction: Tensor, upper: float) -> str:
    """Run the network in its precision on pairs, and say what is wrong: nothing, its distances or its round-off.

    `running` is the same with the weights that torch reads. Begins with "no " if there is no statement to be checked.
    """
    dtype = next((p.dtype for p in model.parameters()), torch.float32)
    steps = torch.logspace(-2, 1, len(inputs), dtype=torch.float64).reshape(-1, *[1] * (inputs.ndim - 1))
    first = inputs.to(dtype)
    pairs = [(first + (steps * move).to(dtype)) for move in (direction, torch.randn_like(inputs))]
    values = [model(x.clone()).double() for x in (first, *pairs)]
    if not all(bool(value.isfinite().all()) for value in values):
        return "no finite output"
    try:
        exact, error = evaluate_exactly(running, torch.cat([first, *pairs]).double(), torch.zeros(3 * len(first)))
    except (ValueError, RuntimeError, ArithmeticError, TypeError) as refusal:
        return f"no bound on the round-off: {type(refusal).__name__}"
    losing = WINOGRAD if any(isinstance(m, InferenceConv2d) and m.has_algorithm for m in model.modules()) else 1.0
    tiny = torch.finfo(dtype).tiny * 1e4
    lost = (losing * torch.finfo(dtype).eps / EPS * error + tiny).chunk(3)
    for value, meant, allowed in zip(values, exact.chunk(3), lost, strict=True):
        if value.shape != meant.shape or bool(((value - meant).flatten(1).norm(dim=1) > allowed).any()):
            return "ROUND-OFF"
    for x, value, allowed in zip(pairs, values[1:], lost[1:], strict=True):
        apart = (value - values[0]).flatten(1).norm(dim=1)
        distance = (x.double() - first.double()).flatten(1).norm(dim=1)
        if bool((apart > upper * distance * (1 + 1e-12) + allowed + lost[0]).any()):
            return "DISTANCE"
    share = ((lost[0] + lost[1]) / (upper * (pairs[0].double() - first.double()).flatten(1).norm(dim=1) + tiny)).min()
    return f"{str(dtype)[6:]}, allowance {'below' if share < 1e-3 else 'above'} 1e-3 of the bound"


@torch.no_grad()
def mixes_images(model: nn.Module, inputs: Tensor) -> bool:
    """Whether the output for an image depends on the others of its batch."""
    try:
        alone = torch.cat([model(image[None].clone()) for image in inputs])
    except (RuntimeError, ValueError):
        return True
    together = model(inputs.clone())
    return alone.shape != together.shape or not torch.allclose(alone, together)


def measured_together(model: nn.Module, inputs: Tensor) -> float:
    """The same for the batch as one vector, for networks whose images an attacker made depend on one another."""
    jacobian = torch.autograd.functional.jacobian(lambda x: model(x + 0), inputs)
    steepest = float(torch.linalg.matrix_norm(jacobian.reshape(-1, inputs.numel()), ord=2))  # type: ignore[union-attr]
    with torch.no_grad():
        moves = [10.0**k * torch.randn_like(inputs) for k in (-3, -1, 0, 1)]
        ratios = [float((model(inputs + move) - model(inputs.clone())).norm() / move.norm()) for move in moves]
    return max(steepest, *ratios)


def examine(seed: int) -> Finding:
    """Certify one random network, and measure it."""
    random = Random(seed)
    torch.manual_seed(seed)
    dtype = random.choice(DTYPES)
    try:
        model, shape = network(random)
        model = model.to(dtype).eval()
        if random.random() < 0.15:
            model = plain(model)
        changed = attack(model, random) if random.random() < 0.35 else ""
    except (RuntimeError, NotImplementedError, ValueError):  # torch cannot build it in this precision
        return Finding("cannot be built")
    try:
        upper = certify(model).upper
    except (ValueError, RuntimeError, NotImplementedError) as error:
        return Finding("refused" if isinstance(error, ValueError) else "cannot be evaluated")
    except Exception as error:  # whatever was changed, the answer is a bound or a refusal
        return Finding("ABOVE", model=f"{changed} {type(error).__name__}: {error} {model}")
    inputs = torch.randn(6, *shape, dtype=torch.float64) * torch.logspace(-1, 1, 6).reshape(-1, *[1] * len(shape))
    try:
        running = as_torch_runs_it(model)
        value, direction = measured(running, inputs)
        mixed = mixes_images(running, inputs)
        if value > upper and mixed:
            value = measured_together(running, inputs)
        if mixed or (dtype != torch.float32 and seed % 3):
            ran = "no single images" if mixed else f"no {str(dtype)[6:]} this time"
        else:
            ran = executed(model, running, inputs, direction, upper)
    except (RuntimeError, ValueError, NotImplementedError, TypeError, IndexError, ArithmeticError):
        return Finding("does not run")
    splines = any(isinstance(layer, LinearSpline) for layer in model.modules())
    slack = 4 * torch.finfo(dtype).eps if splines else 1e-9  # a spline in float64 rounds its slopes in another way
    outcome = "below" if value <= upper * (1 + slack) + 1e-12 and not ran.isupper() else "ABOVE"
    return Finding(outcome, upper, value, f"{changed} {ran} {model}" if outcome == "ABOVE" else "", ran)


def hunt(seeds: range, report: Callable[[str], None] = print) -> Counter:
    """Examine many networks; prints each one above its bound."""
    counts, start = Counter(), time.monotonic()
    for seed in seeds:
        finding = examine(seed)
        counts[finding.outcome] += 1
        if finding.outcome == "below":
            counts["tight within 10 %"] += finding.measured >= 0.9 * finding.upper
            counts[f"run: {finding.executed}"] += 1
        elif finding.outcome == "ABOVE":
            report(f"seed {seed}: measured {finding.measured!r} > certified {finding.upper!r}: {finding.model}")
        if (seed + 1 - seeds.start) % 1000 == 0:
            report(f"{seed + 1 - seeds.start} networks, {time.monotonic() - start:.0f} s: {dict(counts)}")
    return counts


if __name__ == "__main__":
    torch.set_num_threads(1)
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    result = hunt(range(first, first + int(sys.argv[1])))
    print(dict(result))
    sys.exit(1 if result["ABOVE"] else 0)

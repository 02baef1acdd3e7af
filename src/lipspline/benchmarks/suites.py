"""What `lipspline bench` measures, suite by suite."""

import copy
import itertools
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import nn

from lipspline._infra.devices import keep_memory
from lipspline.benchmarks import textbook
from lipspline.benchmarks.timing import (
    Ratios,
    Stopwatch,
    TimedCase,
    compare,
    inference,
    isolated,
    training_step,
    whole,
    within_network,
)
from lipspline.functional.matrices import orthonormalize
from lipspline.networks.builders import denoiser, mlp
from lipspline.networks.complexity import tv2
from lipspline.networks.inference import plain
from lipspline.nn.activations import AbsoluteValue, GroupSort, Householder, LipschitzPReLU, MaxMin
from lipspline.nn.convolutions import conv2d
from lipspline.nn.spline import LinearSpline
from lipspline.training.ensemble import regressions
from lipspline.training.optim import param_groups
from lipspline.training.tasks import Minimize, Pairs, regression

SHAPE = (16, 64, 40, 40)


ACTIVATIONS: dict[str, Callable[[int], nn.Module]] = {
    "ReLU": lambda channels: nn.ReLU(),
    "LinearSpline, 51 coefficients": LinearSpline,
    "spline, textbook": textbook.TextbookSpline,
    "AbsoluteValue": lambda channels: AbsoluteValue(),
    "LipschitzPReLU": LipschitzPReLU,
    "MaxMin": lambda channels: MaxMin(),
    "GroupSort(2)": lambda channels: GroupSort(2),
    "GroupSort(2), textbook": lambda channels: textbook.TextbookGroupSort(2),
    "Householder": Householder,
    "Householder, textbook": textbook.TextbookHouseholder,
}


def activations() -> Iterator[Ratios]:
    """Every activation as a layer in a network with the shape of the denoiser; its input there is (16, 64, 40, 40)."""
    title = "Activations in a network, forward + backward, gradient buffers fresh at each step"
    with isolated({name: partial(_activation_in_network, name) for name in ACTIVATIONS}) as cases:
        yield compare(title, cases, repeats=11, warmup=3)


def _activation_in_network(name: str) -> TimedCase:
    return within_network(_network(ACTIVATIONS[name]), 0.1 * torch.randn(SHAPE[0], 1, *SHAPE[2:]))


def _network(activation: Callable[[int], nn.Module], depth: int = 8) -> nn.Sequential:
    """Plain 3x3 convolutions with timed activations between them."""
    channels = SHAPE[1]
    network = nn.Sequential(nn.Conv2d(1, channels, 3, padding=1))
    for layer in range(1, depth):
        after = channels if layer < depth - 1 else 1
        network.extend([Stopwatch(activation(channels)), nn.Conv2d(channels, after, 3, padding=1)])
    return network


def warm() -> Iterator[Ratios]:
    """Every activation alone, with every buffer warm and reused: the allocator keeps what is freed, for good."""
    if keep_memory():
        x = 0.1 * torch.randn(SHAPE)
        cases = {name: training_step(make(SHAPE[1]), x) for name, make in ACTIVATIONS.items()}
        yield compare("Activations alone, forward + backward, all buffers warm", cases)


def scaling() -> Iterator[Ratios]:
    """Cost of LinearSpline against coefficients, channels, pixels and threads."""
    x = 0.1 * torch.randn(SHAPE)
    cases = {f"K = {k}": training_step(LinearSpline(64, regions=k - 1), x) for k in (51, 11, 21, 101, 201, 501)}
    yield compare("LinearSpline against the number of coefficients", cases)
    for size in (8, 64, 256):
        x = 0.1 * torch.randn(16, size, 40, 40)
        yield compare(f"{size} channels", _pair(size, x), repeats=21)
    for side in (8, 20, 160):
        x = 0.1 * torch.randn(4, 64, side, side)
        yield compare(f"4 images of {side} x {side}", _pair(64, x), repeats=21)
    threads = torch.get_num_threads()
    for count in sorted({1, threads}):
        torch.set_num_threads(count)
        yield compare(f"{count} thread(s)", _pair(64, 0.1 * torch.randn(SHAPE)))
    torch.set_num_threads(threads)


def _pair(channels: int, x: torch.Tensor) -> dict[str, TimedCase]:
    return {"ReLU": training_step(nn.ReLU(), x), "LinearSpline": training_step(LinearSpline(channels), x)}


def convolution() -> Iterator[Ratios]:
    """An orthogonal 64 -> 64 3x3 convolution, zero padding, against nn.Conv2d."""
    x = torch.randn(SHAPE)
    layers: dict[str, nn.Module] = {
        "Conv2d": nn.Conv2d(64, 64, 3, padding=1),
        "conv2d, orthogonal": conv2d(64, 64, 3),
        "conv2d, spectral": conv2d(64, 64, 3, constraint="spectral"),
        "BCOP, textbook": textbook.BCOPConv2d(64, 3),
    }
    yield compare("3x3 convolution, training step", {k: training_step(v, x) for k, v in layers.items()}, repeats=21)
    evaluated = {name: layers[name] for name in ("Conv2d", "conv2d, orthogonal")}
    evaluated["plain(conv2d)"] = plain(layers["conv2d, orthogonal"])
    yield compare("3x3 convolution, eval", {k: inference(v, x) for k, v in evaluated.items()})


def orthonormal() -> Iterator[Ratios]:
    """Making a weight orthonormal, forward and backward, against 25 Björck steps."""
    for shape in ((300, 10, 10), (16, 64, 64), (256, 256), (1024, 1024)):
        cases = {
            "25 Björck steps": _matrix_step(textbook.bjorck, shape),
            "default": _matrix_step(orthonormalize, shape),
            "qr": _matrix_step(lambda w: orthonormalize(w, method="qr"), shape),
            "cayley": _matrix_step(lambda w: orthonormalize(w, method="cayley"), shape),
            "polar": _matrix_step(lambda w: orthonormalize(w, method="polar"), shape),
            "bjorck": _matrix_step(lambda w: orthonormalize(w, method="bjorck"), shape),
        }
        yield compare(f"Orthonormal weight {'x'.join(map(str, shape))}", cases, repeats=7)


def _matrix_step(function: Callable[[torch.Tensor], torch.Tensor], shape: tuple[int, ...]) -> TimedCase:
    generator = torch.Generator().manual_seed(0)
    w = torch.randn(shape, generator=generator).requires_grad_()
    g = torch.randn(shape, generator=generator)

    def step() -> None:
        w.grad = None
        function(w).backward(g)

    return whole(step)


def training() -> Iterator[Ratios]:
    """A whole training step of the paper's denoiser against the same step with Conv2d and ReLU."""
    textbook_model = nn.Sequential(nn.Conv2d(1, 64, 3, padding=1), textbook.TextbookSpline(64))
    for _ in range(6):
        textbook_model.extend([textbook.BCOPConv2d(64, 3), textbook.TextbookSpline(64)])
    textbook_model.append(nn.Conv2d(64, 1, 3, padding=1))
    models: dict[str, nn.Module] = {
        "Conv2d and ReLU": denoiser("relu", folded=True),
        "denoiser, LLS": denoiser(),
        "denoiser, textbook": textbook_model,
    }
    clean = torch.rand(16, 1, 40, 40)
    cases = {name: _denoiser_step(model, clean) for name, model in models.items()}
    yield compare("Training step of the denoiser, batch 16 of 40x40, TV2 on", cases, repeats=15)


def denoising() -> Iterator[Ratios]:
    """The paper's denoiser on an image, as it ships, against Conv2d and ReLU in the layout that is best for them."""
    bare, shipped = denoiser("relu", folded=True).eval(), plain(denoiser())
    image = torch.rand(1, 1, 320, 320)
    last = copy.deepcopy(bare)
    last.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    gray = image.as_strided(image.shape, (320 * 320, 1, 320, 1))  # says channels last, as no method of torch would
    cases = {
        "Conv2d and ReLU, channels last": inference(last, gray),
        "Conv2d and ReLU": inference(bare, image),
        "plain denoiser, LLS": inference(shipped, image),
    }
    yield compare("The denoiser on an image of 320x320", cases, repeats=15)


def _denoiser_step(model: nn.Module, clean: torch.Tensor) -> TimedCase:
    model = copy.deepcopy(model).train().requires_grad_()
    optimizer = torch.optim.Adam(param_groups(model, lr=1e-4))

    def step() -> None:
        optimizer.zero_grad()
        noisy = clean + 0.06 * torch.randn_like(clean)
        loss = nn.functional.mse_loss(model(noisy), clean) + 1e-6 * tv2(model)
        loss.backward()
        optimizer.step()

    return whole(step)


def ensemble() -> Iterator[Ratios]:
    """Networks of the 1-D experiment trained as one batched model, against one after another [fig:1d_performances].

    Memory is kept between steps on both sides, as `lipspline train` and `lipspline reproduce` do.
    """
    keep_memory()
    alone = [_task_step(_fitting_alone(seed)) for seed in range(75)]
    at_once = {f"{count} at once": _task_step(_fitting_at_once(count)) for count in (1, 25, 75)}
    yield compare("Step of LLS networks, 4 layers of 10", {"1 alone": alone[0], **at_once}, repeats=101)
    cases = {"75 at once": at_once["75 at once"], "75 one after another": lambda: sum(case() for case in alone)}
    yield compare("Step of 75 LLS networks, 4 layers of 10", cases, repeats=15)


def _fitting_alone(seed: int) -> Minimize:
    x, y = (values[0] for values in _sine(1))
    pairs = Pairs(x, y)
    return regression(_fitting_network(seed), pairs, pairs, batch=10, lr=2e-3, tv2_weight=1e-7, seed=seed)


def _fitting_at_once(count: int) -> Minimize:
    models, (x, y) = [_fitting_network(seed) for seed in range(count)], _sine(count)
    return regressions(models, x, y, x, y, seeds=range(count), batch=10, lr=2e-3, tv2_weight=1e-7)


def _fitting_network(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    options = {"radius": 0.5, "regions": 100, "init": "relu"}
    return mlp(1, 1, width=10, depth=4, init="kaiming", activation_options=options)


def _sine(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.linspace(-1, 1, 1000).reshape(1, -1, 1).repeat(count, 1, 1)
    return x, torch.sin(7 * torch.pi * x) / (7 * torch.pi)


def _task_step(task: Minimize) -> TimedCase:
    """What the training loop does in a step, without schedule, logs and checkpoints."""
    optimizer = task.players["model"].optimizer()
    steps = itertools.count()

    def step() -> None:
        optimizer.zero_grad()
        for _, loss in task.updates(next(steps)):
            loss.backward()
            optimizer.step()

    return whole(step)


SUITES: dict[str, Callable[[], Iterator[Ratios]]] = {
    "activations": activations,
    "convolution": convolution,
    "orthonormal": orthonormal,
    "training": training,
    "denoising": denoising,
    "ensemble": ensemble,
    "scaling": scaling,
    "warm": warm,  # last: it changes the allocator for the rest of the process
}

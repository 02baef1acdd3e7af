"""How soon a classifier of digits is 98 % accurate: rotations, Adam, and Adam on Björck layers, by processor time.

`python docs/optimizer_race.py --data FOLDER` (the folder that holds mnist/) prints a table and writes
results/optimizer-race.json. Every way of training has the same network, loss and batches, two rates that fall to zero
along half a cosine, and budgets of steps that double; the cheapest training that ends at the goal counts. (At a
constant rate neither rotations nor Adam on QR layers reached it in 3000 steps, rotations by more.) Tests are not timed.
"""

import argparse
import itertools
import json
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn

import lipspline as ls
from lipspline.functional.matrices import Method
from lipspline.paper.certified_digits import CLASSES, principal_components
from lipspline.paper.wgan import digits

RESULT = Path(__file__).resolve().parents[1] / "results" / "optimizer-race.json"
COMPONENTS, WIDTH, BATCH, MARGIN = 128, 128, 256, 0.5
GOAL, BUDGETS = 0.98, (300, 600, 1200, 2400)
Optimizer = Callable[[nn.Module, float], torch.optim.Optimizer]


def adam(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Adam on the raw matrices of constrained layers."""
    return torch.optim.Adam(ls.param_groups(model, rate), lr=rate)


def rotating(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    """Rotations by the angle `rate`, and Adam for the biases."""
    return ls.optim.rotating(model, 2e-3, angle=rate)


WAYS: dict[str, tuple[Method, Optimizer, tuple[float, ...]]] = {
    "rotations (ls.optim.rotating)": ("qr", rotating, (0.02, 0.05)),
    "Adam, QR layers": ("qr", adam, (3e-3, 1e-2)),
    "Adam, Björck layers": ("bjorck", adam, (3e-3, 1e-2)),
}


def network(images: Tensor, method: Method) -> nn.Module:
    """Principal components, then three orthonormal layers with MaxMin."""
    torch.manual_seed(0)
    sizes = (COMPONENTS, WIDTH, WIDTH, CLASSES)
    layers: list[nn.Module] = [nn.Flatten(), principal_components(images, COMPONENTS)]
    for n_in, n_out in itertools.pairwise(sizes):
        layers += [ls.nn.linear(n_in, n_out, method=method), ls.nn.MaxMin()]
    return nn.Sequential(*layers[:-1])


def race(way: str, rate: float, steps: int, data: Path) -> tuple[float, float]:
    """Seconds of the processor for a training of so many steps, and the accuracy at its end."""
    training, test = (digits(part, data) for part in ("train", "test"))
    method, build, _ = WAYS[way]
    model = network(training.images, method)
    optimizer = build(model, rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    order = torch.randperm(len(training.images), generator=torch.Generator().manual_seed(0))
    begin = time.process_time()
    for step in range(steps):
        rows = order[torch.arange(step * BATCH, (step + 1) * BATCH) % len(order)]
        optimizer.zero_grad()
        loss = ls.robust.multi_margin_loss(model(training.images[rows]), training.labels[rows], margin=MARGIN)
        loss.backward()
        optimizer.step()
        schedule.step()
    seconds = time.process_time() - begin
    with torch.no_grad():
        return seconds, ls.robust.certified_accuracy(model(test.images), test.labels, 0.0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    data = parser.parse_args().data
    torch.set_num_threads(1)
    found: dict[str, list[dict]] = {}
    for way, (_, _, rates) in WAYS.items():
        for rate, steps in itertools.product(rates, BUDGETS):
            runs = found.setdefault(way, [])
            if any(run["rate"] == rate and run["accuracy"] >= GOAL for run in runs):
                continue
            seconds, accuracy = race(way, rate, steps, data)
            runs.append({"rate": rate, "steps": steps, "seconds": seconds, "accuracy": accuracy})
            print(f"{way}, rate {rate:g}, {steps} steps: {100 * accuracy:.2f} % in {seconds:.1f} s", flush=True)
        there = [run["seconds"] for run in runs if run["accuracy"] >= GOAL]
        print(f"{way}: {100 * GOAL:g} % " + (f"in {min(there):.1f} s" if there else "not reached"), flush=True)
    RESULT.write_text(json.dumps({"goal": GOAL, "torch": torch.__version__, "ways": found}, indent=2) + "\n")


if __name__ == "__main__":
    main()

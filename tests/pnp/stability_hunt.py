"""A hunt for perturbed data that move a reconstruction further than its certificate allows.

    python tests/pnp/stability_hunt.py 10000

Each problem has a random operator, a prior that ships at a random strength, and data of a random size; it is perturbed
at random and by ascent. Every constant that a certificate states is compared with what was measured.
"""

import math
import random
import sys
from collections import defaultdict

import torch
from certified_denoisers import haar_frame

from lipspline.models import denoiser
from lipspline.networks import plain
from lipspline.operators import (
    MRI,
    Blur,
    Identity,
    Inpainting,
    MultiCoilMRI,
    ParallelBeamCT,
    cartesian_mask,
    simulated_maps,
)
from lipspline.pnp import Evidence, stability
from lipspline.priors import EnergyPrior, resolve

SIZE = 12
MASK = cartesian_mask(SIZE, 2, 0.25)
OPERATORS = {
    "mri": MRI(MASK),
    "complex mri": MRI(MASK, convention="centred"),
    "multi-coil mri": MultiCoilMRI(MASK, simulated_maps(3, (SIZE, SIZE))),
    "ct": ParallelBeamCT(SIZE, 8, 18),
    "blur": Blur(torch.ones(3, 3) / 9, (1, SIZE, SIZE)),
    "inpainting": Inpainting(torch.rand(1, SIZE, SIZE, generator=torch.Generator().manual_seed(0)) > 0.4),
    "identity": Identity((1, SIZE, SIZE)),
}
ENERGIES = ("ridge", "ridge-adaptive", "tv", "wavelet")
DENOISERS = ("lls", "av", "gs", "wavelet shrinkage")
RANDOM, ASCENTS = 100, 20


def attack(seed: int, perturbations: int = RANDOM, ascents: int = ASCENTS) -> tuple[str, Evidence]:
    """One problem and its perturbations; `seed` chooses them all."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    H = OPERATORS[draw.choice(sorted(OPERATORS))]
    x = torch.rand(1, 1, SIZE, SIZE, dtype=torch.float64) * draw.choice([0.3, 1.0, 3.0])
    y = H.forward(x.round(decimals=draw.choice([0, 1, 9])))
    options = {"perturbations": perturbations, "ascents": ascents, "ascent_steps": 3, "seed": seed}
    options |= {"size": 10 ** draw.uniform(-3, 0), "tol": 1e-5, "max_steps": 300}
    name = draw.choice(ENERGIES + DENOISERS)
    if name in ENERGIES:
        prior, level = resolve(name), draw.choice([3.0, 8.0, 20.0])
        assert isinstance(prior, EnergyPrior)
        strength = prior.strength(level, level) * 10 ** draw.uniform(-2, 1)
        return name, stability(y, H, prior.at(level), strength, **options)
    served = haar_frame(0.1, 2) if name == "wavelet shrinkage" else random_network(name)
    contraction, beta = draw.choice([1.0, 0.99, 0.9]), draw.uniform(0.05, 0.5)
    return name, stability(y, H, served, beta, contraction=contraction, **options)


def random_network(activation: str) -> torch.nn.Module:
    """A small denoiser with random weights, certified like every other."""
    return plain(denoiser(activation, channels=8, depth=3).double())


def fractions(evidence: Evidence) -> dict[str, float]:
    """The largest measured ratio over each constant that is claimed."""
    claimed = {e.label: e.constant for e in evidence.solution.certificate.estimates if e.constant}
    measured = {label: max(evidence.worst(label, optimised=how) for how in (True, False)) for label in claimed}
    return {label: measured[label] / constant for label, constant in claimed.items()}


def hunt(count: int, first: int = 0) -> None:
    """Perturb until `count` perturbations were tried; stop at the first that breaks a constant."""
    worst: dict[str, float] = defaultdict(float)
    tried, seed = 0, first
    while tried < count:
        name, evidence = attack(seed)
        if not evidence.holds:
            raise SystemExit(f"seed {seed}, {name}: a constant is exceeded\n{evidence}")
        tried += len(evidence.perturbations)
        for label, fraction in fractions(evidence).items():
            if math.isfinite(fraction):
                worst[f"{name} [{label}]"] = max(worst[f"{name} [{label}]"], fraction)
        seed += 1
        if seed % 20 == 0:
            print(f"{tried} perturbations of {seed - first} problems, none beyond its constant", flush=True)
    for label, fraction in sorted(worst.items()):
        print(f"  {label}: at most {fraction:.3g} of the constant")
    print(f"{tried} perturbations of {seed - first} problems, none beyond its constant")


if __name__ == "__main__":
    hunt(int(sys.argv[1]) if len(sys.argv) > 1 else 1000, int(sys.argv[2]) if len(sys.argv) > 2 else 0)

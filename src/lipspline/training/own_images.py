"""A denoiser trained on a folder of one's own images: prepared, estimated, resumable, certified when it is written."""

import copy
import hashlib
import math
import time
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from lipspline._infra import checks, devices, files, ranks
from lipspline._infra.randomness import generator
from lipspline.formats import datasets
from lipspline.formats.datasets import NamedImage, NoisyImage
from lipspline.networks.builders import Network, denoiser
from lipspline.networks.files import load, save
from lipspline.training.log import Observer
from lipspline.training.loop import Plan, fit
from lipspline.training.schedules import one_cycle
from lipspline.training.slopes import learn_coefficients, learn_slopes
from lipspline.training.tasks import Minimize, denoising, mean_quality

STEPS = 4000
"""How long a training takes unless said otherwise: 20 to 30 minutes on two cores."""
CHANNELS, DEPTH = 64, 8
BATCH, PATCH, LR, SLOPES, ROTATIONS = 8, 40, 1e-2, 0.1, 0.02  # those of the denoisers that ship, see docs/denoisers.md
MOST_PIXELS = 128 * 2**20
"""How many pixels of all images together are kept in memory (at four scales, so about three times as many bytes)."""
LARGEST_SIDE, VALIDATION_SIDE = 1024, 256
VALIDATION_PART, MOST_VALIDATION = 10, 12  # one image in ten is for validation, at least one and at most twelve
SPLIT_SEED = 0
"""Which images validate depends on the number of images and on nothing else."""
TIMED_STEPS = 3


@dataclass(frozen=True)
class OwnImages:
    """The training of a spline denoiser on the images of a folder.

    Args:
        folder: holds PNG, TIFF, JPEG or npy images; colour becomes gray.
        out: the .safetensors file to write. What a training needs to go on is in a folder beside it.
        noise: the noise level to remove, in units of 1/255 for gray values in [0, 1].
        steps: how long.
        seed: of weights, patches and noise.
    """

    folder: Path
    out: Path
    noise: float
    steps: int = STEPS
    seed: int = 0

    def __post_init__(self):
        checks.positive("noise", self.noise, "It is the noise level, in units of 1/255.")
        checks.at_least("steps", self.steps, 1)
        if self.out.suffix != ".safetensors":
            raise ValueError(f"out must be the name of a .safetensors file, but is {str(self.out)!r}.")

    @property
    def work(self) -> Path:
        """Where the training keeps its checkpoints and its log."""
        return self.out.with_suffix(".training")

    @cached_property
    def images(self) -> tuple[list[NamedImage], list[NamedImage]]:
        """The images to train on and those to validate on; of large ones a window."""
        paths = datasets.image_files(self.folder)
        if len(paths) < 2:
            raise ValueError(f"The folder {self.folder} holds one image; at least two are needed, one for validation.")
        side = max(2 * PATCH, min(LARGEST_SIDE, math.isqrt(MOST_PIXELS // len(paths))))
        found = [_window(NamedImage(path.name, datasets.read_gray(path)), side) for path in paths]
        count = min(max(1, len(found) // VALIDATION_PART), MOST_VALIDATION)
        order = torch.randperm(len(found), generator=generator(SPLIT_SEED, "validation")).tolist()
        chosen = sorted(order[:count])
        validation = [_window(found[number], VALIDATION_SIDE) for number in chosen]
        return [image for number, image in enumerate(found) if number not in chosen], validation

    @cached_property
    def config(self) -> dict[str, Any]:
        """What the training depends on, besides the noise level."""
        digest = hashlib.sha256()
        for image in (*self.images[0], *self.images[1]):
            digest.update(f"{image.name} {image.pixels.shape}".encode())
            digest.update(image.pixels.tobytes())
        return {
            "activation": "lls", "channels": CHANNELS, "depth": DEPTH, "steps": self.steps, "batch": BATCH,
            "patch": PATCH, "lr": LR, "slopes": SLOPES, "rotations": ROTATIONS, "seed": self.seed,
            "images": digest.hexdigest(),
        }  # fmt: skip

    def finished(self) -> bool:
        """Whether the file is there already, made by this very training.

        Raises:
            FileExistsError: there is a file, but it was not made by this training.
        """
        if not self.out.exists():
            return False
        provenance = load(self.out).provenance
        if (provenance.get("noise"), provenance.get("trained")) != (self.noise, self.config):
            raise FileExistsError(
                f"{self.out} exists, and was not made by this training. Choose another name, or remove it."
            )
        return True

    def estimate(self) -> float:
        """About how many seconds the training, or what is left of it, will take on this machine: a few steps, timed."""
        with torch.random.fork_rng(devices=[]):
            task = self._task(self._build(), [])
            fit(task, Plan(1))
            begin = time.perf_counter()
            fit(task, Plan(TIMED_STEPS))
        done = max((int(path.stem.partition("-")[2]) for path in self.work.glob("step-*.safetensors")), default=0)
        return (time.perf_counter() - begin) / TIMED_STEPS * (self.steps - done)

    def run(self, observers: Sequence[Observer] = ()) -> dict[str, Any]:
        """Train, or go on where a training was stopped, and write the certified denoiser; returns its provenance.

        Raises:
            BlockingIOError: another process is training the same file.
        """
        lock = files.locked(self.work / "lock", str(self.out)) if ranks.is_main() else nullcontext()
        with lock:
            if self.finished():
                return load(self.out).provenance
            model, validation = self._build(), datasets.noisy_images(self.images[1], self.noise / 255, self.seed)
            task = self._task(model, validation)
            plan = Plan(
                self.steps, schedule=one_cycle, average=0.99, log_every=20, evaluate_every=500, checkpoint_every=100
            )  # fmt: skip
            identity = {"noise": self.noise, **self.config}
            evidence = fit(task, plan, folder=self.work, config=identity, observers=observers)
            learn_coefficients(model)
            curve = [[line["step"], line["psnr"]] for line in evidence.log if "psnr" in line]
            provenance = self._provenance(model, validation, curve)
            if ranks.is_main():
                save(model, self.out, provenance)
                for checkpoint in self.work.glob("step-*.safetensors"):
                    checkpoint.unlink()
        return provenance

    def _build(self) -> Network:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model = denoiser("lls", CHANNELS, DEPTH, padding_mode="zeros")
        learn_slopes(model)
        return model.to(devices.current())

    def _task(self, model: Network, validation: Sequence[NoisyImage]) -> Minimize:
        patches = datasets.RandomCrops(self.images[0], size=PATCH, seed=self.seed)
        task = denoising(
            model,
            patches,
            validation,
            noise=self.noise / 255,
            batch=BATCH,
            lr=LR,
            slopes=SLOPES,
            rotations=ROTATIONS,
            seed=self.seed,
        )
        return task if validation else Minimize(model, LR, task.loss, dict, slopes=SLOPES, rotations=ROTATIONS)

    def _provenance(self, model: Network, validation: Sequence[NoisyImage], curve: list) -> dict[str, Any]:
        scores, before = mean_quality(copy.deepcopy(model).eval(), validation), mean_quality(lambda x: x, validation)
        return {
            "noise": self.noise,
            "range": [0, 1],
            "trained": self.config,
            "data": f"{len(self.images[0])} images of one's own, and {len(validation)} for validation",
            "scores": {"validation": {**scores, "noisy_psnr": before["psnr"], "profile": "paper"}},
            "validation": curve,
        }


def _window(image: NamedImage, side: int) -> NamedImage:
    """At most `side` by `side` pixels of an image, at a place that depends on its name alone."""
    stream = generator(SPLIT_SEED, "window", image.name)
    cuts = []
    for length in image.pixels.shape:
        start = int(torch.randint(max(1, length - side + 1), (1,), generator=stream))
        cuts.append(slice(start, start + side))
    return NamedImage(image.name, image.pixels[tuple(cuts)].copy())

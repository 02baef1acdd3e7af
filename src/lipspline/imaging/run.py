"""From a scan to images with a certificate: slice by slice, on one process or many, resumable [eq:pnp_fbs]."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lipspline.formats.volume import Volume
from lipspline.imaging.finished import Finished, Slice
from lipspline.imaging.problem import EmptySlice, Scan
from lipspline.imaging.solved import Iteration, solve_problem
from lipspline.imaging.strength import Strength
from lipspline.pnp import ReconstructionCertificate, solve_all
from lipspline.pnp.iterate import Progress

Watch = Callable[[int, Progress | None], None]
"""Told of a slice (by its place in the scan) after every denoiser call, and with None when it is done."""


@dataclass(frozen=True)
class Reconstruction:
    """All slices of a scan."""

    scan: Scan
    slices: tuple[Slice, ...]

    @property
    def volume(self) -> Volume:
        """The images, of complex ones the modulus, in the unit of the scan."""
        images = torch.stack([self._values(done) for done in self.slices])
        return Volume(
            (images.abs() if images.is_complex() else images).float(),
            self.scan.affine,
            self.scan.unit,
            self.scan.identity,
        )

    @property
    def complex_images(self) -> Tensor | None:
        """The images with their phase; None if they are real."""
        if not self.slices[0].image.is_complex():
            return None
        return torch.stack([self._values(done) for done in self.slices])

    @property
    def unsettled(self) -> list[Slice]:
        """Slices that did not reach the tolerance."""
        return [done for done in self.slices if done.run is not None and not done.run.converged]

    @property
    def empty(self) -> list[Slice]:
        """Slices whose data are zero everywhere, which were not solved."""
        return [done for done in self.slices if done.run is None]

    @property
    def certificates(self) -> list[ReconstructionCertificate]:
        """What is proven about each slice that was solved."""
        return [done.certificate for done in self.slices if done.certificate is not None]

    def document(self) -> dict[str, Any]:
        """The certificate of all slices as JSON values, with means of what was measured."""
        solved = [done for done in self.slices if done.run is not None]
        means = mean([done.quality for done in solved])
        direct = mean([done.direct_quality for done in solved])
        return {
            "scan": self.scan.summary,
            "guaranteed": all(certificate.guaranteed for certificate in self.certificates),
            "converged": not self.unsettled,
            "lipschitz": max(
                getattr(certificate.setting, "denoiser", None) or 0.0 for certificate in self.certificates
            ),
            **({"mean": means, "mean_direct": direct, "profile": "paper"} if means else {}),
            "slices": [done.document() for done in self.slices],
        }

    def _values(self, done: Slice) -> Tensor:
        return self.scan.values(done.image, done.scale)


def mean(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each score that every slice has.

    Example:
        >>> mean([{"psnr": 30.0, "ssim": 0.9}, {"psnr": 32.0}])
        {'psnr': 31.0}
    """
    shared = [name for name in scores[0] if all(name in one for one in scores)]
    return {name: sum(one[name] for one in scores) / len(scores) for name in shared}


def reconstruct(
    scan: Scan,
    strength: Strength,
    iteration: Iteration,
    folder: Path,
    settings: dict[str, Any],
    *,
    first: int = 0,
    watch: Watch | None = None,
) -> tuple[Reconstruction, Finished]:
    """Solve every slice of a scan; under torchrun the slices are shared out.

    Args:
        folder: where finished slices are kept.
        settings: all that the result depends on, as JSON values; slices kept by a run with other settings are not used.
        first: number of the first slice in its file.
        watch: is told how it goes.
    """
    finished = Finished(folder, settings)

    def run(i: int) -> Slice:
        done = finished.load(first + i)
        if done is None:
            done = _solve(scan, i, first + i, strength, iteration, watch)
            finished.keep(done)
        if watch is not None:
            watch(i, None)
        return done

    return Reconstruction(scan, tuple(solve_all(run, range(scan.count)))), finished


def _solve(scan: Scan, i: int, number: int, strength: Strength, iteration: Iteration, watch: Watch | None) -> Slice:
    begin = time.perf_counter()
    try:
        problem = scan.problem(i)
    except EmptySlice as empty:
        return Slice(number, empty.image, empty.image, None, 1.0, 0.0, {}, {}, None, None, 0.0)
    follow = None if watch is None else partial(watch, i)
    solution = solve_problem(
        strength.name, problem, strength.denoiser, strength.beta, iteration, progress=follow
    ).solution
    return Slice(
        number,
        problem.image(solution.value),
        problem.image(problem.direct),
        problem.truth,
        problem.scale,
        problem.noise,
        problem.quality(solution.value),
        problem.quality(problem.direct),
        solution.images[0],
        solution.certificate,
        time.perf_counter() - begin,
        problem.misfit(solution.value),
    )

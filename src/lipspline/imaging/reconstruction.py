"""From a request to images with a certificate: slice by slice, on one process or many, resumable [eq:pnp_fbs]."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, overload

import torch
from torch import Tensor, nn

import lipspline
from lipspline._infra import checks, devices
from lipspline._infra.files import checksum, fingerprint, write_whole
from lipspline.formats.output import PAGE, Output, versions
from lipspline.formats.volume import LazyVolume, Stack, Volume
from lipspline.formats.writers import Image, writer
from lipspline.imaging.cache import Slice, SliceCache, SliceImages
from lipspline.imaging.held_out import MOST_TRIALS, Trials
from lipspline.imaging.problem import (
    EmptySlice,
    Iteration,
    Problem,
    Scan,
    central_problem,
    display_scale,
    solve_problem,
)
from lipspline.imaging.request import Request
from lipspline.imaging.scanners import ACQUISITIONS, Acquisition, Data
from lipspline.imaging.strength import Auto, Strength, choose, describe_prior, known, predicted
from lipspline.pnp import Progress, ReconstructionCertificate, solve_all
from lipspline.priors import Energy
from lipspline.report import Agreement, Case, DataMisfit, Picture, reconstruction_page

Watch = Callable[[int, Progress | None], None]
"""Called with the place of a slice in the scan after every denoiser call, and with None when the slice is done."""
Tell = Callable[[int, int, str], None]
"""Called with the number of a prior from 1, how many priors there are, and what comes next; nothing means solving."""


@dataclass(frozen=True)
class Rival:
    """The slice `done.number` reconstructed with another prior, for comparison."""

    strength: Strength
    done: Slice
    held_out: DataMisfit | None = None
    """How well it predicts measurements that were held out; see `strength.predicted`."""

    def document(self) -> dict[str, Any]:
        """What came of it, as JSON values."""
        held = None if self.held_out is None else asdict(self.held_out)
        return {"prior": self.strength.name, "weight": self.strength.weight, "held_out": held, **self.done.document()}


@dataclass(frozen=True)
class Reconstruction:
    """All slices of a scan, with what is proven about them."""

    request: Request
    scan: Scan
    strength: Strength
    slices: tuple[Slice, ...]
    rivals: tuple[Rival, ...] = ()
    held_out: DataMisfit | None = None
    """Where there are rivals, what `Rival.held_out` is for the slice that they reconstruct."""

    @property
    def images(self) -> Tensor:
        """`(S, h, w)` in the unit of the data, complex where their phase is known."""
        return torch.stack([self.scan.values(done.image, done.scale) for done in self.slices])

    @property
    def volume(self) -> Volume:
        """The images, of complex ones the modulus, with their place in space."""
        lazy = self._lazy(_moduli)
        slices = torch.stack([lazy.slices[i] for i in range(len(lazy.slices))])
        return Volume(slices, lazy.affine, lazy.unit, lazy.identity)

    def _lazy(self, shown: Callable[[Tensor], Tensor]) -> LazyVolume:
        """The images one by one, as they are written: those that a cache keeps are not in memory together."""

        def load(few: range) -> Tensor:
            images = [shown(self.scan.values(self.slices[i].image, self.slices[i].scale)) for i in few]
            advice = "Scale the data down: they exceed the range of float32."
            return checks.finite("The reconstruction", torch.stack(images), advice)

        slices = Stack((len(self.slices), *self.slices[0].image.shape), load)
        return LazyVolume(slices, self.scan.affine, self.scan.unit, self.scan.identity)

    @property
    def solved(self) -> list[Slice]:
        """The slices that are not empty."""
        return [done for done in self.slices if done.run is not None]

    @property
    def empty(self) -> list[Slice]:
        """Slices whose data are zero everywhere, which were not solved."""
        return [done for done in self.slices if done.run is None]

    @property
    def unsettled(self) -> list[Slice]:
        """Slices that did not reach the tolerance."""
        return [done for done in self.slices if done.run is not None and not done.run.converged]

    def fitting(self, fit: Agreement) -> list[Slice]:
        """Slices whose data misfit noise explains, or not, or only in part."""
        return [done for done in self.solved if done.misfit.fit is fit]

    @property
    def certificates(self) -> list[ReconstructionCertificate]:
        """What is proven about each slice that was solved."""
        return [done.certificate for done in self.slices if done.certificate is not None]

    def document(self) -> dict[str, Any]:
        """The certificate of all slices as JSON values, with means of what was measured."""
        means = mean([done.quality for done in self.solved])
        direct = mean([done.direct_quality for done in self.solved])
        chosen, asked = self.strength, self.request.prior
        source = chosen.prior.name if asked == "auto" else str(asked)
        return {
            "input": self.request.source,
            "inputs": {str(file): fingerprint(file) for file in self.request.files() if file.exists()},
            "options": self.request.options(),
            "prior": describe_prior(source, chosen.prior, chosen.served, chosen.noise, chosen.range, chosen.upper),
            "weight": {"value": chosen.weight, "chosen": chosen.chosen},
            "versions": versions(),
            "scan": self.scan.summary,
            "unit": self.scan.unit,
            "guaranteed": all(certificate.guaranteed for certificate in self.certificates),
            "converged": not self.unsettled,
            "lipschitz": known(chosen.upper),
            "misfit_explained": not self.fitting(Agreement.UNEXPLAINED),
            "misfit_doubtful": bool(self.fitting(Agreement.DOUBTFUL)),
            "notes": list(self.scan.notes),
            **({"mean": means, "mean_direct": direct, "profile": "paper"} if means else {}),
            **({"compared": [rival.document() for rival in self.rivals]} if self.rivals else {}),
            **({"held_out": asdict(self.held_out)} if self.held_out is not None else {}),
            "slices": [done.document() for done in self.slices],
        }

    def save(self, path: str | Path, *, report: bool = False, force: bool = False) -> dict[str, Any]:
        """Write the images in the format that the name stands for, and beside them the certificate `path`.json.

        Args:
            report: write a page `path`.html too.
            force: replace an earlier result; nothing that lipspline did not write is ever replaced.

        Returns:
            the certificate.
        """
        output = Output(path, page=report)
        with output.open(self.request.files(), force=force):
            return self.commit(output)

    def report(self, path: str | Path, command: str = "") -> Path:
        """Write a page that shows the images and the proof."""
        write_whole(Path(path), self.page(command))
        return Path(path)

    def commit(self, output: Output, command: str = "") -> dict[str, Any]:
        """Write into an output that is open; returns the certificate."""
        volume = self._lazy(_moduli)
        description = f"lipspline {lipspline.__version__}: {self.strength.method}. {self.scan.summary}"
        phases = self._lazy(lambda image: image).slices if self.slices[0].image.is_complex() else None
        image, write = Image(volume, self.scan.modality, description, phases), writer(output.path, len(volume.slices))
        makers: dict[str, Callable[[Path], object]] = {"": lambda draft: write(draft, image)}
        if PAGE in output.endings:
            makers[PAGE] = lambda draft: draft.write_bytes(self.page(command))
        return output.commit({"output": str(output.path), **self.document()}, makers)

    def page(self, command: str = "") -> bytes:
        """A page of HTML with all slices that were solved."""
        cases = _Cases(self._case, self.solved)
        title = Path(self.request.source).name
        page = reconstruction_page(cases, denoiser=self._network, command=command, title=title)
        return page.encode("utf-8", "backslashreplace")

    @property
    def _network(self) -> nn.Module | None:
        """The network that a page shows layer by layer."""
        return None if isinstance(self.strength.served, Energy) else self.strength.served

    def _case(self, done: Slice) -> Case:
        images, rivals = done.pictures(), [rival for rival in self.rivals if rival.done.number == done.number]
        return Case(
            f"Slice {done.number}",
            (
                Picture(self.scan.direct_name, images.direct),
                *(_picture(rival.strength, rival.done, rival.held_out) for rival in rivals),
                _picture(self.strength, done, self.held_out if rivals else None),
            ),
            reference=images.truth,
            summary=f"{self.scan.summary}.",
            number=done.number,
            rescale=display_scale(self.scan, done.scale),
            notes=self.scan.notes,
            reference_measured="psnr_object" in done.quality,
        )


class _Cases(Sequence[Case]):
    """What a page shows of each slice, made when it is asked for."""

    def __init__(self, make: Callable[[Slice], Case], slices: Sequence[Slice]):
        self._make, self._slices = make, slices

    def __len__(self) -> int:
        return len(self._slices)

    @overload
    def __getitem__(self, i: int) -> Case: ...

    @overload
    def __getitem__(self, i: slice) -> Sequence[Case]: ...

    def __getitem__(self, i: int | slice) -> Case | Sequence[Case]:
        return _Cases(self._make, self._slices[i]) if isinstance(i, slice) else self._make(self._slices[i])


def _picture(strength: Strength, done: Slice, held: DataMisfit | None) -> Picture:
    image = done.image
    solution = done.solution(image)
    return Picture(strength.method, image, solution, seconds=done.seconds, misfit=done.misfit, held_out=held)


def _moduli(image: Tensor) -> Tensor:
    """What is written of an image."""
    return (image.abs() if image.is_complex() else image).float()


def mean(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each score that every slice has.

    Example:
        >>> mean([{"psnr": 30.0, "ssim": 0.9}, {"psnr": 32.0}])
        {'psnr': 31.0}
    """
    shared = [name for name in scores[0] if all(name in one for one in scores)]
    return {name: sum(one[name] for one in scores) / len(scores) for name in shared}


def reconstruct(
    data: Data,
    *,
    acquisition: Acquisition | str = "mri",
    prior: str | Path = "auto",
    strength: float | Auto = "auto",
    noise: float | Auto = "auto",
    beta: float | Auto = "auto",
    slices: slice = slice(None),
    tol: float = Iteration.tol,
    max_steps: int = Iteration.max_steps,
    accelerate: bool = Iteration.accelerate,
    contraction: float = Iteration.contraction,
    compare: Sequence[str | Path] = (),
    cache: str | Path | None = None,
    watch: Watch | None = None,
) -> Reconstruction:
    """Reconstruct images from k-space or sinograms, with a certificate: what the command line does [eq:pnp_fbs].

    Args:
        data: a file or folder, or an array: complex k-space `(H, W)`, `(S, H, W)` or `(S, C, H, W)`, frequency zero in
            the middle; real sinograms `(A, D)` or `(S, A, D)`, or images to simulate them from.
        acquisition: how they were measured: `ScannerMRI(...)`, `ScannerCT(...)`, or "mri" or "ct" for the default.
        prior, strength, noise, beta, slices, tol, max_steps, accelerate, contraction, compare: see `Request`.
        cache: a folder where finished slices are kept, so that the same call goes on after it was stopped. Their images
            stay there, not in memory, and are read when they are asked for.
        watch: is told how it goes.

    Example:
        >>> square = torch.zeros(32, 32)
        >>> square[8:24, 8:24] = 1
        >>> half = lipspline.ScannerMRI(acceleration=2, simulate=True)
        >>> done = lipspline.reconstruct(square, acquisition=half, max_steps=20)
        >>> done.images.shape, done.document()["guaranteed"]
        (torch.Size([1, 32, 32]), True)
    """
    if isinstance(acquisition, str):
        acquisition = ACQUISITIONS[checks.one_of("acquisition", acquisition, ACQUISITIONS)]()
    request = Request(
        data=data,
        acquisition=acquisition,
        prior=str(prior),
        strength=strength,
        noise=noise,
        beta=beta,
        slices=slices,
        tol=tol,
        max_steps=max_steps,
        accelerate=accelerate,
        contraction=contraction,
        compare=tuple(map(str, compare)),
    )
    return carry_out(request, cache=None if cache is None else Path(cache), watch=watch)


def carry_out(
    request: Request,
    scan: Scan | None = None,
    *,
    cache: Path | None = None,
    watch: Watch | None = None,
    tell: Tell = lambda *_: None,
) -> Reconstruction:
    """Solve every slice that a request names; under torchrun the slices are shared out.

    Args:
        scan: what the request asks for, if it was read already.
        cache: a folder where finished slices are kept.
        watch: is told how it goes.
        tell: is told which prior is worked with, and what for.
    """
    scan = request.acquisition.scan(request.data, request.slices) if scan is None else scan
    number, central = central_problem(scan)
    central = central.to(devices.current())
    factor, priors = 1.0 if request.strength == "auto" else request.strength, 1 + len(request.compare)

    def chosen(k: int, prior: str, noise: float | Auto = "auto", beta: float | Auto = "auto") -> Strength:
        words = "choosing the strength"
        tell(k, priors, words)
        trials = Trials(lambda number: tell(k, priors, f"{words}, trial {number} of at most {MOST_TRIALS}"))
        return choose(prior, noise, beta, central, factor, max_steps=request.max_steps, watch=trials)

    strength = chosen(1, request.prior, request.noise, request.beta)
    tell(1, priors, "")
    kept = None if cache is None else SliceCache(cache, _settings(request, scan, strength))
    built = {number: central}

    def run(i: int) -> Slice:
        done = None if kept is None else kept.load(request.first + i)
        if done is None:
            done = _solve(scan, i, built.pop(i, None), request, strength, watch)
            done = done if kept is None else kept.keep(done)
        if watch is not None:
            watch(i, None)
        return done

    slices = tuple(solve_all(run, range(scan.count)))
    follow = None if watch is None else partial(watch, number)

    def predicts(k: int, used: Strength) -> DataMisfit | None:
        tell(k, priors, "predicting what is held out")
        return predicted(central, used, request, follow)

    held = predicts(1, strength) if request.compare else None
    rivals = []
    for k, other in enumerate(request.compare, 2):
        rival = chosen(k, other)
        misfit = predicts(k, rival)
        tell(k, priors, "")
        rivals.append(Rival(rival, _solve(scan, number, central, request, rival, watch), misfit))
    return Reconstruction(request, scan, strength, slices, tuple(rivals), held)


def _solve(
    scan: Scan, i: int, problem: Problem | None, request: Request, strength: Strength, watch: Watch | None
) -> Slice:
    begin, number = time.perf_counter(), request.first + i
    try:
        problem = scan.problem(i).to(devices.current()) if problem is None else problem
    except EmptySlice as empty:
        nothing = SliceImages(empty.image, empty.image, None)
        return Slice(number, nothing, 1.0, 0.0, {}, {}, DataMisfit(0.0, 0.0), None, None, 0.0)
    follow = None if watch is None else partial(watch, i)
    _, solution, _ = solve_problem(strength.name, problem, strength.served, strength.weight, request, progress=follow)
    return Slice(
        number,
        SliceImages(
            problem.image(solution.value).cpu(),
            problem.image(problem.direct).cpu(),
            None if problem.truth is None else problem.truth.cpu(),
        ),
        problem.scale,
        problem.noise,
        problem.quality(solution.value),
        problem.quality(problem.direct),
        problem.misfit(solution.value),
        solution.images[0],
        solution.certificate,
        time.perf_counter() - begin,
        problem.map_errors,
        problem.map_passes,
    )


def _settings(request: Request, scan: Scan, strength: Strength) -> dict[str, Any]:
    """All that a slice depends on, so that slices of another request are not mistaken for those of this one."""
    return {
        "lipspline": lipspline.__version__,
        "request": request.fingerprint(),
        "scan": scan.summary,
        "weight": strength.weight,
        "prior": [strength.name, checksum(strength.served.state_dict())],
    }

"""Damage files of every format and see that the command line stays calm.

    python tests/fuzz.py [--count 2000] [--seed 0] [--at-once 50] [--readers]

Each file is reconstructed by `lipspline reconstruct`, or with --readers only read, which is faster. What may happen:
success, or one sentence on stderr, exit code 2 and no output (of a reader: a ValueError or OSError of one line). What
may not: a traceback, a crash, more than 20 seconds of work, more than 2 GB, NaN. Files are worked off in processes of
their own, so that a crash is counted and the rest goes on; the files that failed are kept.
"""

import argparse
import contextlib
import io
import resource
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

import sample_files

SECONDS, MEMORY = 20.0, 2 * 10**9
Damage = Callable[[bytes, np.random.Generator], bytes]


def truncated(content: bytes, rng: np.random.Generator) -> bytes:
    return content[: rng.integers(len(content))]


def with_flipped_bits(content: bytes, rng: np.random.Generator) -> bytes:
    changed = bytearray(content)
    for _ in range(rng.integers(1, 9)):
        changed[rng.integers(len(changed))] ^= 1 << rng.integers(8)
    return bytes(changed)


def with_flipped_head(content: bytes, rng: np.random.Generator) -> bytes:
    head = with_flipped_bits(content[:600], rng)
    return head + content[600:]


def with_absurd_numbers(content: bytes, rng: np.random.Generator) -> bytes:
    numbers = [0, 1, -1, 2**15, 2**31 - 1, 2**32 - 1, 2**40, 2**63 - 1]
    changed = bytearray(content)
    for _ in range(rng.integers(1, 4)):
        number, size = int(rng.choice(numbers)), int(rng.choice([2, 4, 8]))
        code = {2: "<H", 4: "<I", 8: "<Q"}[size]
        at = int(rng.integers(min(len(changed), int(rng.choice([400, 4000, 10**9])))))
        changed[at : at + size] = struct.pack(code, number % 2 ** (8 * size))
    return bytes(changed)


def with_a_hole(content: bytes, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(content)))
    return content[:start] + content[start + int(rng.integers(1, 65)) :]


def with_noise_inside(content: bytes, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(content)))
    return content[:start] + rng.bytes(int(rng.integers(1, 65))) + content[start:]


def with_a_stretch_repeated(content: bytes, rng: np.random.Generator) -> bytes:
    start = int(rng.integers(len(content)))
    stretch = content[start : start + int(rng.integers(1, 257))]
    return content[:start] + stretch * int(rng.integers(2, 9)) + content[start:]


DAMAGES: tuple[Damage, ...] = (
    truncated,
    with_flipped_bits,
    with_flipped_head,
    with_absurd_numbers,
    with_a_hole,
    with_noise_inside,
    with_a_stretch_repeated,
)


def sound_files(folder: Path) -> list[tuple[str, Path]]:
    """Every sample file with the command that reads it: words, with {file} and {out} where they belong."""
    images = sample_files.IMAGE_FILES
    mri, ct = "reconstruct mri {file} {out}", "reconstruct ct {file} {out}"
    kinds = [
        (mri, sample_files.MRI_FILES | sample_files.TRAJECTORY_FILES),
        (f"{mri} --simulate", images | sample_files.REFUSED_FILES),
        (ct, sample_files.SINOGRAM_FILES | sample_files.SCANNER_FILES),
        (f"{ct} --simulate --angles 12 --detectors 30", {name: images[name] for name in ("slice.dcm", "series")}),
        ("denoise {file} {out} --noise 10", sample_files.PICTURE_FILES),
        ("weights", sample_files.WEIGHTS_FILES),
    ]
    beside = {
        "mask": f"reconstruct mri {_measured(folder, sample_files.multi_coil())} {{out}} --mask {{file}}",
        "maps": f"reconstruct mri {_measured(folder, sample_files.multi_coil())} {{out}} --coils {{file}}",
        "trajectory": f"reconstruct mri {_measured(folder, sample_files.on_spirals())} {{out}} --trajectory {{file}}",
        "angles": f"reconstruct ct {_measured(folder, sample_files.sinograms())} {{out}} --angles {{file}}",
        "flat": f"reconstruct ct {_measured(folder, 100 + sample_files.sinograms())} {{out}} --flat {{file}}",
    }
    kinds += [(beside[name.split(".")[0]], {name: write}) for name, write in sample_files.BESIDE_FILES.items()]
    made = []
    for command, files in kinds:
        place = folder / str(len(made))
        place.mkdir(parents=True)
        made += [(command, write(place / name)) for name, write in files.items()]
    return made


def _measured(folder: Path, array: np.ndarray) -> Path:
    """A sound measurement, for what is given beside it."""
    folder.mkdir(parents=True, exist_ok=True)
    return sample_files.write_npy(folder / f"measured-{array.dtype}-{array.ndim}-{array.size}.npy", array)


def damaged_copy(source: Path, target: Path, damage: Damage, rng: np.random.Generator) -> Path:
    """A copy of a file, or of a folder, one file of which is damaged."""
    if source.is_dir():
        shutil.copytree(source, target)
        victims = sorted(target.iterdir())
    else:
        victims = [shutil.copy(source, target)]
        if source.suffix == ".cfl":
            victims.append(shutil.copy(source.with_suffix(".hdr"), target.with_suffix(".hdr")))
    victim = Path(victims[rng.integers(len(victims))])
    victim.write_bytes(damage(victim.read_bytes(), rng))
    return target


def damaged_files(folder: Path, count: int, seed: int, ending: str = "") -> Iterator[tuple[str, Path]]:
    """`count` damaged files, each with the command that should refuse it or make sense of it."""
    rng = np.random.default_rng(seed)
    sound = [(command, path) for command, path in sound_files(folder / "sound") if path.name.endswith(ending)]
    for number in range(count):
        command, source = sound[number % len(sound)]
        damage = DAMAGES[rng.integers(len(DAMAGES))]
        name = "".join(source.suffixes)
        yield command, damaged_copy(source, folder / f"{number:05d}-{damage.__name__}{name}", damage, rng)


def complaint(command: str, path: Path, denoiser: Path) -> str:
    """What was wrong with how the command line dealt with a file; empty if nothing was."""
    from lipspline import cli

    out = path.parent / f"out-{path.name}.npy"
    arguments = [word.format(file=path, out=out) for word in command.split()] + ["--model", str(denoiser)]
    if command.startswith("reconstruct"):
        arguments += ["--max-steps", "2", "--tol", "0.01"]
    if command == "weights":
        image = path.parent / "image.npy"
        np.save(image, sample_files.images()[0])
        arguments = ["denoise", str(image), str(out), "--noise", "10", "--model", str(path)]
    stdout, stderr, begin = io.StringIO(), io.StringIO(), time.process_time()
    code: object = 0
    try:
        with contextlib.redirect_stdout(stdout), contextlib.redirect_stderr(stderr), _arguments(arguments):
            cli.main()
    except SystemExit as stop:
        code = stop.code or 0
    except BaseException as error:  # what the program let through is what is looked for
        return f"{type(error).__name__}: {error}"
    finally:
        left = list(path.parent.glob(f"*{out.name}*")) + list(path.parent.glob(f".{out.name}*"))
        finite = not out.is_file() or bool(np.isfinite(np.load(out)).all())
        for file in left:
            shutil.rmtree(file) if file.is_dir() else file.unlink()
    if not finite:
        return "NaN in the output"
    if time.process_time() - begin > SECONDS:
        return f"took {time.process_time() - begin:.0f} s"
    if code == 2:
        return _about_refusal(stderr.getvalue(), [file for file in left if not file.name.endswith(".parts")])
    return "" if code == 0 else f"exit code {code}: {stderr.getvalue()}"


def readers_of(command: str, path: Path) -> list[Callable[[Path], object]]:
    """The functions that read a file for a command; what they promise to read later is read."""
    from lipspline import models, priors
    from lipspline.formats import ct, mri, pictures, sinograms

    def all_sinograms(path: Path) -> None:
        found = sinograms.read_sinograms(path)
        for stack in (found.data, found.flat, found.dark):
            for number in range(0 if stack is None else len(stack)):
                stack[number]  # type: ignore[index]

    beside = {
        "--mask": mri.read_mask,
        "--coils": mri.read_maps,
        "--trajectory": mri.read_trajectory,
        "--angles": sinograms.read_angles,
        "--flat": lambda path: sinograms._field(path, slice(None), (3, 12, 23)),
    }
    if command == "weights":
        return [models.load, lambda path: priors.resolve(path).at(10 / 255)]
    if command.endswith("{file}"):
        return [beside[command.split()[-2]]]
    readers: list[Callable[[Path], object]] = []
    if "reconstruct ct" in command:
        readers.append(ct.read if "--simulate" in command else all_sinograms)
    elif "reconstruct" in command:
        readers.append(mri.read_scan)
    return readers + [pictures.read] * (path.suffix.lower() in pictures.IMAGE_ENDINGS)


def complaint_about_reader(command: str, path: Path) -> str:
    """The same for the readers alone: an answer, or a ValueError or OSError that is one line, in time."""
    for reader in readers_of(command, path):
        begin = time.process_time()
        try:
            reader(path)
        except (ValueError, OSError) as error:
            if "\n" in str(error) or not 10 < len(str(error)) < 900:
                return f"not one sentence: {error}"
        except BaseException as error:  # what the readers let through is what is looked for
            return f"{type(error).__name__}: {error}"
        if (seconds := time.process_time() - begin) > SECONDS:
            return f"took {seconds:.0f} s"
    return ""


def _about_refusal(text: str, left: list[Path]) -> str:
    sentence = " ".join(text.split())
    if not sentence.startswith("lipspline: ") or "Traceback" in sentence or len(sentence) > 900:
        return f"not one sentence: {text}"
    return f"left {left[0].name} behind" if left else ""


@contextlib.contextmanager
def _arguments(arguments: list[str]) -> Iterator[None]:
    before = sys.argv
    sys.argv = ["lipspline", *arguments]
    try:
        yield
    finally:
        sys.argv = before


def work(folder: Path, first: int, last: int, readers: bool) -> None:
    """What a process of its own does: files `first` to `last` of a list; prints each name before its verdict."""
    denoiser = folder / "denoiser.safetensors"
    for line in (folder / "list").read_text().splitlines()[first:last]:
        command, _, path = line.partition("\t")
        print(f"FILE {path}", flush=True)
        signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)  # ends the process, also in the midst of a library in C
        says = complaint_about_reader(command, Path(path)) if readers else complaint(command, Path(path), denoiser)
        print(f"SAYS {says!r}", flush=True)
        used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
        if used > MEMORY:
            print(f"SAYS 'has used {used / 1e9:.1f} GB'", flush=True)
            return


def verdicts(output: str, code: int) -> Iterator[tuple[str, str]]:
    """File and complaint for each file that a process dealt with; a crash is the complaint of its last file."""
    current, said = "", True
    for line in output.splitlines():
        if line.startswith("FILE "):
            current, said = line[5:], False
        elif line.startswith("SAYS "):
            yield current, line[5:].strip("'\"")
            said = True
    if not said:
        yield current, "no answer in time" if code == -signal.SIGVTALRM else f"the process ended with code {code}"


def main() -> int:
    parser = argparse.ArgumentParser(description="Damage files and see that the command line stays calm.")
    parser.add_argument("--count", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--at-once", type=int, default=100, help="files for each process")
    parser.add_argument("--readers", action="store_true", help="read the files, and do no more")
    parser.add_argument("--only", default="", help="damage only files whose names end like this")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(Path(options.work[0]), int(options.work[1]), int(options.work[2]), options.readers)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    sample_files.write_denoiser(folder / "denoiser.safetensors")
    files = [f"{command}\t{path}" for command, path in damaged_files(folder, options.count, options.seed, options.only)]
    (folder / "list").write_text("\n".join(files))
    bad, done = [], 0
    while done < len(files):
        last = min(done + options.at_once, len(files))
        command = [sys.executable, __file__, "--work", str(folder), str(done), str(last)]
        command += ["--readers"] if options.readers else []
        result = subprocess.run(command, capture_output=True, text=True)
        found = list(verdicts(result.stdout, result.returncode))
        bad += [(path, text) for path, text in found if text]
        done += len({path for path, _ in found}) or len(files)
        print(f"{done} of {len(files)} files, {len(bad)} complaints", file=sys.stderr)
    for path, text in bad:
        print(f"{path}: {text}")
    if not bad:
        shutil.rmtree(folder)
    print(f"{len(files)} damaged files, {len(bad)} complaints")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())

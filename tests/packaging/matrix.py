"""Try the oldest and the newest torch of the stated range on every Python that is here: `make matrix`.

Each pair gets a folder of its own with the package built from this source, and runs the tests named (`--tests`, a quick
choice unless given). Unless `--cuda` is given, only builds of torch for CPUs are installed: what would bring CUDA, some
six gigabytes that run on a CPU as well, or is not there, is listed with the reason, and is not called supported by this
run. `--python 3.13 --torch torch==2.13.*` tries a single pair.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
QUICK = ["tests/functional/test_spline.py", "tests/nn/test_blocks.py", "tests/certification/test_graph.py"]
EXTRAS = ["pytest", "hypothesis", "pyyaml", "scipy"]


def pythons() -> dict[str, Path]:
    """The interpreters on the PATH and those of pyenv within the stated range, by version."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    folders += Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")).glob("versions/*/bin")
    found: dict[str, Path] = {}
    for path in (path for folder in folders for path in sorted(folder.glob("python3.*"))):
        version = path.name.removeprefix("python")
        runs = re.fullmatch(r"3\.\d+", version) and _succeeds([path, "-c", "import venv, ensurepip"])
        if runs and _numbers(version) >= _numbers(PROJECT["requires-python"]):
            found.setdefault(version, path)
    return dict(sorted(found.items(), key=lambda item: _numbers(item[0])))


def torches() -> list[str]:
    """What pip is asked for: the oldest torch of the range, and the newest."""
    (oldest,) = (d.removeprefix("torch>=") for d in PROJECT["dependencies"] if d.startswith("torch>="))
    return [f"torch=={oldest}.*", "torch"]


def only_with_cuda(python: Path, torch: str) -> str:
    """Why a torch is not installed, or nothing: pip says what it would fetch, without fetching it."""
    command = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--ignore-installed", "--report", "-", torch]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        return f"pip finds none: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    parts = {item["metadata"]["name"]: item["metadata"]["version"] for item in json.loads(done.stdout)["install"]}
    if any(name.startswith(("nvidia", "cuda")) for name in parts):
        return f"only with CUDA ({parts['torch']} brings {len(parts) - 1} packages): no build for CPUs is at hand"
    return ""


def attempt(python: Path, torch: str, tests: list[str], folder: Path, cuda: bool) -> str:
    """Install and test one pair; what came of it."""
    place = folder / "venv"
    subprocess.run([python, "-m", "venv", place], check=True)
    own = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    if not cuda and (reason := only_with_cuda(own, torch)):
        return f"not tried: {reason}"
    source = folder / "source"
    shutil.copytree(ROOT, source, ignore=shutil.ignore_patterns(".git", ".venv", "build", "*.so", "*.egg-info"))
    for what in ([torch], [str(source), *EXTRAS]):
        done = subprocess.run([own, "-m", "pip", "install", "--quiet", *what], capture_output=True, text=True)
        if done.returncode:
            return f"not installed: {done.stderr.strip().splitlines()[-1]}"
    shutil.rmtree(source / "src")  # so that the tests import what was installed
    version = subprocess.run([own, "-c", "import torch; print(torch.__version__)"], capture_output=True, text=True)
    command = [own, "-m", "pytest", "-p", "no:cacheprovider", *tests]  # pyproject.toml has -q: two would hide the count
    done = subprocess.run(command, cwd=source, capture_output=True, text=True)
    last = (done.stdout.strip().splitlines() or [done.stderr])[-1]
    return f"torch {version.stdout.strip()}: {'passed' if done.returncode == 0 else 'FAILED'}: {last}"


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", version))


def _succeeds(command: list) -> bool:
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tests", nargs="*", default=QUICK, help="what pytest runs; nothing for the whole suite")
    parser.add_argument("--cuda", action="store_true", help="also builds of torch that bring CUDA")
    parser.add_argument("--python", action="append", help="a version, e.g. 3.13; all that are here unless given")
    parser.add_argument("--torch", action="append", help="what pip installs; the oldest and the newest unless given")
    options = parser.parse_args()
    failed = False
    for version, python in pythons().items():
        for torch in options.torch or torches():
            if options.python and version not in options.python:
                continue
            with tempfile.TemporaryDirectory() as name:
                result = attempt(python, torch, options.tests, Path(name), options.cuda)
            failed |= result.startswith("not installed") or "FAILED" in result
            print(f"Python {version}, {torch}: {result}", flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())

"""Build a wheel and try it as a stranger would: `python tests/packaging/smoke.py` (minutes; needs wheel).

The wheel is unpacked into an empty folder that is made read-only, and run by an interpreter that sees that folder and
torch, without HOME and without a compiler on the PATH. It must have the C kernels, denoise an image and certify.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TRIAL = """
import torch, lipspline as ls
from pathlib import Path
from lipspline import kernels
assert Path(ls.__file__).is_relative_to({place!r}), ls.__file__
assert "C" in kernels.active(), kernels.active()
assert (Path(ls.__file__).parent / "py.typed").is_file()
denoiser = ls.models.zoo("lls", noise=15)
assert ls.certify(denoiser).upper <= 1
assert torch.isfinite(denoiser(torch.rand(1, 1, 32, 32))).all()
print("lipspline", ls.__version__, kernels.active())
"""


def wheel(folder: Path) -> Path:
    """Build a wheel of a copy of the source, so that nothing is left behind."""
    source = folder / "source"
    kept = shutil.ignore_patterns(
        ".git", ".venv", "build", "*.so", "__pycache__", "*.egg-info", "results", "docs", "tests"
    )
    shutil.copytree(ROOT, source, ignore=kept)
    (source / "README.md").touch()
    command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "-q", "-w", str(folder), "."]
    subprocess.run(command, cwd=source, check=True)
    return next(folder.glob("lipspline-*.whl"))


def try_it(built: Path, folder: Path) -> str:
    """Run the trial from the unpacked wheel, read-only, without HOME and compiler."""
    place = folder / "installed"
    zipfile.ZipFile(built).extractall(place)
    for path in [place, *place.rglob("*")]:
        path.chmod(0o555 if path.is_dir() or path.suffix == ".so" else 0o444)
    environment = {"PATH": "/nonexistent", "PYTHONPATH": str(place), "PYTHONDONTWRITEBYTECODE": "1"}
    environment |= {key: os.environ[key] for key in ("OMP_NUM_THREADS", "SYSTEMROOT") if key in os.environ}
    code = TRIAL.format(place=str(place))
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, cwd="/", capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise SystemExit(done.stderr)
    return done.stdout.strip()


def main() -> str:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        built = wheel(folder)
        result = f"{built.name}: {try_it(built, folder)}"
        for path in folder.rglob("*"):
            path.chmod(0o755)
    return result


if __name__ == "__main__":
    print(main())

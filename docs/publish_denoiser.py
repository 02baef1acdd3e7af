"""Take a trained denoiser into the package: `python docs/publish_denoiser.py runs/.../model.safetensors`.

The file is what `lipspline train RECIPE` leaves in the folder of its job. It must be certified <= 1 and say what it was
trained for, on what, and how good it is; it becomes src/lipspline/weights/ACTIVATION-NOISE.safetensors. One of the
recipes denoisers-15, denoisers-10 and denoisers-5, which only the tables of the paper need, becomes a file of the same
name in src/lipspline/paper/weights, which is in no wheel.
"""

import sys
from pathlib import Path

from lipspline.models import load, save

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "lipspline"
WEIGHTS = PACKAGE / "weights"
PAPER_WEIGHTS = PACKAGE / "paper" / "weights"
TOLD = ("noise", "run", "trained", "seed", "data", "licence", "scores", "validation")


def publish(path: Path, folder: Path | None = None) -> Path:
    """Check a trained denoiser, and write it under the name by which `zoo`, or the tables of the paper, find it."""
    model = load(path)
    assert model.certificate is not None
    if model.certificate.upper > 1:
        raise ValueError(f"{path} is certified only with {model.certificate.upper:.9g}, not 1.")
    if missing := [key for key in TOLD if key not in model.provenance]:
        raise ValueError(f"{path} does not tell its {', '.join(missing)}. Train it with `lipspline train RECIPE`.")
    if folder is None:
        folder = PAPER_WEIGHTS if model.provenance["run"].startswith("denoisers-") else WEIGHTS
        folder.mkdir(exist_ok=True)
    target = folder / f"{model.config['activation']}-{model.provenance['noise']}.safetensors"
    save(model, target, model.provenance)
    return target


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(publish(Path(name)))
    print("Now run: python docs/denoiser_tables.py")

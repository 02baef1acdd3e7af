"""Take a trained denoiser into the package: `python docs/publish_denoiser.py runs/.../model.safetensors`.

The file is what `lipspline train RECIPE` leaves in the folder of its job. It must be certified <= 1 and say what it was
trained for, on what, and how good it is; it becomes src/lipspline/weights/ACTIVATION-NOISE.safetensors.
"""

import sys
from pathlib import Path

from lipspline.models import load, save

WEIGHTS = Path(__file__).resolve().parent.parent / "src" / "lipspline" / "weights"
TOLD = ("noise", "run", "trained", "seed", "data", "licence", "scores", "validation")


def publish(path: Path, folder: Path = WEIGHTS) -> Path:
    """Check a trained denoiser, and write it under the name by which `zoo` finds it."""
    model = load(path)
    assert model.certificate is not None
    if model.certificate.upper > 1:
        raise ValueError(f"{path} is certified only with {model.certificate.upper:.9g}, not 1.")
    if missing := [key for key in TOLD if key not in model.provenance]:
        raise ValueError(f"{path} does not tell its {', '.join(missing)}. Train it with `lipspline train RECIPE`.")
    target = folder / f"{model.config['activation']}-{model.provenance['noise']}.safetensors"
    save(model, target, model.provenance)
    return target


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(publish(Path(name)))
    print("Now run: python docs/denoiser_tables.py")

"""Denoisers that ship with the package, each with its certificate."""

import functools
from importlib import resources

from lipspline.models.export import load
from lipspline.models.network import Network


@functools.cache
def available() -> dict[tuple[str, int], str]:
    """The shipped denoisers: `(activation, noise of 255)` to file name."""
    found = {}
    for file in resources.files("lipspline.weights").iterdir():
        stem, _, ending = file.name.partition(".")
        activation, _, noise = stem.rpartition("-")
        if ending == "safetensors" and noise.isdigit():
            found[activation, int(noise)] = file.name
    return dict(sorted(found.items()))


def zoo(activation: str = "lls", noise: int = 15) -> Network:
    """Load a shipped denoiser: certified <= 1 (computed again on loading), no network, a few milliseconds.

    Args:
        activation: "lls", or a rival for comparison.
        noise: standard deviation it was trained for, of 255.
    """
    file = available().get((activation, noise))
    if file is None:
        shipped = ", ".join(f"{a} at noise {n}" for a, n in available()) or "none"
        raise ValueError(f"No denoiser {activation!r} for noise {noise} ships with lipspline; there are: {shipped}.")
    with resources.as_file(resources.files("lipspline.weights") / file) as path:
        return load(path)

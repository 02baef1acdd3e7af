"""Denoisers that ship with the package, each with its certificate."""

import functools
from importlib import resources

from lipspline._infra import checks
from lipspline.networks.builders import Network
from lipspline.networks.files import load
from lipspline.networks.rescale import level_for, serve_


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


def zoo(activation: str = "lls", noise: float = 15) -> Network:
    """Load a shipped denoiser: certified <= 1 (computed again on loading), no network, a few milliseconds.

    A noise level that none was trained for is served by the nearest one: rescaled if that was trained for less,
    averaged with the identity if it was trained for more [sec:exp_pnp].

    Args:
        activation: "lls", or a rival for comparison.
        noise: standard deviation of the noise to remove, of 255.
    """
    checks.positive("noise", noise, "It is the standard deviation of the noise, of 255.")
    trained = trained_noise(activation, noise)
    with resources.as_file(resources.files("lipspline.weights") / available()[activation, trained]) as path:
        model = load(path)
        assert model.certificate is not None
        if model.certificate.upper > 1:
            raise ValueError(f"{path} should be 1-Lipschitz, but its layers only prove {model.certificate.upper:.9g}.")
    return serve_(model, trained, noise)


def trained_noise(activation: str, noise: float) -> int:
    """The noise level that the shipped denoiser which serves `noise` was trained for."""
    levels = [level for known, level in available() if known == activation]
    if not levels:
        names = ", ".join(f"{a} at noise {n}" for a, n in available()) or "none"
        raise ValueError(
            f"No denoiser {activation!r} ships with lipspline; there are: {names}. "
            "A denoiser of your own is given as its .safetensors file."
        )
    return int(level_for(noise, levels))

"""Provably 1-Lipschitz networks with learned spline activations, and image reconstruction with a certificate."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from lipspline import functional, models, nn, operators, optim, pnp, priors, robust
from lipspline.certification import Certificate, certify, declare, register_rule
from lipspline.networks import effective_regions, plain, plot_activations, rewrite, sparsify, tv2
from lipspline.training.optim import param_groups

if TYPE_CHECKING:
    from lipspline import adapters
    from lipspline.imaging import CartesianMRI, ScannerCT, ScannerMRI, reconstruct

__version__ = "0.1.0"

_LAZY = dict.fromkeys(("CartesianMRI", "ScannerCT", "ScannerMRI", "reconstruct"), "lipspline.imaging")
"""Imported when they are used: most of the library does without them."""


def __getattr__(name: str) -> Any:
    if name == "adapters":
        return import_module("lipspline.adapters")
    if name not in _LAZY:
        raise AttributeError(f"module 'lipspline' has no attribute {name!r}")
    return getattr(import_module(_LAZY[name]), name)


__all__ = [
    "CartesianMRI",
    "Certificate",
    "ScannerCT",
    "ScannerMRI",
    "adapters",
    "certify",
    "declare",
    "effective_regions",
    "functional",
    "models",
    "nn",
    "operators",
    "optim",
    "param_groups",
    "plain",
    "plot_activations",
    "pnp",
    "priors",
    "reconstruct",
    "register_rule",
    "rewrite",
    "robust",
    "sparsify",
    "tv2",
]

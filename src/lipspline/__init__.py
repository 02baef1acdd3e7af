"""Provably 1-Lipschitz networks with learned spline activations, and image reconstruction with a certificate."""

from lipspline import functional, models, nn, operators, pnp, priors
from lipspline.certification import Certificate, certify, declare, register_rule
from lipspline.networks import effective_regions, plain, plot_activations, rewrite, sparsify, tv2
from lipspline.training.optim import param_groups

__version__ = "0.1.0"

__all__ = [
    "Certificate",
    "certify",
    "declare",
    "effective_regions",
    "functional",
    "models",
    "nn",
    "operators",
    "param_groups",
    "plain",
    "plot_activations",
    "pnp",
    "priors",
    "register_rule",
    "rewrite",
    "sparsify",
    "tv2",
]

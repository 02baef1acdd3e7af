"""Provably 1-Lipschitz networks with learned spline activations, and image reconstruction with a certificate."""

__version__ = "0.1.0"

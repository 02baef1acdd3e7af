"""Proven Lipschitz bounds of layers and networks, and the search for the largest ratio from below."""

from lipspline.certification.proof import (
    Certificate,
    certify,
    declare,
    layer_bound,
    register_rule,
)

__all__ = ["Certificate", "certify", "declare", "layer_bound", "register_rule"]

"""Proven Lipschitz bounds of layers and networks, and the search for the largest ratio from below."""

from lipspline.certification import linear_rules, other_rules, rounding_rules  # they register their rules
from lipspline.certification.certificate import Certificate, LayerBound, RoundingBound
from lipspline.certification.proof import Declared, certify, declare, layer_bound, register_rule
from lipspline.certification.search import estimate_lower

__all__ = [
    "Certificate",
    "Declared",
    "LayerBound",
    "RoundingBound",
    "certify",
    "declare",
    "estimate_lower",
    "layer_bound",
    "linear_rules",
    "other_rules",
    "register_rule",
    "rounding_rules",
]

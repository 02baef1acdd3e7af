"""Networks built from the layers, and what is done to a finished one: fold, export, save, load, rewrite, sparsify."""

from lipspline.networks.complexity import EffectiveRegions, effective_regions, tv2
from lipspline.networks.denoiser import denoiser
from lipspline.networks.export import load, plain, save, to_onnx
from lipspline.networks.mlp import mlp
from lipspline.networks.network import Network, activation
from lipspline.networks.plot import plot_activations
from lipspline.networks.rewrite import preactivation_bound, rewrite
from lipspline.networks.sparsify import SparsifyReport, sparsify

__all__ = [
    "EffectiveRegions",
    "Network",
    "SparsifyReport",
    "activation",
    "denoiser",
    "effective_regions",
    "load",
    "mlp",
    "plain",
    "plot_activations",
    "preactivation_bound",
    "rewrite",
    "save",
    "sparsify",
    "to_onnx",
    "tv2",
]

"""Networks built from the layers, and what is done to a finished one: fold, export, save, load, rewrite, sparsify."""

from lipspline.networks.builders import Network, activation, denoiser, mlp
from lipspline.networks.complexity import EffectiveRegions, SparsifyReport, effective_regions, sparsify, tv2
from lipspline.networks.curves import plot_activations
from lipspline.networks.files import load, save
from lipspline.networks.inference import plain, to_onnx
from lipspline.networks.rewriting import preactivation_bound, rewrite

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

"""Networks built from the layers, and what can be done with a trained one."""

from lipspline.models.denoiser import denoiser
from lipspline.models.export import load, plain, save, to_onnx
from lipspline.models.mlp import mlp
from lipspline.models.network import Network, activation
from lipspline.models.zoo import zoo

__all__ = ["Network", "activation", "denoiser", "load", "mlp", "plain", "save", "to_onnx", "zoo"]

"""Networks and denoisers by name: builders, files, and those that ship."""

from lipspline.networks import Network, activation, denoiser, load, mlp, plain, save, to_onnx
from lipspline.priors import zoo

__all__ = ["Network", "activation", "denoiser", "load", "mlp", "plain", "save", "to_onnx", "zoo"]

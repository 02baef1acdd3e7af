"""The experiments a recipe can name."""

from lipspline.experiments import denoising, fitting, w1_mixtures, w1_mnist, wgan
from lipspline.experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "denoising": denoising.EXPERIMENT,
    "fitting": fitting.EXPERIMENT,
    "w1-mixtures": w1_mixtures.EXPERIMENT,
    "w1-mnist": w1_mnist.EXPERIMENT,
    "wgan": wgan.EXPERIMENT,
}

"""The experiments a recipe can name."""

from lipspline.paper import ct, denoising, fitting, mri, multicoil, regions, w1_mixtures, w1_mnist, wgan
from lipspline.paper.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "ct": ct.EXPERIMENT,
    "denoising": denoising.EXPERIMENT,
    "fitting": fitting.EXPERIMENT,
    "mri": mri.EXPERIMENT,
    "multicoil": multicoil.EXPERIMENT,
    "regions": regions.EXPERIMENT,
    "w1-mixtures": w1_mixtures.EXPERIMENT,
    "w1-mnist": w1_mnist.EXPERIMENT,
    "wgan": wgan.EXPERIMENT,
}

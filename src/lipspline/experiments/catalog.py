"""The experiments a recipe can name."""

from lipspline.experiments import fitting, wasserstein
from lipspline.experiments.experiment import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    "fitting": fitting.EXPERIMENT,
    "w1-mixtures": wasserstein.MIXTURES,
}

"""One training loop for every task, with checkpoints that survive anything."""

from lipspline.training.log import JsonLines, Observer, Record, TensorBoard
from lipspline.training.loop import Diverged, Fit, Plan, Task, fit
from lipspline.training.optim import Player, Rotating, param_groups
from lipspline.training.schedules import SCHEDULES
from lipspline.training.slopes import learn_coefficients, learn_slopes

__all__ = [
    "SCHEDULES",
    "Diverged",
    "Fit",
    "JsonLines",
    "Observer",
    "Plan",
    "Player",
    "Record",
    "Rotating",
    "Task",
    "TensorBoard",
    "fit",
    "learn_coefficients",
    "learn_slopes",
    "param_groups",
]

"""A small training run in several processes: `torchrun --nproc-per-node N parallel_run.py FOLDER BATCH [die]`.

With `die`, the last process kills itself at step 5 of its first life.
"""

import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parents[1]))

from lipspline._infra import ranks
from lipspline._infra.files import write_whole
from lipspline.nn import LinearSpline
from lipspline.training import Plan, fit
from lipspline.training.checkpoint import encode
from training import killable


class Patches:
    """Patches in double precision, so that round-off is far below every real difference."""

    def __init__(self, patches, die: bool):
        self.patches, self.die = patches, die

    def batch(self, step, size, rows=slice(None)):
        first_life = os.environ.get("TORCHELASTIC_RESTART_COUNT") == "0"
        if self.die and first_life and step == 5 and ranks.rank() == ranks.world() - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return self.patches.batch(step, size, rows).double()


def run(folder: Path, batch: int, *, die: bool = False, environment: dict[str, str] | None = None) -> None:
    """Train, and leave the final weights in `final`."""
    os.environ.update(environment or {})
    torch.set_num_threads(1)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), LinearSpline(4), nn.Conv2d(4, 1, 3, padding=1)).double()
    nn.init.normal_(model[1].coefficients, std=0.02)
    with ranks.session():
        task = killable.task(model, batch=batch, wrap=lambda patches: Patches(patches, die))
        fit(task, Plan(12, checkpoint_every=4, log_every=4, evaluate_every=4), folder=folder / "run")
        if ranks.is_main():
            write_whole(folder / "final", encode(dict(model.state_dict())))


if __name__ == "__main__":
    run(Path(sys.argv[1]), int(sys.argv[2]), die="die" in sys.argv)

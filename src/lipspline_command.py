"""Starts the command line. What must be decided before torch is loaded is decided here, outside of the package."""

import os

WAITING = {"OMP_WAIT_POLICY": "passive", "GOMP_SPINCOUNT": "2000"}
"""OpenMP's threads wait for work by spinning, for milliseconds: beside other programs that takes several times as much
processor time as the work itself. So they spin for a few microseconds, then sleep."""


def main() -> None:
    """Run `lipspline`; what the environment says already is left as it is."""
    if not WAITING.keys() & os.environ.keys():
        os.environ.update(WAITING)
    from lipspline.cli import main as command

    command()

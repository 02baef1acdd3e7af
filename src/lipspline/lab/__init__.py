"""The lab: reconstructions in the browser, live, served to this machine alone (extra `lab`)."""

from lipspline.lab.bench import Bench
from lipspline.lab.server import serve

__all__ = ["Bench", "serve"]

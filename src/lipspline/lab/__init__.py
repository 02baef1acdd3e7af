"""The lab: reconstructions in the browser, live, served to this machine alone (extra `lab`)."""

from lipspline.lab.server import serve
from lipspline.lab.session import Session

__all__ = ["Session", "serve"]

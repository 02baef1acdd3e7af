"""Serving the lab: on 127.0.0.1 and nowhere else."""

import socket
from collections.abc import Callable, Sequence
from pathlib import Path

from lipspline._infra import checks

ADDRESS = "127.0.0.1"


def listen(port: int) -> socket.socket:
    """A socket that only this machine can reach; port 0 takes any that is free."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
    except OSError as error:
        listener.close()
        raise OSError(f"Port {port} cannot be used ({error.strerror}). Choose another with --port, or 0.") from None
    return listener


def serve(port: int, weights: Sequence[Path], say: Callable[[str], None]) -> None:
    """Serve the lab until interrupted; `say` is told its address.

    Args:
        port: 0 takes any that is free.
        weights: files with denoisers besides the shipped ones.
    """
    uvicorn = checks.require("uvicorn", "lab", "The lab")
    checks.require("starlette", "lab", "The lab")
    from lipspline.lab.app import lab_app
    from lipspline.lab.session import Session

    session = Session(weights)
    with listen(port) as listener:
        number = listener.getsockname()[1]
        config = uvicorn.Config(
            lab_app(session, number),
            log_level="error",
            access_log=False,
            server_header=False,
            ws="none",
            lifespan="off",
        )
        say(f"http://{ADDRESS}:{number}/")
        uvicorn.Server(config).run(sockets=[listener])

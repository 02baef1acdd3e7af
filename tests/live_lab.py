"""A lab that really listens, and how to talk to it."""

import http.client
import json
import threading
import time
from contextlib import contextmanager

import pytest

uvicorn = pytest.importorskip("uvicorn", reason="uvicorn is not installed (extra `lab`)")
pytest.importorskip("starlette", reason="starlette is not installed (extra `lab`)")

from lipspline.lab.app import lab_app  # noqa: E402
from lipspline.lab.server import configuration, listen  # noqa: E402

PIXELS = 32  # of the phantom, along each side
ORDER = {
    "image": "phantom",
    "slice": 0,
    "kind": "mri",
    "acceleration": 2,
    "angles": 20,
    "noise": 0.01,
    "seed": 0,
    "model": "small",
    "strength": 1,
    "level": 15,
    "beta": 0.2,
    "contraction": 1,
}


class Lab:
    """A running lab and how to talk to it."""

    def __init__(self, session, port):
        self.session, self.port = session, port
        self.address = f"http://127.0.0.1:{port}"

    def ask(self, method, path, body=None, headers=None):
        """Send a request as it is; returns status, JSON or text, and headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            content = response.read()
        finally:
            connection.close()
        is_json = response.headers.get_content_type() == "application/json"
        return response.status, json.loads(content) if is_json else content.decode(), response.headers

    def order(self, path="/jobs", **changes):
        """Send an order."""
        return self.ask("POST", path, json.dumps({**ORDER, **changes}))

    def finish(self, number):
        """All events of a job, to its end: kinds and data."""
        _, text, headers = self.ask("GET", f"/jobs/{number}/events")
        assert headers.get_content_type() == "text/event-stream"
        fields = [dict(line.split(": ", 1) for line in part.splitlines()) for part in text.split("\n\n") if part]
        return [(field["event"], json.loads(field["data"])) for field in fields]

    def quiet(self):
        """Wait until nothing runs."""
        if self.session.job is not None:
            self.session.job.cancel()
        while self.session.job is not None and self.session.job.running:
            time.sleep(0.02)


@contextmanager
def opened(session):
    """A lab on a free port, in a thread of this process."""
    with listen(0) as listener:
        port = listener.getsockname()[1]
        server = uvicorn.Server(configuration(lab_app(session, port)))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started:
            time.sleep(0.01)
        try:
            yield Lab(session, port)
        finally:
            server.should_exit = server.force_exit = True
            thread.join(timeout=10)

"""The memory of the lab is bounded, whatever is asked of it, in whatever order."""

import http.client
import io
import json
import random
import re
import socket
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import numpy as np
import pytest

from live_lab import ORDER

pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads memory from /proc")
WARM, MEASURED = 15, 35  # requests before the memory is looked at, and until it is looked at again
GROWTH = 60e6  # bytes: a denoiser is 9 MB, and every second request asks for another one


@contextmanager
def process():
    """`lipspline lab` in a process of its own: its id and its port."""
    command = [sys.executable, "-m", "lipspline", "lab", "--port", "0", "--threads", "1"]
    lab = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    try:
        port = int(re.search(r":(\d+)/", lab.stderr.readline())[1])
        yield lab.pid, port
    finally:
        lab.terminate()
        lab.wait(timeout=20)
        lab.stderr.close()


def memory(pid):
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096


class Visitor:
    """Somebody who asks for anything."""

    def __init__(self, port, seed):
        self.port, self.random = port, random.Random(seed)
        self.image, self.held = None, []

    def ask(self, method, path, body=None, headers=None):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request(method, path, body, headers or {})
            return json.loads(connection.getresponse().read() or b"null")
        except ValueError:
            return None
        finally:
            connection.close()

    def settings(self):
        model = self.random.choice(["lls", "relu", "av", "ridge", "ridge-adaptive", "tv"])
        changes = {
            "image": self.image,
            "model": model,
            "strength": self.random.uniform(0.25, 4),
            "level": self.random.uniform(1, 50),
            "kind": self.random.choice(["mri", "ct"]),
            "acceleration": self.random.uniform(1, 8),
            "noise": self.random.uniform(0, 0.1),
            "angles": self.random.randrange(4, 40),
            "beta": None if model in ("ridge", "ridge-adaptive", "tv") else self.random.uniform(0.1, 0.5),
            "seed": self.random.randrange(1000),
        }
        return json.dumps({**ORDER, **changes})

    def upload(self):
        file = io.BytesIO()
        side = self.random.randrange(16, 33)
        np.save(file, np.random.default_rng(side).random((self.random.randrange(1, 200), side, side)))
        answer = self.ask("POST", "/images?name=a.npy", file.getvalue())
        self.image = answer.get("name", self.image)  # another upload may be under way

    def preview(self):
        assert "promise" in self.ask("POST", "/preview", self.settings())

    def run(self):
        """Start a job and stop it at once, or let it go on for a little."""
        job = self.ask("POST", "/jobs", self.settings()).get("job")
        time.sleep(self.random.choice([0, 0.3]))
        self.ask("POST", f"/jobs/{job}/cancel", "{}")

    def refused(self):
        self.ask("POST", "/preview", "9" * 9000)
        self.ask("GET", f"/jobs/{'9' * 5000}/events")
        self.ask("POST", "/images?name=a.npy", b"\x93NUMPY" + bytes(2**20))

    def hold(self):
        """A request that does not end, and a page that nobody reads."""
        self.ask("GET", "/result.npy")
        for begun in ("POST /images?name=a.npy HTTP/1.1\r\n", "GET /report.html HTTP/1.1\r\n"):
            connection = socket.create_connection(("127.0.0.1", self.port), timeout=10)
            head = f"{begun}Host: 127.0.0.1:{self.port}\r\nContent-Length: 9000\r\n\r\n"
            with suppress(ConnectionError):
                connection.sendall(head.encode() + b"x" * 1000)
            self.held.append(connection)
        while len(self.held) > 20:
            self.held.pop(0).close()

    def visit(self, times):
        for _ in range(times):
            self.random.choices([self.preview, self.upload, self.run, self.refused, self.hold], [5, 1, 2, 1, 1])[0]()


@pytest.mark.parametrize("seed", [0])
def test_memory_stays_bounded_whatever_is_asked(seed):
    with process() as (pid, port):
        visitor = Visitor(port, seed)
        visitor.upload()
        visitor.visit(WARM)
        before = memory(pid)
        visitor.visit(MEASURED)
        grown = memory(pid) - before
        for connection in visitor.held:
            connection.close()
    assert grown < GROWTH, f"{grown / 1e6:.0f} MB more after {MEASURED} requests"

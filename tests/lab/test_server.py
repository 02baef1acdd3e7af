"""Requests of other hosts, other pages and other sizes are refused, whatever they ask for."""

import http.client
import json
import socket

import pytest

from lipspline.lab.server import UPLOAD_LIMIT, listen
from live_lab import ORDER

PATHS = [("GET", "/"), ("GET", "/choices"), ("GET", "/report.html"), ("POST", "/jobs"), ("POST", "/images?name=a.npy")]


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize(
    "host", ["example.com", "127.0.0.1", "localhost:1", "evil.example:{port}", "127.0.0.1:{port}.evil.example", ""]
)
def test_other_hosts_are_refused(lab, method, path, host):
    """A name that resolves to this machine does not help (DNS rebinding)."""
    status, answer, _ = lab.ask(method, path, b"{}" if method == "POST" else None, {"Host": host.format(port=lab.port)})
    assert status in (400, 403)
    assert status == 400 or answer["error"] == "The lab answers only to 127.0.0.1 and localhost."


@pytest.mark.parametrize(("method", "path"), PATHS)
@pytest.mark.parametrize("origin", ["http://example.com", "null", "https://127.0.0.1:{port}", "http://127.0.0.1:1"])
def test_other_origins_are_refused(lab, method, path, origin):
    body = json.dumps(ORDER) if method == "POST" else None
    status, answer, headers = lab.ask(method, path, body, {"Origin": origin.format(port=lab.port)})
    assert (status, answer["error"]) == (403, "The lab answers only to its own pages.")
    assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_requests_that_a_browser_calls_foreign_are_refused(lab, site):
    assert lab.ask("GET", "/", headers={"Sec-Fetch-Site": site})[0] == 403


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost"])
def test_its_own_pages_are_answered(lab, name):
    own = f"{name}:{lab.port}"
    headers = {"Host": own, "Origin": f"http://{own}", "Sec-Fetch-Site": "same-origin"}
    assert lab.ask("GET", "/choices", headers=headers)[0] == 200


def test_two_hosts_are_one_too_many(lab):
    connection = http.client.HTTPConnection("127.0.0.1", lab.port, timeout=10)
    connection.putrequest("GET", "/", skip_host=True)
    connection.putheader("Host", f"127.0.0.1:{lab.port}")
    connection.putheader("Host", "example.com")
    connection.endheaders()
    assert connection.getresponse().status in (400, 403)
    connection.close()


def test_a_request_that_says_it_is_too_large_is_refused_unread(lab):
    with socket.create_connection(("127.0.0.1", lab.port), timeout=10) as connection:
        connection.sendall(
            f"POST /images?name=a.npy HTTP/1.1\r\nHost: 127.0.0.1:{lab.port}\r\n"
            f"Content-Length: {UPLOAD_LIMIT + 1}\r\n\r\n".encode()
        )
        assert connection.recv(99).startswith(b"HTTP/1.1 413")


def test_a_request_that_does_not_say_how_large_it_is_is_cut_off(lab, monkeypatch):
    """Chunked: the limit is kept by counting."""
    monkeypatch.setattr("lipspline.lab.app.UPLOAD_LIMIT", 10_000)
    chunks = (b"x" * 1000 for _ in range(50))
    status, answer, _ = lab.ask("POST", "/images?name=a.npy", chunks)
    assert status == 413
    assert answer["error"] == "The lab takes files of up to 32 MB."


def test_orders_have_a_limit_of_their_own(lab):
    assert lab.ask("POST", "/jobs", b" " * 20_000)[0] == 413


def test_every_answer_forbids_what_the_page_does_not_need(lab):
    for path in ("/", "/choices", "/lab.js", "/nothing"):
        _, _, headers = lab.ask("GET", path)
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
        assert "server" not in {name.lower() for name in headers} or headers["server"] != "uvicorn/"


@pytest.mark.parametrize(
    "path", ["/../pyproject.toml", "/..%2f..%2fetc/passwd", "/%2e%2e/app.py", "/lab/app.py", "/app.py", "//etc/passwd"]
)
def test_no_address_is_a_path_on_the_disk(lab, path):
    assert lab.ask("GET", path)[0] == 404


def test_it_listens_on_this_machine_only():
    with listen(0) as listener:
        assert listener.getsockname()[0] == "127.0.0.1"


def test_a_port_in_use_is_one_sentence():
    with listen(0) as first:
        first.listen()
        port = first.getsockname()[1]
        with pytest.raises(OSError, match=rf"^Port {port} cannot be used .* Choose another with --port, or 0\.$"):
            listen(port)

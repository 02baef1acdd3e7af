"""Requests of other hosts, other pages, other sizes and other speeds are refused, whatever they ask for."""

import http.client
import json
import socket
import time
from contextlib import suppress
from dataclasses import replace
from urllib.parse import quote

import pytest

from lipspline.lab.server import REQUEST_LIMIT, UPLOAD_LIMIT, listen
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
    monkeypatch.setattr("lipspline.lab.app.UPLOAD_LIMIT", 2**20)
    chunks = (b"x" * 2**16 for _ in range(50))
    status, answer, _ = lab.ask("POST", "/images?name=a.npy", chunks)
    assert status == 413
    assert answer["error"] == "The lab takes files of up to 1 MB."


@pytest.mark.parametrize(("size", "status"), [(REQUEST_LIMIT, 400), (REQUEST_LIMIT + 1, 413)])
def test_requests_have_a_limit_of_their_own_and_say_it(lab, size, status):
    found, answer, _ = lab.ask("POST", "/jobs", b" " * size)
    assert found == status
    assert (answer["error"] == "A request may have up to 10 kB.") == (status == 413)


LONG = "9" * 5000


@pytest.mark.parametrize("number", ["9" * 15, "9" * 16, LONG, "\u00b2", "-1", "+1", "1_0", "0x1"])
def test_numbers_of_jobs_are_read_or_refused(lab, number):
    for method, what in (("GET", "events"), ("POST", "cancel")):
        status, answer, _ = lab.ask(method, f"/jobs/{quote(number)}/{what}", b"{}" if method == "POST" else None)
        assert (status, answer["error"]) == (404, "There is no such job any more.")


@pytest.mark.parametrize("number", [LONG, "\u00b2", "-1", "x"])
def test_other_numbers_in_headers_are_read_or_refused(lab, number):
    job = lab.order()[1]["job"]
    assert lab.ask("GET", f"/jobs/{job}/events", headers={"Last-Event-ID": number.encode("latin-1")})[0] == 200
    status = lab.ask("POST", "/jobs", b"{}", {"Content-Length": number.encode("latin-1")})[0]
    assert status in (400, 413)


@pytest.mark.parametrize("length", ["x", str(UPLOAD_LIMIT + 1)])
def test_a_refusal_can_be_read_while_the_request_is_still_being_sent(lab, length):
    """A socket that is closed with unread input resets the connection, and the answer is lost."""
    with socket.create_connection(("127.0.0.1", lab.port), timeout=10) as connection:
        connection.sendall(
            f"POST /jobs HTTP/1.1\r\nHost: 127.0.0.1:{lab.port}\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        time.sleep(0.2)  # the answer is on its way
        for _ in range(5):
            connection.sendall(b"x" * 1000)
            time.sleep(0.01)
        answer = b"".join(iter(lambda: connection.recv(4096), b""))
        assert answer.startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("text", [f'{{"seed": {LONG}}}', f'{{"beta": 1e{LONG}}}', f"-{LONG}"])
def test_long_numbers_in_requests_are_one_sentence(lab, text):
    status, answer, _ = lab.ask("POST", "/preview", text)
    assert status == 400
    assert len(answer["error"]) < 500


@pytest.fixture
def impatient(lab, monkeypatch):
    """A lab that waits for less than a second."""
    for name, seconds in (("HEAD_SECONDS", 0.4), ("BODY_SECONDS", 0.4), ("STALL_SECONDS", 0.4)):
        monkeypatch.setattr(f"lipspline.lab.server.{name}", seconds)
    return lab


HEAD = "POST /jobs HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: 100\r\n"


@pytest.mark.parametrize("begun", ["", "G", HEAD, HEAD + "\r\n", HEAD + "\r\n{{", "GET / HTTP/1.1\r\nHost: x"])
def test_a_request_that_does_not_end_is_given_up(impatient, begun):
    """Nothing, a byte, half of the head, all of it, a part of the body."""
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=10) as connection:
        connection.sendall(begun.format(port=impatient.port).encode())
        begin = time.monotonic()
        assert closed(connection)
        assert time.monotonic() - begin < 5


def test_a_request_that_comes_by_drops_is_given_up(impatient):
    """Bytes that keep coming do not keep a connection open."""
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=0.05) as connection:
        begin = time.monotonic()
        with pytest.raises(OSError, match=r"reset|[Bb]roken"):
            while time.monotonic() - begin < 5:
                connection.sendall(b"X")
                time.sleep(0.05)
        assert time.monotonic() - begin < 4


def test_a_connection_that_asks_for_nothing_more_is_given_up(impatient):
    request = f"GET /choices HTTP/1.1\r\nHost: 127.0.0.1:{impatient.port}\r\n\r\nGET"
    with socket.create_connection(("127.0.0.1", impatient.port), timeout=10) as connection:
        connection.sendall(request.encode())
        assert connection.recv(9).startswith(b"HTTP/1.1")
        assert closed(connection)


def test_an_answer_that_nobody_reads_is_given_up(impatient):
    """The finished page, many times over one connection, unread."""
    impatient.finish(impatient.order()[1]["job"])
    result = impatient.session.result
    impatient.session.result = replace(result, page=b"x" * 2**25)
    try:
        with socket.create_connection(("127.0.0.1", impatient.port), timeout=10) as connection:
            connection.sendall(f"GET /report.html HTTP/1.1\r\nHost: 127.0.0.1:{impatient.port}\r\n\r\n".encode())
            time.sleep(2)
            received = 0
            with suppress(ConnectionError):
                while part := connection.recv(2**20):
                    received += len(part)
            assert 0 < received < 2**25
    finally:
        impatient.session.result = result


def test_no_more_connections_than_there_may_be(lab, monkeypatch):
    monkeypatch.setattr("lipspline.lab.server.CONNECTIONS", 3)
    held = [socket.create_connection(("127.0.0.1", lab.port), timeout=10) for _ in range(3)]
    try:
        time.sleep(0.2)
        with socket.create_connection(("127.0.0.1", lab.port), timeout=10) as fourth:
            assert closed(fourth)
    finally:
        for connection in held:
            connection.close()
    time.sleep(0.2)
    assert lab.ask("GET", "/choices")[0] == 200


def closed(connection):
    """Wait until the other side has closed it, or the time-out of the socket is over."""
    try:
        while connection.recv(2**16):
            pass
    except ConnectionError:
        pass
    except TimeoutError:
        return False
    return True


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
        with pytest.raises(OSError, match=rf"^Port {port} cannot be used .* Choose another port, or 0"):
            listen(port)

"""Serving the lab: on 127.0.0.1 only, to its own pages only, and to nobody who takes too much time or memory."""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from pathlib import Path
from typing import Any

from lipspline._infra import checks

ADDRESS = "127.0.0.1"
UPLOAD_LIMIT = 2**30
"""Bytes of the largest file."""
REQUEST_LIMIT = 10_000
"""Bytes of the largest other request."""
CONNECTIONS = 64
"""Open at one time; a browser needs seven."""
HEAD_SECONDS, BODY_SECONDS = 10.0, 120.0
"""How long a connection may be open before a request has begun, and how long a request may take to arrive."""
STALL_SECONDS = 30.0
"""How long a client may leave an answer unread."""
LINGER_SECONDS = 1.0
"""How long a client may go on sending what is not read any more, before the connection is cut."""
HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "cache-control": "no-store",
}

# The types of ASGI, of which a message is a dictionary.
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
AsgiApp = Callable[[Message, Receive, Send], Awaitable[None]]


class TooLarge(Exception):
    """A request that is longer than it may be; its text says how long that is."""


def too_large(limit: int) -> TooLarge:
    """What is raised for a request of more than `limit` bytes.

    Example:
        >>> too_large(2**30), too_large(10_000)
        (TooLarge('The lab takes files of up to 1 GB.'), TooLarge('A request may have up to 10 kB.'))
    """
    if limit >= 2**20:
        size = f"{limit / 2**30:g} GB" if limit >= 2**30 else f"{limit / 2**20:g} MB"
        return TooLarge(f"The lab takes files of up to {size}.")
    return TooLarge(f"A request may have up to {limit / 1000:g} kB.")


class SameOrigin:
    """ASGI middleware that refuses requests which were not made by a page of the lab, whatever they ask for.

    A page from elsewhere can make a browser send requests to this machine. It cannot choose their Host (which a name
    that resolves to 127.0.0.1 gives away), nor leave out the Origin or Sec-Fetch-Site by which the browser says where
    they come from.

    Args:
        app: what is protected.
        port: the lab's; Host and Origin must name it.
    """

    def __init__(self, app: AsgiApp, port: int):
        self.app = app
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request, or refuse it."""
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
        elif scope["type"] == "http":  # there are no web sockets here
            refusal = self._refusal(scope["headers"])
            if refusal is None:
                await self.app(scope, receive, _with_headers(send))
            else:
                await _refuse(*refusal, _with_headers(send))

    def _refusal(self, headers: Sequence[tuple[bytes, bytes]]) -> tuple[int, str] | None:
        def values(name: bytes) -> list[str]:
            return [value.decode("latin-1") for key, value in headers if key == name]

        hosts, origins, sites = values(b"host"), values(b"origin"), values(b"sec-fetch-site")
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return 403, "The lab answers only to 127.0.0.1 and localhost."
        if not self.origins.issuperset(origins) or not {"same-origin", "none"}.issuperset(sites):
            return 403, "The lab answers only to its own pages."
        if any((whole_number(length) or 0) > UPLOAD_LIMIT for length in values(b"content-length")):
            return 413, str(too_large(UPLOAD_LIMIT))
        return None


def whole_number(text: str) -> int | None:
    """A number from its decimal digits, of which there are at most fifteen; None if the text is something else.

    Example:
        >>> whole_number("42"), whole_number("9" * 5000), whole_number("²"), whole_number("-1")
        (42, None, None, None)
    """
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 15 else None


def listen(port: int) -> socket.socket:
    """A socket that only this machine can reach; port 0 takes any that is free."""
    listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((ADDRESS, port))
    except OSError as error:
        listener.close()
        raise OSError(
            f"Port {port} cannot be used ({error.strerror}). Choose another port, or 0 for any that is free."
        ) from None
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

    with listen(port) as listener, Session(weights) as session:
        number = listener.getsockname()[1]
        listener.listen()  # whoever is told the address can connect, even before uvicorn is up
        say(f"http://{ADDRESS}:{number}/")
        uvicorn.Server(configuration(lab_app(session, number))).run(sockets=[listener])


def configuration(app: AsgiApp) -> Any:
    """How uvicorn serves the lab: a `uvicorn.Config`."""
    import uvicorn

    return uvicorn.Config(
        app,
        http=_impatient_protocol(),
        log_level="error",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=2,
    )


def _impatient_protocol() -> Any:
    """uvicorn's HTTP/1.1 with limits it does not have: on connections, on requests that do not end, on stalled reads.

    uvicorn itself waits forever for the rest of a request once its first byte is there.
    """
    from uvicorn.protocols.http.h11_impl import H11Protocol

    class ImpatientProtocol(H11Protocol):
        _arriving: asyncio.TimerHandle | None = None
        _stalled: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
            super().connection_made(_Lingering(transport, self.loop))  # type: ignore[arg-type]
            if len(self.connections) > CONNECTIONS:
                transport.abort()
            else:
                self._expect_request()

        def connection_lost(self, exc: Exception | None) -> None:
            self._cancel_timers()
            super().connection_lost(exc)

        def data_received(self, data: bytes) -> None:
            if not self.transport.is_closing():
                super().data_received(data)

        def on_response_complete(self) -> None:
            super().on_response_complete()
            self._expect_request()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._stalled = self.loop.call_later(STALL_SECONDS, self.transport.abort)

        def resume_writing(self) -> None:
            if self._stalled is not None:
                self._stalled.cancel()
            super().resume_writing()

        def _expect_request(self) -> None:
            self._cancel_timers()
            if not self.transport.is_closing():
                self._arriving = self.loop.call_later(HEAD_SECONDS, self._begun_or_abort)

        def _begun_or_abort(self) -> None:
            if self.cycle is None or self.cycle.response_complete:
                self.transport.abort()
            else:
                self._arriving = self.loop.call_later(BODY_SECONDS, self._complete_or_abort)

        def _complete_or_abort(self) -> None:
            if self.cycle.more_body:
                self.transport.abort()

        def _cancel_timers(self) -> None:
            for timer in (self._arriving, self._stalled):
                if timer is not None:
                    timer.cancel()

    return ImpatientProtocol


class _Lingering:
    """A transport that is closed in two steps, so that a client which is still sending can read the answer.

    Closing a socket whose input has not been read resets the connection, and the answer is lost with it (RFC 9112,
    section 9.6). So the sending half is closed first, and the rest when the client has closed its own, or after
    `LINGER_SECONDS`.
    """

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop):
        self._transport, self._loop, self._half_closed = transport, loop, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def is_closing(self) -> bool:
        """Whether one half is closed already."""
        return self._half_closed or self._transport.is_closing()

    def close(self) -> None:
        """Close the sending half now, the other one soon."""
        if not self.is_closing():
            self._half_closed = True
            self._transport.write_eof()
            self._transport.resume_reading()
            self._loop.call_later(LINGER_SECONDS, self._transport.abort)


async def _refuse(status: int, sentence: str, send: Send) -> None:
    body = json.dumps({"error": sentence}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def _with_headers(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            present = {name.lower() for name, _ in message.get("headers", [])}
            added = [(n.encode(), v.encode()) for n, v in HEADERS.items() if n.encode() not in present]
            message = {**message, "headers": [*message.get("headers", []), *added]}
        await send(message)

    return sender

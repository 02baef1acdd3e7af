"""Who may talk to the lab: pages that it served itself, on this machine, in requests of moderate size."""

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

UPLOAD_LIMIT = 32 * 2**20
"""Bytes of the largest request."""
HEADERS = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src data:; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class TooLarge(Exception):
    """A request longer than `UPLOAD_LIMIT`."""


class SameOrigin:
    """Refuses requests that were not made by a page of the lab, whatever they ask for.

    A page from elsewhere can make a browser send requests to this machine. It cannot choose their Host (which a name
    that resolves to 127.0.0.1 gives away), nor leave out the Origin or Sec-Fetch-Site by which the browser says where
    they come from.

    Args:
        app: what is guarded.
        port: the lab's; Host and Origin must name it.
    """

    def __init__(self, app: ASGIApp, port: int):
        self.app = app
        self.hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        self.origins = {f"http://{host}" for host in self.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":  # there are no web sockets here
            return
        refusal = self._refusal(Headers(scope=scope))
        if refusal is not None:
            status, sentence = refusal
            await JSONResponse({"error": sentence}, status)(scope, receive, _with_headers(send))
            return
        await self.app(scope, receive, _with_headers(send))

    def _refusal(self, headers: Headers) -> tuple[int, str] | None:
        if headers.getlist("host") != [headers.get("host")] or headers.get("host") not in self.hosts:
            return 403, "The lab answers only to 127.0.0.1 and localhost."
        if headers.get("origin") is not None and headers.get("origin") not in self.origins:
            return 403, "The lab answers only to its own pages."
        if headers.get("sec-fetch-site", "none") not in {"same-origin", "none"}:
            return 403, "The lab answers only to its own pages."
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > UPLOAD_LIMIT:
            return 413, too_large()
        return None


def too_large() -> str:
    """What is said to a request that is too long."""
    return f"The lab takes files of up to {UPLOAD_LIMIT // 2**20} MB."


def _with_headers(send: Send) -> Send:
    async def sender(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
        await send(message)

    return sender

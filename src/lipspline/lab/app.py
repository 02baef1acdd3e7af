"""The lab's pages and answers. Addresses are a fixed list: none of them is ever a path on the disk.

Made with Starlette and uvicorn, an extra of three small packages, rather than with Python's `http.server`: they stream
events without a thread for each visitor, and parse requests strictly and within limits, which the documentation of
`http.server` does not claim for itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources
from typing import Any

from anyio import CapacityLimiter, to_thread
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lipspline.lab.request import LabRequest, in_words, parse
from lipspline.lab.result import CERTIFICATES, DOWNLOADS
from lipspline.lab.server import REQUEST_LIMIT, UPLOAD_LIMIT, SameOrigin, TooLarge, too_large, whole_number
from lipspline.lab.session import LAST, BackgroundJob, Busy, JobEvent, Session

POLL, ALIVE = 0.1, 15.0  # seconds between looks for news, and between signs of life
PIECE = 2**16  # bytes of a long answer that are handed over at once
FILES = {
    "/": ("lipspline.lab", "lab.html", "text/html"),
    "/lab.css": ("lipspline.lab", "lab.css", "text/css"),
    "/lab.js": ("lipspline.lab", "lab.js", "text/javascript"),
    "/page.css": ("lipspline.report", "page.css", "text/css"),
    "/page.js": ("lipspline.report", "page.js", "text/javascript"),
}
REPORT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'unsafe-inline'"
"""For the finished page, whose own policy is stricter: it allows its script by checksum."""

Answer = Callable[[Request], Awaitable[Response]]


def lab_app(session: Session, port: int) -> Starlette:
    """The lab as an ASGI application for this port."""
    answers = _Answers(session)
    listed: list[tuple[str, str, Answer]] = [
        ("/choices", "GET", answers.choices),
        ("/images", "POST", answers.upload),
        ("/preview", "POST", answers.preview),
        ("/jobs", "POST", answers.start),
        ("/jobs/{number}/events", "GET", answers.events),
        ("/jobs/{number}/cancel", "POST", answers.cancel),
        ("/report.html", "GET", answers.report),
        ("/result", "GET", answers.shown),
        *((f"/result{ending}", "GET", answers.result) for ending in (*DOWNLOADS, *CERTIFICATES)),
    ]
    routes = [Route(path, _file(*where), methods=["GET"]) for path, where in FILES.items()]
    routes += [Route(path, _in_one_sentence(answer), methods=[method]) for path, method, answer in listed]
    return Starlette(routes=routes, middleware=[Middleware(SameOrigin, port=port)])


def _file(package: str, name: str, kind: str) -> Answer:
    content = (resources.files(package) / name).read_bytes()

    async def answer(request: Request) -> Response:
        return Response(content, media_type=kind)

    return answer


def _in_one_sentence(answer: Answer) -> Answer:
    """Errors of the visitor, and of files, as JSON with one sentence."""

    async def guarded(request: Request) -> Response:
        try:
            return await answer(request)
        except TooLarge as error:
            return JSONResponse({"error": str(error)}, 413)
        except Busy as error:
            return JSONResponse({"error": str(error)}, 409)
        except LookupError as error:
            return JSONResponse({"error": str(error.args[0])}, 404)
        except ClientDisconnect:
            return Response(status_code=400)
        except (ValueError, ImportError, OSError) as error:
            return JSONResponse({"error": in_words(error)}, 400)

    return guarded


class _Answers:
    """What is answered at each address. Work is done by one thread, one piece at a time: memory stays bounded."""

    def __init__(self, session: Session):
        self.session = session
        self.one_at_a_time = CapacityLimiter(1)
        self.uploading = asyncio.Lock()

    async def choices(self, request: Request) -> Response:
        """What there is to choose from."""
        return JSONResponse(self.session.choices())

    async def upload(self, request: Request) -> Response:
        """Take a file: written to the disk as it comes, one at a time."""
        if self.uploading.locked():
            raise Busy("Another file is being read, and the lab reads one at a time. Try again.")
        async with self.uploading:
            catalogue = self.session.catalogue
            draft = catalogue.draft()
            try:
                with draft.open("wb") as file:
                    async for part in _parts(request, UPLOAD_LIMIT):
                        file.write(part)
                name, holds = (request.query_params.get(key, "") for key in ("name", "holds"))
                source = await self._do(lambda: catalogue.add(name, draft, sinogram=holds == "sinograms"))
            finally:
                draft.unlink(missing_ok=True)
        return JSONResponse(source.document(), 201)

    async def preview(self, request: Request) -> Response:
        """The measurement, and what is promised."""
        wanted = await _request(request)
        return JSONResponse(await self._do(lambda: self.session.preview(wanted)))

    async def start(self, request: Request) -> Response:
        """Begin a job."""
        wanted = await _request(request)
        job = await self._do(lambda: self.session.start(wanted))
        return JSONResponse({"job": job.id}, 202)

    async def events(self, request: Request) -> Response:
        """What a job tells."""
        last = whole_number(request.headers.get("last-event-id", "0")) or 0
        return StreamingResponse(_stream(self._job(request), last), media_type="text/event-stream")

    async def cancel(self, request: Request) -> Response:
        """Stop a job."""
        job = self._job(request)
        job.cancel()
        return JSONResponse({"job": job.id}, 202)

    async def report(self, request: Request) -> Response:
        """The result as a page."""
        if self.session.result is None:
            raise LookupError("Nothing has been reconstructed yet.")
        return _long(self.session.result.page, "text/html; charset=utf-8", {"Content-Security-Policy": REPORT_POLICY})

    async def shown(self, request: Request) -> Response:
        """The result once more, for a page that is loaded again."""
        return JSONResponse(await self._do(self.session.shown))

    async def result(self, request: Request) -> Response:
        """The result as a file."""
        result, name = self.session.result, request.url.path.removeprefix("/")
        if result is None:
            raise LookupError("Nothing has been reconstructed yet.")
        ending = name.removeprefix("result")
        content = await self._do(lambda: result.file(ending))
        headers = {"Content-Disposition": f'attachment; filename="{result.name(ending)}"'}
        return _long(content, "application/octet-stream", headers)

    def _job(self, request: Request) -> BackgroundJob:
        job = self.session.job
        if job is None or job.id != whole_number(request.path_params["number"]):
            raise LookupError("There is no such job any more.")
        return job

    async def _do(self, work: Callable[[], Any]) -> Any:
        return await to_thread.run_sync(work, limiter=self.one_at_a_time)


async def _parts(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body, read no further than the limit, whatever the request says about its length."""
    size = 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise too_large(limit)
        yield part


async def _request(request: Request) -> LabRequest:
    body = b"".join([part async for part in _parts(request, REQUEST_LIMIT)])
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("A request is a JSON object, but this one holds none.") from None
    return parse(document)


def _long(content: bytes, kind: str, headers: dict[str, str]) -> Response:
    """An answer in pieces: whoever does not read it holds up one of them, not all."""

    async def pieces() -> AsyncIterator[bytes]:
        for start in range(0, len(content), PIECE):
            yield content[start : start + PIECE]

    return StreamingResponse(pieces(), media_type=kind, headers={**headers, "Content-Length": str(len(content))})


async def _stream(job: BackgroundJob, last: int) -> AsyncIterator[str]:
    """Server-sent events from the one after `last` to the end of the job."""
    quiet = 0.0
    while True:
        over = not job.running  # asked first, so that no event is missed
        for event in job.since(last):
            last, quiet = event.number, 0.0
            yield _as_text(event)
            if event.kind in LAST:
                return
        if over:
            return
        if quiet >= ALIVE:
            quiet = 0.0
            yield ":\n\n"
        await asyncio.sleep(POLL)
        quiet += POLL


def _as_text(event: JobEvent) -> str:
    return f"id: {event.number}\nevent: {event.kind}\ndata: {json.dumps(event.data)}\n\n"

"""The lab's pages and answers. Addresses are a fixed list: none of them is ever a path on the disk.

Made with Starlette and uvicorn, an extra of three small packages, rather than with Python's `http.server`: they stream
events without a thread for each visitor, and parse requests strictly and within limits, which the documentation of
`http.server` does not claim for itself.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from importlib import resources

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from lipspline.lab.request import LabRequest, parse
from lipspline.lab.security import UPLOAD_LIMIT, SameOrigin, TooLarge, too_large
from lipspline.lab.session import LAST, BackgroundJob, Busy, JobEvent, Session

ORDER_LIMIT = 10_000  # bytes
POLL, ALIVE = 0.1, 15.0  # seconds between looks for news, and between signs of life
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
    answers: list[tuple[str, str, Answer]] = [
        ("/shelf", "GET", _shelf(session)),
        ("/images", "POST", _upload(session)),
        ("/preview", "POST", _preview(session)),
        ("/jobs", "POST", _start(session)),
        ("/jobs/{number:int}/events", "GET", _events(session)),
        ("/jobs/{number:int}/cancel", "POST", _cancel(session)),
        ("/report.html", "GET", _report(session)),
    ]
    routes = [Route(path, _file(*where), methods=["GET"]) for path, where in FILES.items()]
    routes += [Route(path, _in_one_sentence(answer), methods=[method]) for path, method, answer in answers]
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
        except TooLarge:
            return JSONResponse({"error": too_large()}, 413)
        except Busy as error:
            return JSONResponse({"error": str(error)}, 409)
        except (ValueError, ImportError, OSError) as error:
            return JSONResponse({"error": str(error)}, 400)

    return guarded


async def _body(request: Request, limit: int) -> bytes:
    """The body, read no further than the limit, whatever the request says about its length."""
    parts, size = [], 0
    async for part in request.stream():
        size += len(part)
        if size > limit:
            raise TooLarge
        parts.append(part)
    return b"".join(parts)


async def _order(request: Request) -> LabRequest:
    try:
        document = json.loads(await _body(request, ORDER_LIMIT))
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError):
        raise ValueError("A request is a JSON object, but this one holds none.") from None
    return parse(document)


def _shelf(session: Session) -> Answer:
    async def answer(request: Request) -> Response:
        return JSONResponse(session.shelf())

    return answer


def _upload(session: Session) -> Answer:
    async def answer(request: Request) -> Response:
        content = await _body(request, UPLOAD_LIMIT)
        name = request.query_params.get("name", "")
        return JSONResponse({"image": await run_in_threadpool(session.images.add, name, content)}, 201)

    return answer


def _preview(session: Session) -> Answer:
    async def answer(request: Request) -> Response:
        return JSONResponse(await run_in_threadpool(session.preview, await _order(request)))

    return answer


def _start(session: Session) -> Answer:
    async def answer(request: Request) -> Response:
        job = await run_in_threadpool(session.start, await _order(request))
        return JSONResponse({"job": job.id}, 202)

    return answer


def _job(session: Session, request: Request) -> BackgroundJob | None:
    job = session.job
    return job if job is not None and job.id == request.path_params["number"] else None


def _events(session: Session) -> Answer:
    async def answer(request: Request) -> Response:
        job = _job(session, request)
        if job is None:
            return JSONResponse({"error": "There is no such job any more."}, 404)
        last = request.headers.get("last-event-id", "0")
        return StreamingResponse(_stream(job, int(last) if last.isdigit() else 0), media_type="text/event-stream")

    return answer


async def _stream(job: BackgroundJob, last: int) -> AsyncIterator[str]:
    """Server-sent events from the one after `last` to the end of the job."""
    quiet = 0.0
    while True:
        for event in job.since(last):
            last, quiet = event.number, 0.0
            yield _as_text(event)
            if event.kind in LAST:
                return
        if quiet >= ALIVE:
            quiet = 0.0
            yield ":\n\n"
        await asyncio.sleep(POLL)
        quiet += POLL


def _as_text(event: JobEvent) -> str:
    return f"id: {event.number}\nevent: {event.kind}\ndata: {json.dumps(event.data)}\n\n"


def _cancel(session: Session) -> Answer:
    async def answer(request: Request) -> Response:
        job = _job(session, request)
        if job is None:
            return JSONResponse({"error": "There is no such job any more."}, 404)
        job.cancel()
        return JSONResponse({"job": job.id}, 202)

    return answer


def _report(session: Session) -> Answer:
    async def answer(request: Request) -> Response:
        if session.page is None:
            return JSONResponse({"error": "Nothing has been reconstructed yet."}, 404)
        return Response(session.page, media_type="text/html", headers={"Content-Security-Policy": REPORT_POLICY})

    return answer

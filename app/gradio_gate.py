"""Allow-list in front of Gradio: only the routes that the pages use, only the payloads that they send.

Gradio serves far more than the pages need (files, a proxy, streams, calls by name, an editor). Everything not listed
below gets 404, including new routes of new Gradio versions. Runs inside Gradio's own application.

Documents of pages are cached, since creating one costs 30 ms on a core. All visitors of a URL get the same: neither
query nor login are passed on, data of rows comes with events, and cookies are added afterwards. Style sheets and
scripts are inserted into the head, as Gradio would add them after the page is displayed.
"""

import gzip
import json
import logging
import re
import secrets
from collections.abc import Collection
from typing import Any

import gradio as gr
from starlette.datastructures import Headers
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response

from app import payloads
from app.i18n import language
from app.refused_values import REFUSED, fail_quietly, log_rarely, origin
from app.uploads import Uploads
from app.visitor import BROWSER, is_secure, session_of
from speculoos.errors import BadInput

API = "/gradio_api"
EVENT, UPLOAD, FILE = f"{API}/run/predict", f"{API}/upload", f"{API}/file="
READ = frozenset({f"{API}/upload_progress", f"{API}/app_id", "/theme.css", "/favicon.ico", "/robots.txt"})
"""Paths that are passed on unchanged; a page polls `app_id` while its server is down."""
BUNDLED = ("/assets/", "/static/")  # Gradio's own scripts and fonts
TRACKER = "/assets/statustracker-"
FRAMES = re.compile(
    rb"[\w$]+\(\(\)=>\([\w$]+\(\),\(\)=>\{[\w$]+\([\w$]+,!0\)\}\)\);"  # starts the animation of a loading page
    rb"|(?<=/1e3\)),[\w$]+&&[\w$]+\(\)(?=\}\)\})"  # repeats the count of an event's seconds
)
"""The script of Gradio's status of events, and what requests frames in it. Both go on when their elements are removed:
every open tab would compute a frame 60 times a second."""
LONGEST = 200  # maximum length of such a path in bytes; a longer one would make the file system raise an error
UNANSWERABLE = "The request cannot be read or answered. Reload the page."
EVENT_BYTES = 8 * 2**20
YEAR = 365 * 24 * 3600
MOST_DOCUMENTS = 128  # that are cached: a few host names times the number of pages, compressed and not
ADDRESS_HEADERS = frozenset({b"host", b"x-forwarded-host", b"x-forwarded-proto"})
"""Headers from which Gradio may derive URLs in a document. No other header is passed on: a header outside the cache key
would let a visitor change what the next one sees."""
REPLACED_HEADERS = frozenset({b"content-type", b"content-length", b"content-encoding", b"transfer-encoding"})


class GradioGate:
    """ASGI middleware around Gradio. `pages` are the paths of the pages and `head` the tags of their heads; browsers
    get `missing` in place of an unknown page; `uploads` knows the owner of each file."""

    def __init__(self, app: Any, blocks: gr.Blocks, uploads: Uploads, pages: Collection[str], head: str, missing: str):
        self.app, self.blocks, self.uploads, self.pages = app, blocks, uploads, frozenset(pages)
        self.head, self.missing, self.language = head.encode(), missing, language()
        self._documents: dict[tuple[Any, ...], Response] = {}
        fail_quietly(blocks)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            await self._serve(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await self.app(scope, receive, send)

    async def _serve(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        path = scope["path"].removeprefix(scope.get("root_path", "").rstrip("/"))
        reads, posts = scope["method"] in ("GET", "HEAD"), scope["method"] == "POST"
        if reads and (path in READ or path.startswith(BUNDLED) and len(path.encode()) <= LONGEST):
            await (self._tracker if path.startswith(TRACKER) else self.app)(scope, receive, send)
        elif reads and path.startswith(FILE) and self.uploads.is_own(session_of(scope), path.removeprefix(FILE)):
            await self.app(scope, receive, _as_attachment(send))
        else:
            if posts and path == EVENT:
                response = await self._event(scope, receive)
            elif posts and path == UPLOAD:
                response = await self._upload(scope, receive)
            elif reads and path in self.pages:
                response = await self._page(scope, receive, path)
            elif reads and "text/html" in Headers(scope=scope).get("accept", ""):
                response = HTMLResponse(self.missing, 404, {"Cache-Control": "no-store"})
            else:
                response = PlainTextResponse("Not found.\n", status_code=404)
            await response(scope, receive, send)

    async def _event(self, scope: dict[str, Any], receive: Any) -> Response:
        """Check the whole body, then pass the checked body to Gradio."""
        session = session_of(scope)
        try:
            body = await read_body(Request(scope, receive), EVENT_BYTES)
            body = payloads.checked_event(body, self.blocks, lambda path: self.uploads.is_own(session, path))
        except BadInput as error:
            return _error_response(str(error))
        headers = [(k, v) for k, v in scope["headers"] if k.lower() not in REPLACED_HEADERS]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        unread = [{"type": "http.request", "body": body, "more_body": False}]

        async def receive_checked() -> dict[str, Any]:
            return unread.pop() if unread else await receive()

        response = await self._gradio({**scope, "headers": headers}, receive_checked)
        if response.status_code == 500 and REFUSED.encode() in response.body:
            response.status_code = 400
        return response

    async def _upload(self, scope: dict[str, Any], receive: Any) -> Response:
        """Pass the upload to Gradio and record this session as the owner of the stored files."""
        response = await self._gradio(scope, receive)
        session = _identify(scope, response)
        if response.status_code == 200:
            for path in json.loads(response.body):
                self.uploads.claim(session, path)
        return response

    async def _tracker(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Replaces FRAMES with blanks, so that the script keeps its length and its `etag`."""
        headers = [(k, v) for k, v in scope["headers"] if k.lower() not in (b"accept-encoding", b"range")]
        response = await whole_response(self.app, {**scope, "headers": headers}, receive)
        response.body = FRAMES.sub(lambda match: b" " * len(match[0]), response.body)
        await response(scope, receive, send)

    async def _page(self, scope: dict[str, Any], receive: Any, path: str) -> Response:
        headers = [(name, value) for name, value in scope["headers"] if name.lower() in ADDRESS_HEADERS]
        zipped = any(name.lower() == b"accept-encoding" and b"gzip" in value for name, value in scope["headers"])
        key = (scope["method"], scope["path"], scope.get("root_path", ""), scope["scheme"], zipped, *headers)
        if (document := self._documents.get(key)) is None:
            document = await whole_response(self.app, {**scope, "query_string": b"", "headers": headers}, receive)
            if b"</head>" in document.body:
                root = b"../" * (path.count("/") - 1)
                document.body = document.body.replace(b'<base href="./"', b'<base href="./' + root + b'"', 1)
                document.body = document.body.replace(b"</head>", self.head + b"</head>", 1)
                document.body = document.body.replace(b'lang="en"', f'lang="{self.language}"'.encode(), 1)
                if zipped:  # a document has no secrets, so its length tells nothing
                    document.body = gzip.compress(document.body)
                    document.headers["content-encoding"] = "gzip"
                document.headers["vary"] = "accept-encoding, accept-language, cookie"
                document.headers["content-length"] = str(len(document.body))
                del document.headers["etag"]
            if document.status_code == 200:
                while len(self._documents) >= MOST_DOCUMENTS:
                    del self._documents[next(iter(self._documents))]
                self._documents[key] = document
        response = _response(document.status_code, document.raw_headers, document.body)
        _identify(scope, response)
        return response

    async def _gradio(self, scope: dict[str, Any], receive: Any) -> Response:
        """Gradio raises for some forms (a file without a name) and some results (a lone surrogate)."""
        try:
            return await whole_response(self.app, scope, receive)
        except (TypeError, ValueError) as error:
            log_rarely(logging.WARNING, f"{scope['path']} was refused: {origin(error)}")
            return _error_response(UNANSWERABLE)


async def whole_response(app: Any, scope: dict[str, Any], receive: Any) -> Response:
    """The response of `app`, held back, to be changed or sent unchanged."""
    start: dict[str, Any] = {"status": 500, "headers": []}
    body = bytearray()

    async def hold(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            start.update(message)
        else:
            body.extend(message.get("body", b""))

    await app(scope, receive, hold)
    return _response(start["status"], start["headers"], bytes(body))


def _response(status: int, headers: Any, body: bytes) -> Response:
    response = Response(body, status)
    response.raw_headers = list(headers)
    return response


def _identify(scope: dict[str, Any], response: Response) -> str:
    """The request's session. A browser that has neither login nor cookie gets a cookie."""
    if session := session_of(scope):
        return session
    value, secure = secrets.token_urlsafe(24), is_secure(Request(scope))
    response.set_cookie(BROWSER, value, max_age=YEAR, httponly=True, samesite="strict", secure=secure, path="/")
    return f"browser {value}"


async def read_body(request: Request, most: int) -> bytes:
    """The whole body. Raises BadInput if it has more than `most` bytes or the browser disconnected."""
    body = bytearray()
    try:
        async for chunk in request.stream():
            body += chunk
            if len(body) > most:
                raise BadInput(f"The event is larger than {most / 2**20:.0f} MB; send long texts as a file.")
    except ClientDisconnect:
        raise BadInput("The browser disconnected before it had sent the event.") from None
    return bytes(body)


def _error_response(message: str) -> Response:
    """A response in the format of Gradio's errors, so that the page shows the message."""
    return JSONResponse({"error": message}, status_code=400)


def _as_attachment(send: Any) -> Any:
    """`send` that makes browsers save a user's file instead of displaying it as a page."""

    async def add(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = [(k, v) for k, v in message["headers"] if k.lower() != b"content-disposition"]
            added = [(b"content-disposition", b"attachment"), (b"content-security-policy", b"sandbox")]
            message = {**message, "headers": [*headers, *added]}
        await send(message)

    return add

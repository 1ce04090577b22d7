"""Allow-list in front of Gradio: only the routes that the pages use, only the payloads that they send.

Gradio serves far more than the pages need (files, a proxy, streams, calls by name, an editor). Everything not listed
below gets 404, including new routes of new Gradio versions. Runs inside Gradio's own application.
"""

import json
import logging
import secrets
from collections import Counter
from collections.abc import Collection
from typing import Any

import gradio as gr
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from app import payloads
from app.documents import DocumentResponse, Documents
from app.refused_values import fail_quietly, is_power_of_two, origin, refuse_quietly, refused
from app.uploads import Uploads
from app.visitor import BROWSER, session_of
from speculoos.errors import BadInput

log = logging.getLogger(__name__)
API = "/gradio_api"
EVENT, UPLOAD, FILE = f"{API}/run/predict", f"{API}/upload", f"{API}/file="
READ = frozenset({f"{API}/upload_progress", f"{API}/app_id", "/theme.css", "/favicon.ico", "/robots.txt"})
"""Paths that are passed on unchanged; a page polls `app_id` while its server is down."""
BUNDLED = ("/assets/", "/static/")
"""Gradio's own scripts and fonts."""
LONGEST = 200
"""Maximum length of such a path in bytes; a longer one would make the file system raise an error."""
UNANSWERABLE = "The request cannot be read or answered. Reload the page."
EVENT_BYTES = 8 * 2**20
YEAR = 365 * 24 * 3600


class GradioGate:
    """ASGI middleware around Gradio. `pages` are the paths of the pages and `head` the tags of their heads; `uploads`
    knows the owner of each file."""

    def __init__(self, app: Any, blocks: gr.Blocks, uploads: Uploads, pages: Collection[str], head: str):
        self.app, self.blocks, self.uploads, self.pages = app, blocks, uploads, frozenset(pages)
        self.documents = Documents(app, head)
        self._unanswerable: Counter[str] = Counter()
        refuse_quietly(blocks)
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
        if posts and path == EVENT:
            await self._event(scope, receive, send)
        elif posts and path == UPLOAD:
            await self._upload(scope, receive, send)
        elif reads and path in self.pages:
            await self.documents.serve(scope, receive, _WithBrowserCookie(scope, send))
        elif reads and (path in READ or path.startswith(BUNDLED) and len(path.encode()) <= LONGEST):
            await self.app(scope, receive, send)
        elif reads and path.startswith(FILE) and self.uploads.is_own(session_of(scope), path.removeprefix(FILE)):
            await self.app(scope, receive, _as_attachment(send))
        else:
            await PlainTextResponse("Not found.\n", status_code=404)(scope, receive, send)

    async def _event(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Check the whole body, then pass the checked body to Gradio."""
        try:
            body = await _body(receive)
            session = session_of(scope)
            body = payloads.checked_event(body, self.blocks, lambda path: self.uploads.is_own(session, path))
        except BadInput as error:
            await _refusal(error)(scope, receive, send)
            return
        replaced = (b"content-type", b"content-length", b"content-encoding", b"transfer-encoding")
        headers = [(k, v) for k, v in scope["headers"] if k.lower() not in replaced]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        refusals: list[str] = []
        refused.set(refusals)
        checked_send = _RefusalStatus(refusals, send)
        await self._gradio({**scope, "headers": headers}, _StoredBody(body, receive), checked_send)

    async def _upload(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Pass the upload to Gradio and record this session as the owner of the stored files."""
        with_cookie = _WithBrowserCookie(scope, send)
        response = DocumentResponse()
        await self._gradio(scope, receive, response)
        if response.status == 200:
            for path in json.loads(response.body):
                self.uploads.claim(with_cookie.session, path)
        await response.send(with_cookie)

    async def _gradio(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Gradio raises for some forms (a file without a name) and some results (a lone surrogate)."""
        try:
            await self.app(scope, receive, send)
        except (TypeError, ValueError) as error:
            place = origin(error)
            self._unanswerable[place] += 1
            if is_power_of_two(count := self._unanswerable[place]):
                log.warning("%s was refused: %s (%d so far)", scope["path"], place, count)
            await _refusal(BadInput(UNANSWERABLE))(scope, receive, send)


class _WithBrowserCookie:
    """`send` that sets a cookie to identify a browser that has neither login nor cookie."""

    def __init__(self, scope: dict[str, Any], send: Any):
        self._scope, self._send = scope, send
        self.session = session_of(scope)
        self._new = "" if self.session else secrets.token_urlsafe(24)
        if self._new:
            self.session = f"browser {self._new}"

    async def __call__(self, message: dict[str, Any]) -> None:
        if self._new and message["type"] == "http.response.start":
            message = {**message, "headers": [*message["headers"], self._cookie()]}
        await self._send(message)

    def _cookie(self) -> tuple[bytes, bytes]:
        response = Response()
        secure = is_secure(Request(self._scope))
        response.set_cookie(BROWSER, self._new, max_age=YEAR, httponly=True, samesite="strict", secure=secure, path="/")
        return b"set-cookie", response.headers["set-cookie"].encode("latin-1")


class _StoredBody:
    """A `receive` that returns `body` once, then the messages of the network, such as a disconnect."""

    def __init__(self, body: bytes, receive: Any):
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> dict[str, Any]:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _RefusalStatus:
    """`send` that changes Gradio's status 500 to 400 if a value of the event was refused."""

    def __init__(self, refusals: list[str], send: Any):
        self._refusals, self._send = refusals, send

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] == 500 and self._refusals:
            message = {**message, "status": 400}
        await self._send(message)


def is_secure(request: Request) -> bool:
    """Whether the request came over TLS, directly or through a proxy that sets X-Forwarded-Proto."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


async def _body(receive: Any) -> bytes:
    """The whole body. Raises BadInput if it is too long for an event or the browser disconnected."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise BadInput("The browser disconnected before it had sent the event.")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > EVENT_BYTES:
            raise BadInput(f"The event is larger than {EVENT_BYTES / 2**20:.0f} MB; send long texts as a file.")
    return bytes(body)


def _refusal(error: BadInput) -> Response:
    """A response in the format of Gradio's errors, so that the page shows the message."""
    return Response(json.dumps({"error": str(error)}), status_code=400, media_type="application/json")


def _as_attachment(send: Any) -> Any:
    """`send` that makes browsers save a user's file instead of displaying it as a page."""

    async def add(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = [(k, v) for k, v in message["headers"] if k.lower() != b"content-disposition"]
            own = [(b"content-disposition", b"attachment"), (b"content-security-policy", b"sandbox")]
            message = {**message, "headers": [*headers, *own]}
        await send(message)

    return add

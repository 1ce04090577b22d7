"""The gate between the network and Gradio: only the routes our pages use, only the payloads they send.

Gradio serves far more than our pages need (files, a proxy, streams, calls by name, an editor). What is not named here
is not there; a new version's new routes are shut until someone opens them. Runs inside Gradio's own application.
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
"""Addresses that may be read as they are; `app_id` is what a page asks for while its server is away."""
BUNDLED = ("/assets/", "/static/")
"""Gradio's own scripts and fonts."""
LONGEST = 200
"""Bytes of the path of one of them; of a longer one the disk itself says that it is too long, which is no answer."""
UNANSWERABLE = "What was sent cannot be read or answered; reload the page."
EVENT_BYTES = 8 * 2**20
YEAR = 365 * 24 * 3600


class GradioGate:
    """ASGI middleware around Gradio. `pages` are the paths of our pages, `uploads` knows whose a file is."""

    def __init__(self, app: Any, blocks: gr.Blocks, uploads: Uploads, pages: Collection[str]):
        self.app, self.blocks, self.uploads, self.pages = app, blocks, uploads, frozenset(pages)
        self.documents = Documents(app)
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
            await self.documents.serve(scope, receive, _Known(scope, send))
        elif reads and (path in READ or path.startswith(BUNDLED) and len(path.encode()) <= LONGEST):
            await self.app(scope, receive, send)
        elif reads and path.startswith(FILE) and self.uploads.is_own(session_of(scope), path.removeprefix(FILE)):
            await self.app(scope, receive, _harmless(send))
        else:
            await PlainTextResponse("There is nothing at this address.\n", status_code=404)(scope, receive, send)

    async def _event(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Look at the whole body, then hand Gradio what was looked at."""
        try:
            body = await _body(receive)
            session = session_of(scope)
            body = payloads.checked(body, self.blocks, lambda path: self.uploads.is_own(session, path))
        except BadInput as error:
            await _refusal(error)(scope, receive, send)
            return
        replaced = (b"content-type", b"content-length", b"content-encoding", b"transfer-encoding")
        headers = [(k, v) for k, v in scope["headers"] if k.lower() not in replaced]
        headers += [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        found: list[str] = []
        refused.set(found)
        answer = _AsRefused(found, send)
        await self._gradio({**scope, "headers": headers}, _ReplayedBody(body, receive), answer)

    async def _upload(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """What Gradio kept belongs to this session from now on."""
        known = _Known(scope, send)
        answer = DocumentResponse()
        await self._gradio(scope, receive, answer)
        if answer.status == 200:
            for path in json.loads(answer.body):
                self.uploads.claim(known.session, path)
        await answer.send(known)

    async def _gradio(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Gradio raises for some forms (a file without a name) and some answers (half a character)."""
        try:
            await self.app(scope, receive, send)
        except (TypeError, ValueError) as error:
            place = origin(error)
            self._unanswerable[place] += 1
            if is_power_of_two(count := self._unanswerable[place]):
                log.warning("%s was refused: %s (%d so far)", scope["path"], place, count)
            await _refusal(BadInput(UNANSWERABLE))(scope, receive, send)


class _Known:
    """`send` that gives a browser without a login or a cookie one, by which it is known again."""

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
        answer = Response()
        secure = is_secure(Request(self._scope))
        answer.set_cookie(BROWSER, self._new, max_age=YEAR, httponly=True, samesite="strict", secure=secure, path="/")
        return b"set-cookie", answer.headers["set-cookie"].encode("latin-1")


class _ReplayedBody:
    """A `receive` that gives `body` once, then what the network says (a browser that left)."""

    def __init__(self, body: bytes, receive: Any):
        self._body: bytes | None = body
        self._receive = receive

    async def __call__(self) -> dict[str, Any]:
        if self._body is None:
            return await self._receive()
        body, self._body = self._body, None
        return {"type": "http.request", "body": body, "more_body": False}


class _AsRefused:
    """`send` that turns Gradio's 500 into 400 when a value of the event was refused."""

    def __init__(self, refusals: list[str], send: Any):
        self._refusals, self._send = refusals, send

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start" and message["status"] == 500 and self._refusals:
            message = {**message, "status": 400}
        await self._send(message)


def is_secure(request: Request) -> bool:
    """Whether the browser came over TLS, also through a proxy that says so."""
    return request.url.scheme == "https" or request.headers.get("x-forwarded-proto") == "https"


async def _body(receive: Any) -> bytes:
    """The whole body. Raises BadInput when it is too long for an event, or the browser left."""
    body, more = bytearray(), True
    while more:
        message = await receive()
        if message["type"] != "http.request":
            raise BadInput("The browser left before it had sent the event.")
        body += message.get("body", b"")
        more = message.get("more_body", False)
        if len(body) > EVENT_BYTES:
            raise BadInput(f"The event is larger than {EVENT_BYTES / 2**20:.0f} MB; send long texts as a file.")
    return bytes(body)


def _refusal(error: BadInput) -> Response:
    """As Gradio words an error, so that the page shows the sentence."""
    return Response(json.dumps({"error": str(error)}), status_code=400, media_type="application/json")


def _harmless(send: Any) -> Any:
    """A file of a user is saved by the browser, never shown as a page of ours."""

    async def add(message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            headers = [(k, v) for k, v in message["headers"] if k.lower() != b"content-disposition"]
            own = [(b"content-disposition", b"attachment"), (b"content-security-policy", b"sandbox")]
            message = {**message, "headers": [*headers, *own]}
        await send(message)

    return add

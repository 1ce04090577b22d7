"""ASGI middleware for the pages (including Gradio's routes) and the inference API: checks Host and Origin headers.

Any web page can make a browser send requests to loopback, and DNS rebinding can make such a page look same-origin.
So every request must have a known Host, and its Origin, if any, must be ours. Does not check passwords or tokens.
"""

from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any
from urllib.parse import urlsplit

from starlette.requests import ClientDisconnect
from starlette.responses import JSONResponse

from speculoos.settings import LOOPBACK

Message = MutableMapping[str, Any]
Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
DEFAULT_PORTS = {"http": 80, "https": 443, "ws": 80, "wss": 443}

PAGES_POLICY = "; ".join(
    (
        "default-src 'self' data: blob:",
        "script-src 'self' 'unsafe-inline' 'unsafe-eval' blob:",  # Gradio's page configures itself inline
        "style-src 'self' 'unsafe-inline'",
        "object-src 'none'",
        "base-uri 'self'",
        "form-action 'self'",
        "frame-ancestors 'self'",
    )
)
"""Content-Security-Policy of the pages: no requests to other sites."""

API_POLICY = "default-src 'none'; frame-ancestors 'self'"
"""Content-Security-Policy of servers that return only JSON."""


class RequestGuard:
    """Rejects requests with unknown hosts or origins, limits body sizes and adds security headers.

    `port`: the port of the server; loopback names are accepted with this port only. `allowed_hosts`: further names,
    with a port (`box.lan:8080`) or without (any port). `max_body_bytes`: larger bodies get status 413. `any_host`:
    accept any Host, for a server with a token, which no web page has.
    """

    def __init__(
        self,
        app: App,
        port: int,
        allowed_hosts: Iterable[str] = (),
        max_body_bytes: int | None = None,
        policy: str = API_POLICY,
        any_host: bool = False,
    ):
        self.app = app
        self.max_body_bytes, self._any_host = max_body_bytes, any_host
        self._hosts = {(name, port) for name in LOOPBACK}
        self._hosts |= {_split(host, None) for host in allowed_hosts}
        self._headers = [
            (b"content-security-policy", policy.encode()),
            (b"x-content-type-options", b"nosniff"),
            (b"referrer-policy", b"same-origin"),  # with no-referrer our own forms have Origin: null
            (b"x-frame-options", b"SAMEORIGIN"),
            (b"cross-origin-resource-policy", b"same-origin"),
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self.app(scope, receive, send)
            return
        refusal = self.refusal(scope)
        if scope["type"] == "websocket":
            await (_refuse_websocket(receive, send) if refusal else self.app(scope, receive, send))
        elif refusal:
            await _respond(self._with_headers(send), *refusal)
        else:
            await self._serve(scope, receive, self._with_headers(send))

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """(status, message) if the request must be rejected, else None."""
        headers = _headers(scope)
        hosts = headers.get("host", [])
        if len(hosts) != 1 or not self._host_allowed(hosts[0], scope):
            return 403, (
                f"Host {_quoted(hosts)} is not accepted; use the address that was printed at startup, "
                "or add the name to SPECULOOS_ALLOWED_HOSTS (a container's published port: SPECULOOS_PUBLISH_PORT)."
            )
        origins = headers.get("origin", [])
        if any(not self._origin_allowed(origin, hosts[0]) for origin in origins):
            return 403, f"Requests from the web page {_quoted(origins)} are refused; use the workbench's own pages."
        if not origins and _is_cross_site(scope, headers):
            return 403, "Requests from another web page are refused; use the workbench's own pages."
        if self.max_body_bytes is not None and _declared_length(headers) > self.max_body_bytes:
            return 413, self._too_large()
        return None

    def _host_allowed(self, host: str, scope: Scope) -> bool:
        if self._any_host:
            return True
        name, port = _split(host, DEFAULT_PORTS.get(scope.get("scheme", "http"), 80))
        return (name, port) in self._hosts or (name, None) in self._hosts

    def _origin_allowed(self, origin: str, host: str) -> bool:
        try:
            parts = urlsplit(origin)
        except ValueError:  # http://[::1
            return False
        if parts.scheme not in DEFAULT_PORTS or not parts.netloc:
            return False  # `null`, file:, browser extensions
        name, port = _split(parts.netloc, DEFAULT_PORTS[parts.scheme])
        own_host = _split(host, DEFAULT_PORTS[parts.scheme])
        allowed = (name, port) in self._hosts
        by_proxy = port == DEFAULT_PORTS[parts.scheme] and (name, None) in self._hosts  # a proxy that rewrites Host
        return (name, port) == own_host or allowed or by_proxy

    def _too_large(self) -> str:
        return f"The request is larger than {(self.max_body_bytes or 0) / 2**20:.0f} MB; send less data per request."

    def _with_headers(self, send: Send) -> Send:
        async def add(message: Message) -> None:
            if message["type"] == "http.response.start":
                present = {name.lower() for name, _ in message.get("headers", [])}
                extra = [(name, value) for name, value in self._headers if name not in present]
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        return add

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Run the app; a body without Content-Length that exceeds the limit is answered with status 413."""
        if self.max_body_bytes is None or scope["method"] in ("GET", "HEAD"):
            await self.app(scope, receive, send)
            return
        body = _CountedBody(receive, send, self.max_body_bytes)
        try:
            await self.app(scope, body.receive, body.send)
        except ClientDisconnect:
            pass  # the client is gone
        except Exception:
            if not body.exceeded:
                raise
        if body.exceeded and not body.response_started:
            await _respond(send, 413, self._too_large())


class _CountedBody:
    """Counts received bytes; beyond the limit the app sees a disconnect, and a response not yet started is dropped."""

    def __init__(self, receive: Receive, send: Send, limit: int):
        self._receive, self._send, self._remaining = receive, send, limit
        self.exceeded = self.response_started = False

    async def receive(self) -> Message:
        if self.exceeded:
            return {"type": "http.disconnect"}
        message = await self._receive()
        self._remaining -= len(message.get("body", b""))
        if self._remaining < 0:
            self.exceeded = True
            return {"type": "http.disconnect"}
        return message

    async def send(self, message: Message) -> None:
        if self.exceeded and not self.response_started:
            return
        self.response_started = True
        await self._send(message)


def _headers(scope: Scope) -> dict[str, list[str]]:
    headers: dict[str, list[str]] = {}
    for name, value in scope["headers"]:
        headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
    return headers


def _split(host: str, default_port: int | None) -> tuple[str, int | None]:
    """`name:port` → (lower-case name without brackets and trailing dot, port); ("", None) if malformed."""
    try:
        parts = urlsplit("//" + host)
        port = parts.port
    except ValueError:
        return "", None
    if any(mark in host for mark in "@/?#") or host.count("]") > 1:  # urlsplit accepts [::1]] as [::1]
        return "", None
    return (parts.hostname or "").lower().rstrip("."), port if port is not None else default_port


def _is_cross_site(scope: Scope, headers: dict[str, list[str]]) -> bool:
    """True if Sec-Fetch headers show a request from another site that is not a navigation to our page."""
    site = headers.get("sec-fetch-site", ["none"])[0]
    followed_link = scope.get("method") in SAFE_METHODS and headers.get("sec-fetch-mode", [""])[0] == "navigate"
    return site in ("cross-site", "same-site") and not followed_link


def _declared_length(headers: dict[str, list[str]]) -> int:
    text = headers.get("content-length", ["0"])[0]
    return int(text[:20]) if text.isascii() and text.isdigit() else 0


def _quoted(values: list[str]) -> str:
    return repr(values[0][:100]) if values else "(none given)"


async def _respond(send: Send, status: int, message: str) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": "refused"}
    response = JSONResponse({"error": error}, status)
    await send({"type": "http.response.start", "status": status, "headers": response.raw_headers})
    await send({"type": "http.response.body", "body": response.body})


async def _refuse_websocket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 1008, "reason": "refused"})

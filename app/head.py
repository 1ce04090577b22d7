"""Puts our style sheet and scripts into the head of each page as it leaves, before the browser draws anything.

Gradio adds its `head` argument from a script after the page has come up, which would flash the wrong theme.
"""

from collections.abc import Collection
from typing import Any


class PageHead:
    """ASGI middleware: inserts `tags` before `</head>` in HTML answers to GET requests for `paths`."""

    def __init__(self, app: Any, tags: str, paths: Collection[str]):
        self.app, self.tags, self.paths = app, tags.encode(), frozenset(paths)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        if scope["type"] != "http" or scope["method"] != "GET" or _page(scope["path"]) not in self.paths:
            await self.app(scope, receive, send)
            return
        plain = [(k, v) for k, v in scope["headers"] if k.lower() != b"accept-encoding"]
        await self.app({**scope, "headers": plain}, receive, _Inserting(send, self.tags))


class _Inserting:
    """Holds the answer's first message and body until the body is whole, then sends both with the tags added."""

    def __init__(self, send: Any, tags: bytes):
        self._send, self._tags = send, tags
        self._start: dict[str, Any] | None = None
        self._body = b""

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self._start = message
            return
        if message["type"] != "http.response.body":
            await self._send(message)
            return
        self._body += message.get("body", b"")
        if not message.get("more_body"):
            await self._finish()

    async def _finish(self) -> None:
        body = self._body.replace(b"</head>", self._tags + b"</head>", 1)
        headers = [(k, v) for k, v in self._start["headers"] if k.lower() not in (b"content-length", b"etag")]
        await self._send({**self._start, "headers": [*headers, (b"content-length", str(len(body)).encode())]})
        await self._send({"type": "http.response.body", "body": body})


def _page(path: str) -> str:
    return path.rstrip("/") or "/"

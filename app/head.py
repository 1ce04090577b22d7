"""Inserts the style sheets and scripts into the head of each page's HTML, before the browser renders anything.

Gradio adds its `head` argument from a script after the page is displayed, which would flash the wrong theme.
"""

from collections.abc import Collection
from typing import Any

from app.documents import DocumentResponse


class PageHead:
    """ASGI middleware: inserts `tags` before `</head>` in HTML responses to GET requests for `paths`."""

    def __init__(self, app: Any, tags: str, paths: Collection[str]):
        self.app, self.tags, self.paths = app, tags.encode(), frozenset(paths)

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        is_read = scope["type"] == "http" and scope["method"] == "GET"
        if not is_read or (scope["path"].rstrip("/") or "/") not in self.paths:
            await self.app(scope, receive, send)
            return
        plain = [(k, v) for k, v in scope["headers"] if k.lower() != b"accept-encoding"]
        response = DocumentResponse()
        await self.app({**scope, "headers": plain}, receive, response)
        response.body = response.body.replace(b"</head>", self.tags + b"</head>", 1)
        headers = [(k, v) for k, v in response.start["headers"] if k.lower() not in (b"content-length", b"etag")]
        response.start["headers"] = [*headers, (b"content-length", str(len(response.body)).encode())]
        await response.send(send)

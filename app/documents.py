"""Cache of the HTML documents of the pages; a document is the same for all visitors of a URL.

Gradio copies the config of all components to create one (30 ms on a core). It does not depend on the visitor:
GradioGate passes neither query nor login on, and data of rows comes with events. Cookies are added afterwards.

Style sheets and scripts are inserted into the head: Gradio adds its `head` argument from a script after the page is
displayed, which would flash the wrong theme.
"""

from collections import OrderedDict
from typing import Any

MOST = 64
"""Maximum number of cached documents: a few host names times the number of pages."""
ADDRESS_HEADERS = frozenset({b"host", b"x-forwarded-host", b"x-forwarded-proto"})
"""Headers from which Gradio may derive URLs in a document. No other header is passed on: a header outside the cache key
would let a visitor change what the next one sees."""


class Documents:
    """Answers requests of pages from the cache, or from `app` with the tags `head` before `</head>`."""

    def __init__(self, app: Any, head: str):
        self.app, self.head = app, head.encode()
        self._cached: OrderedDict[tuple[Any, ...], DocumentResponse] = OrderedDict()

    async def serve(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        key = (
            scope["method"],
            scope["path"],
            scope.get("root_path", ""),
            scope["scheme"],
            tuple(_address_headers(scope)),
        )
        if (response := self._cached.get(key)) is None:
            response = DocumentResponse()
            await self.app({**scope, "query_string": b"", "headers": _address_headers(scope)}, receive, response)
            response.insert_before(b"</head>", self.head)
            if response.status == 200:
                self._cached[key] = response
                while len(self._cached) > MOST:
                    self._cached.popitem(last=False)
        else:
            self._cached.move_to_end(key)
        await response.send(send)


class DocumentResponse:
    """A `send` that stores the whole response, to send it later."""

    def __init__(self) -> None:
        self.start: dict[str, Any] = {}
        self.body = b""

    async def __call__(self, message: dict[str, Any]) -> None:
        if message["type"] == "http.response.start":
            self.start = message
        elif message["type"] == "http.response.body":
            self.body += message.get("body", b"")

    @property
    def status(self) -> int:
        return self.start.get("status", 500)

    def insert_before(self, mark: bytes, text: bytes) -> None:
        """Insert `text` before the first `mark` of the body, if it has one."""
        before, found, after = self.body.partition(mark)
        if found:
            self.body = before + text + mark + after
            headers = [(k, v) for k, v in self.start["headers"] if k.lower() not in (b"content-length", b"etag")]
            self.start["headers"] = [*headers, (b"content-length", str(len(self.body)).encode())]

    async def send(self, send: Any) -> None:
        """Send the stored response."""
        await send({**self.start, "headers": list(self.start["headers"])})
        await send({"type": "http.response.body", "body": self.body})


def _address_headers(scope: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in scope["headers"] if name.lower() in ADDRESS_HEADERS]

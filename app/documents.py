"""The documents of our pages as Gradio writes them, kept: each is the same for everyone who asks at the same address.

Writing one copies the descriptions of all its components (30 ms on a core), and a document says nothing of who asks:
GradioGate lets no query and no login through to it, and what rows say comes by events. A cookie is added on top.
"""

from collections import OrderedDict
from typing import Any

MOST = 64
"""Documents kept: some names of this machine, times the pages."""
ADDRESS_HEADERS = frozenset({b"host", b"x-forwarded-host", b"x-forwarded-proto"})
"""What Gradio may derive the addresses in a document from, beside the path. It sees no other header: one that is not in
the key would let a visitor choose what the next one is shown."""


class Documents:
    """Answers a GET of a page from what `app` has answered before."""

    def __init__(self, app: Any):
        self.app = app
        self._answers: OrderedDict[tuple[Any, ...], DocumentResponse] = OrderedDict()

    async def serve(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        key = (scope["method"], scope["path"], scope.get("root_path", ""), scope["scheme"], tuple(_said(scope)))
        if (answer := self._answers.get(key)) is None:
            answer = DocumentResponse()
            await self.app({**scope, "query_string": b"", "headers": _said(scope)}, receive, answer)
            if answer.status == 200:
                self._answers[key] = answer
                while len(self._answers) > MOST:
                    self._answers.popitem(last=False)
        else:
            self._answers.move_to_end(key)
        await answer.send(send)


class DocumentResponse:
    """A `send` that holds the whole answer, and gives it on."""

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

    async def send(self, send: Any) -> None:
        """As if it had just been made."""
        await send({**self.start, "headers": list(self.start["headers"])})
        await send({"type": "http.response.body", "body": self.body})


def _said(scope: dict[str, Any]) -> list[tuple[bytes, bytes]]:
    return [(name, value) for name, value in scope["headers"] if name.lower() in ADDRESS_HEADERS]

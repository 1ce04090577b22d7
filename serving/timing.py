"""Measures each request up to the last byte of its response, also if the server stops before. Pure ASGI middleware."""

import time
from asyncio import CancelledError
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import STOPPING, ApiError

OTHER = "other"
"""Label of all unknown paths, whose number is unbounded."""
CLOSED = "closed"
"""Status of a request whose client disconnected before the response."""


class RequestTimer:
    """`observe(route, status)` returns a function that takes the seconds."""

    def __init__(self, app: ASGIApp, observe: Callable[[str, str], Callable[[float], None]]):
        self.app, self._observe = app, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.monotonic(), CLOSED

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except CancelledError:  # uvicorn stops; it would send a 500 and log a traceback for every request
            if status == CLOSED:
                await ApiError(503, STOPPING, "unavailable").response()(scope, receive, send_and_note)
        finally:
            route = getattr(scope.get("route"), "path", OTHER)
            self._observe(route, status)(time.monotonic() - start)

"""How long each request took, to the last byte of its answer, also where the server stops before. Pure ASGI; knows
neither routes' names nor Prometheus."""

import time
from asyncio import CancelledError
from collections.abc import Callable

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from serving.errors import STOPPING, ApiError

OTHER = "other"
"""Addresses that are no route of ours: their number has no bound."""
CLOSED = "closed"
"""The status of a request whose client left before it was answered."""


class RequestTimer:
    """`observe(route, status)` gives what is to be told the seconds."""

    def __init__(self, app: ASGIApp, observe: Callable[[str, str], Callable[[float], None]]):
        self.app, self._observe = app, observe

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), CLOSED

        async def noting(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, noting)
        except CancelledError:  # uvicorn stops; it would answer 500 and log a traceback for every request
            if status == CLOSED:
                await ApiError(503, STOPPING, "unavailable").response()(scope, receive, noting)
        finally:
            route = getattr(scope.get("route"), "path", OTHER)
            self._observe(route, status)(time.monotonic() - began)

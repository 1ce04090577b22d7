"""A connection that sends its request too slowly, headers without end, or many requests without waiting for answers is
closed: uvicorn itself would wait for ever and keep what comes, before anybody is asked for a token.
"""

import resource
from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

REQUEST_SECONDS = 60.0
"""From the first byte of a request (or the connection's start) to the last byte of its body."""
BYTES_PER_SECOND = 1000.0
"""Each so many bytes of the body give it a second more: a large upload over a slow line is no attack."""
HEAD_BYTES = 2**19
"""Of the request line and headers, and of trailers; more than uvicorn hands over at once."""
HEADERS = 200
"""Of a request, trailers included: small ones take forty times their size."""
AHEAD = 8
"""Requests that may wait for the answer to an earlier one. Browsers and proxies send none ahead."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's own protocol with a time limit for each request, and limits for its headers and for requests ahead."""

    _timer: TimerHandle | None = None
    _deadline = 0.0
    _in_head = False
    _head_bytes = 0
    _answered: RequestResponseCycle | None = None
    """What is being answered; uvicorn itself remembers only the request that came last."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        self._leave()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self._leave()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._begin()  # what comes now may be no request: uvicorn waits no longer for one to begin
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.transport.abort()
        else:
            self._deadline += len(data) / BYTES_PER_SECOND

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= AHEAD:
            raise ValueError("too many requests ahead")
        self._begin()
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """After the last one come trailers."""
        self._in_head, self._head_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        self._in_head = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = False
        self._end()
        super().on_message_complete()

    def _leave(self) -> None:
        """The answer is for nobody: writing it to a closed connection would be an error."""
        if self._answered is not None:
            self._answered.disconnected = True
            self._answered.message_event.set()

    def _begin(self) -> None:
        self._end()
        self._deadline = self.loop.time() + REQUEST_SECONDS
        self._timer = self.loop.call_at(self._deadline, self._too_slow)

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._too_slow)
        else:
            self.transport.abort()


def allow_connections() -> None:
    """As many open files, and so connections, as this account may have: the usual 1,024 are soon taken by slow ones."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))

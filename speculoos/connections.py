"""Closes connections with slow requests, endless headers or too many pipelined requests. uvicorn itself has no such
limits and would buffer the data before any authentication.
"""

import resource
from asyncio import TimerHandle, Transport
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

REQUEST_SECONDS = 60.0
"""Timeout from the first byte of a request (or the connection's start) to the last byte of its body."""
BYTES_PER_SECOND = 1000.0
"""Minimum body rate: every so many bytes extend the timeout by a second, for large uploads over slow lines."""
HEAD_BYTES = 2**19  # maximum size of request line and headers, and of trailers; larger than one read of uvicorn
MAX_HEADERS = 200  # maximum number of headers and trailers: small ones take forty times their size in memory
MAX_PIPELINED = 8  # maximum number of pipelined requests. Browsers and proxies send none.


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's HTTP protocol with a timeout per request and limits for headers and pipelined requests."""

    _timer: TimerHandle | None = None
    _deadline = 0.0
    _in_head = False
    _head_bytes = 0
    _current_cycle: RequestResponseCycle | None = None
    """The request in progress; uvicorn itself stores only the last one received."""

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        self._disconnect()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(msg)
        self._disconnect()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._current_cycle = cycle
        super()._start_asgi_task(cycle, app)

    def data_received(self, data: bytes) -> None:
        if self._timer is None and (self.cycle is None or self.cycle.response_complete):
            self._start_timer()  # uvicorn stops its keep-alive timer on any data, even if no request begins
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.transport.abort()
        else:
            self._deadline += len(data) / BYTES_PER_SECOND

    def on_message_begin(self) -> None:
        if len(self.pipeline) >= MAX_PIPELINED:
            raise ValueError("too many pipelined requests")
        self._start_timer()
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= MAX_HEADERS:
            raise ValueError("too many headers")
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_chunk_header(self) -> None:
        """Trailers follow the last chunk header and count as headers."""
        self._in_head, self._head_bytes = True, 0

    def on_body(self, body: bytes) -> None:
        self._in_head = False
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_head = False
        self._stop_timer()
        super().on_message_complete()

    def _disconnect(self) -> None:
        """Mark the response as disconnected: writing to a closed connection would be an error."""
        if self._current_cycle is not None:
            self._current_cycle.disconnected = True
            self._current_cycle.message_event.set()

    def _start_timer(self) -> None:
        self._stop_timer()
        self._deadline = self.loop.time() + REQUEST_SECONDS
        self._timer = self.loop.call_at(self._deadline, self._too_slow)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _too_slow(self) -> None:
        if self.loop.time() < self._deadline:
            self._timer = self.loop.call_at(self._deadline, self._too_slow)
        else:
            self.transport.abort()


def raise_open_file_limit() -> None:
    """Raise the limit of open files (connections) to the hard limit: slow clients soon use up the usual 1,024."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))

"""A connection that sends its request too slowly, or headers without end, is closed: uvicorn itself would wait for ever
and keep what comes, before anybody is asked for a token.
"""

import resource
from asyncio import TimerHandle, Transport

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

REQUEST_SECONDS = 60.0
"""From the first byte of a request (or the connection's start) to the last byte of its body."""
BYTES_PER_SECOND = 1000.0
"""Each so many bytes of the body give it a second more: a large upload over a slow line is no attack."""
HEAD_BYTES = 2**19
"""Of the request line and headers; more than uvicorn hands over at once."""


class BoundedConnection(HttpToolsProtocol):
    """uvicorn's own protocol with a time limit for each request, and a size limit for its headers."""

    _timer: TimerHandle | None = None
    _deadline = 0.0
    _in_head = False
    _head_bytes = 0

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._in_head:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES:
                self.transport.abort()
        else:
            self._deadline += len(data) / BYTES_PER_SECOND

    def on_message_begin(self) -> None:
        self._begin()
        self._in_head, self._head_bytes = True, 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        self._in_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        self._end()
        super().on_message_complete()

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

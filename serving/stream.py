"""From the device's thread to asyncio: an answer's events in order, and cancellation when nobody listens any more.

Knows how events travel, not what is in them.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from serving.errors import as_api_error
from serving.queueing import DeviceQueue, Ticket

DISCONNECT_POLL = 0.2
Emit = Callable[[Any], None]


class Answering:
    """One piece of work on a device whose events an async caller iterates. Leaving the iteration cancels the work.

    Raises Busy when there is no room to wait."""

    def __init__(self, queue: DeviceQueue, lane: str, work: Callable[[Ticket, Emit], None]):
        self._events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._ticket = queue.submit(lane, self._run, lambda: self._put("end", None))

    def cancel(self) -> None:
        """Stop between steps, or give up the place in the queue; harmless when the work has ended."""
        self._ticket.cancel()

    async def events(self) -> AsyncIterator[Any]:
        """What the work emitted, as it comes. Raises what the work raised."""
        try:
            while True:
                kind, value = await self._events.get()
                if kind == "error":
                    raise value
                if kind == "end":
                    return
                yield value
        finally:
            self.cancel()

    def _run(self, ticket: Ticket) -> None:
        try:
            self._work(ticket, lambda event: self._put("event", event))
        except Exception as error:
            self._put("error", error)
        except BaseException as error:  # a panic, which an event loop must never see
            self._put("error", as_api_error(error))
            raise
        else:
            self._put("end", None)

    def _put(self, kind: str, value: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, (kind, value))


async def unless_gone(disconnected: Callable[[], Awaitable[bool]], result: Awaitable[Any], answering: Answering) -> Any:
    """Await `result`, cancelling `answering` once the client is gone; then the result is None."""
    task = asyncio.ensure_future(result)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=DISCONNECT_POLL)
            if not task.done() and await disconnected():
                return None
        return task.result()
    finally:
        if not task.done():
            answering.cancel()
            task.cancel()

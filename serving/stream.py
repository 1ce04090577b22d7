"""Passes the events of a generation from the device's thread to asyncio, and cancels it if the client disconnects."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from serving.errors import as_api_error
from serving.queueing import DeviceQueue, Ticket

DISCONNECT_POLL = 0.2
Emit = Callable[[Any], None]


class QueuedWork:
    """Work in a device's queue whose events an async caller iterates. Leaving the iteration cancels the work.

    Raises Busy if the queue is full."""

    def __init__(self, queue: DeviceQueue, lane: str, work: Callable[[Ticket, Emit], None]):
        self._events: asyncio.Queue[tuple[str, Any]] = asyncio.Queue()
        self._loop = asyncio.get_running_loop()
        self._work = work
        self._ticket = queue.submit(lane, self._run, lambda: self._put("end", None))

    def cancel(self) -> None:
        """Remove the work from the queue or stop it between steps; no effect if it has ended."""
        self._ticket.cancel()

    async def events(self) -> AsyncIterator[Any]:
        """Yield the events as they are emitted. Reraises the work's exception."""
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
        except BaseException as error:  # a panic, which must not reach the event loop
            self._put("error", as_api_error(error))
            raise
        else:
            self._put("end", None)

    def _put(self, kind: str, value: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._events.put_nowait, (kind, value))


async def cancel_on_disconnect(
    disconnected: Callable[[], Awaitable[bool]], result: Awaitable[Any], work: QueuedWork
) -> Any:
    """Await `result`. If the client disconnects first, cancel `work` and return None."""
    task = asyncio.ensure_future(result)
    try:
        while not task.done():
            await asyncio.wait([task], timeout=DISCONNECT_POLL)
            if not task.done() and await disconnected():
                return None
        return task.result()
    finally:
        if not task.done():
            work.cancel()
            task.cancel()

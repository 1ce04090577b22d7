"""One thread a device: everything that touches a model runs there, one piece of work at a time, in a fair order.

Work waits in lanes (`api`, `chat`, `compare`, …) that take turns, so a data generation with many requests in flight
delays a Playground turn by one answer at most. Knows neither HTTP nor models.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable

log = logging.getLogger(__name__)
TYPICAL_SECONDS = 5.0


class Busy(Exception):
    """The lane is full; `retry_after` seconds are a fair guess."""

    def __init__(self, retry_after: int):
        super().__init__(f"The device is busy and its queue is full; try again in {retry_after} seconds.")
        self.retry_after = retry_after


class Ticket:
    """A place in the queue. `cancel` asks the work to stop; waiting work is dropped and `on_dropped` called."""

    def __init__(self, work: Callable[["Ticket"], None], on_dropped: Callable[[], None]):
        self.work, self.on_dropped = work, on_dropped
        self.cancelled = threading.Event()

    def cancel(self) -> None:
        self.cancelled.set()


class DeviceQueue:
    """Runs tickets on its own thread until `close`. `depth` bounds each lane."""

    def __init__(self, name: str, depth: int = 64):
        self.name, self.depth = name, depth
        self._lanes: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._ready = threading.Condition()
        self._closed = False
        self._current: Ticket | None = None
        self._seconds = TYPICAL_SECONDS
        self.idle_since = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"device-{name}", daemon=True)
        self._thread.start()

    def submit(
        self, lane: str, work: Callable[[Ticket], None], on_dropped: Callable[[], None] = lambda: None
    ) -> Ticket:
        """Wait in `lane`. Raises Busy when it is full."""
        ticket = Ticket(work, on_dropped)
        with self._ready:
            waiting = self._lanes.setdefault(lane, deque())
            if len(waiting) >= self.depth:
                raise Busy(max(1, round(self._seconds * len(waiting))))
            waiting.append(ticket)
            self._ready.notify()
        return ticket

    @property
    def waiting(self) -> int:
        with self._ready:
            return sum(map(len, self._lanes.values()))

    @property
    def busy(self) -> bool:
        return self._current is not None

    def close(self, timeout: float = 10.0) -> None:
        """Cancel what runs, drop what waits, and join the thread."""
        with self._ready:
            self._closed = True
            for waiting in self._lanes.values():
                for ticket in waiting:
                    ticket.cancel()
            if self._current:
                self._current.cancel()
            self._ready.notify()
        self._thread.join(timeout)

    def _run(self) -> None:
        while (ticket := self._next()) is not None:
            started = time.monotonic()
            self._do(ticket)
            self.idle_since = time.monotonic()
            self._seconds += 0.2 * (self.idle_since - started - self._seconds)
            self._current = None

    def _do(self, ticket: Ticket) -> None:
        try:
            ticket.on_dropped() if ticket.cancelled.is_set() else ticket.work(ticket)
        except Exception:
            log.exception("Work on %s failed", self.name)

    def _next(self) -> Ticket | None:
        """The next ticket, lanes taking turns; None once closed and empty."""
        with self._ready:
            self._ready.wait_for(lambda: self._closed or any(self._lanes.values()))
            for lane, waiting in self._lanes.items():
                if waiting:
                    self._lanes.move_to_end(lane)
                    self._current = waiting.popleft()
                    return self._current
            return None

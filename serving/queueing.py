"""One thread a device: everything that touches a model runs there, one piece of work at a time, in a fair order.

Work waits in lanes that take turns, one lane a client (an API key, an address, a chat of the pages), so whoever has 60
requests in flight delays anybody else by one answer at most. Knows neither HTTP nor models.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable
from math import inf
from typing import Any

from serving.heartbeat import Heart
from speculoos.priority import give_way

log = logging.getLogger(__name__)
TYPICAL_SECONDS = 5.0
IDLE_BEAT = 1.0
IDLE_LIMIT = 30.0
DEPTH, TOTAL = 64, 256
"""Work that may wait in one lane, and in all of them together."""
LONGEST_RETRY = 300
UPKEEP = "upkeep"
"""The lane of the server's own work, which is never refused."""


class Busy(Exception):
    """There is no room to wait; `retry_after` seconds are a fair guess."""

    def __init__(self, retry_after: int, own: bool):
        whose = "as many of your requests wait already as may" if own else "its queue is full"
        super().__init__(f"The device is busy and {whose}; try again in {retry_after} seconds.")
        self.retry_after = retry_after


class Ticket:
    """A place in the queue. Work that waits is dropped as soon as it is cancelled; work that goes on is asked to stop
    by `cancelled`."""

    def __init__(
        self, queue: "DeviceQueue", lane: str, work: Callable[["Ticket"], None], on_dropped: Callable[[], None]
    ):
        self.lane, self.work, self.on_dropped = lane, work, on_dropped
        self.cancelled = threading.Event()
        self.since = time.monotonic()
        self._queue = queue

    def cancel(self) -> bool:
        """Give the place up, or ask the work to stop. True when it had not begun, and never will."""
        self.cancelled.set()
        return self._queue._drop(self)


class DeviceQueue:
    """Runs tickets on its own thread until `close`. `depth` bounds each lane, `total` all of them."""

    def __init__(
        self,
        name: str,
        depth: int = DEPTH,
        total: int = TOTAL,
        limit: float = inf,
        on_begin: Callable[[float], Any] = float,
        on_panic: Callable[[], Any] = lambda: None,
    ):
        """`limit`: seconds that work may be silent for (`heart`) where it says nothing else. `on_begin` is told how
        many seconds each piece of work has waited, `on_panic` that one ended in something that is no Exception."""
        self.name, self.depth, self.total = name, depth, total
        self.heart = Heart(limit)
        self._on_begin, self._on_panic = on_begin, on_panic
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
        """Wait in `lane`. Raises Busy when there is no room. `on_dropped` is called if the work never begins."""
        ticket = Ticket(self, lane, work, on_dropped)
        with self._ready:
            if not self._closed:
                self._check_room(lane)
                self._lanes.setdefault(lane, deque()).append(ticket)
                self._ready.notify()
                return ticket
        ticket.cancelled.set()
        on_dropped()
        return ticket

    def check_room(self, lane: str) -> None:
        """Raises Busy when there is no room in `lane` now."""
        with self._ready:
            self._check_room(lane)

    @property
    def waiting(self) -> int:
        with self._ready:
            return sum(map(len, self._lanes.values()))

    @property
    def lanes(self) -> int:
        """Clients that wait."""
        with self._ready:
            return len(self._lanes)

    @property
    def busy(self) -> bool:
        return self._current is not None

    @property
    def ill(self) -> str:
        """Why this thread will do no more work, in a few words; empty when it will."""
        if self._closed:
            return ""
        return self.heart.late if self._thread.is_alive() else "its thread has ended"

    def close(self, timeout: float = 10.0) -> None:
        """Drop what waits, ask what runs to stop, and join the thread."""
        with self._ready:
            self._closed = True
            left = [ticket for lane in self._lanes.values() for ticket in lane]
            self._lanes.clear()
            if self._current:
                self._current.cancelled.set()
            self._ready.notify()
        for ticket in left:
            ticket.cancelled.set()
            self._safely(ticket.on_dropped)
        self._thread.join(timeout)

    def _check_room(self, lane: str) -> None:
        own, all_waiting = len(self._lanes.get(lane, ())), sum(map(len, self._lanes.values()))
        if lane != UPKEEP and (own >= self.depth or all_waiting >= self.total):
            ahead = own * len(self._lanes) if own >= self.depth else all_waiting
            raise Busy(min(LONGEST_RETRY, max(1, round(self._seconds * ahead))), own >= self.depth)

    def _drop(self, ticket: Ticket) -> bool:
        """Take a waiting ticket out of its lane, at once."""
        with self._ready:
            waiting = self._lanes.get(ticket.lane, ())
            if ticket not in waiting:
                return False
            waiting.remove(ticket)
            if not waiting:
                del self._lanes[ticket.lane]
        self._safely(ticket.on_dropped)
        return True

    def _run(self) -> None:
        give_way(self.name)
        while (ticket := self._next()) is not None:
            started = time.monotonic()
            self.heart.beat("working")
            self._safely(lambda: self._on_begin(started - ticket.since))  # noqa: B023
            self._safely(lambda: ticket.work(ticket))  # noqa: B023
            self.idle_since = time.monotonic()
            self._seconds += 0.2 * (self.idle_since - started - self._seconds)
            self._current = None

    def _safely(self, work: Callable[[], None]) -> None:
        """Nothing ends this thread: a panic in Rust code arrives as a BaseException."""
        try:
            work()
        except BaseException as error:
            log.exception("Work on %s failed", self.name)
            if not isinstance(error, Exception):
                self._on_panic()

    def _next(self) -> Ticket | None:
        """The next ticket, lanes taking turns; None once closed. Beats while there is none."""
        with self._ready:
            while not (self._closed or self._lanes):
                self.heart.beat("idle", IDLE_LIMIT)
                self._ready.wait(IDLE_BEAT)
            if self._closed:
                return None
            lane, waiting = next(iter(self._lanes.items()))
            self._current = waiting.popleft()
            self._lanes.move_to_end(lane) if waiting else self._lanes.pop(lane)
            return self._current

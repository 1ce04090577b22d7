"""One thread per device runs all work that touches a model, one request at a time, in a fair order.

Clients take turns. A client is an API key, an address, or a chat or comparison of the web app. A client with 60 waiting
requests delays another client by one response at most. Independent of HTTP and models.
"""

import logging
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Any, NamedTuple

from speculoos.cpu_load import lower_priority

log = logging.getLogger(__name__)
TYPICAL_SECONDS = 5.0
IDLE_BEAT = 1.0
IDLE_LIMIT = 30.0
MAX_PER_CLIENT, MAX_WAITING = 64, 256  # maximum number of waiting requests: of one client, in all
LONGEST_RETRY = 300
UPKEEP = "upkeep"  # as a client: the server's own work, which is never rejected


class Beat(NamedTuple):
    at: float
    doing: str
    limit: float


class Heartbeat:
    """What a thread does, and until when its next beat is due (`limit` seconds by default), to detect hangs."""

    def __init__(self, limit: float = inf):
        self.limit = limit
        self._last = Beat(time.monotonic(), "starting", limit)

    def beat(self, doing: str = "", limit: float | None = None) -> None:
        """Record a heartbeat; with `doing`, the start of new work that may take `limit` seconds."""
        last = Beat(0.0, doing, self.limit if limit is None else limit) if doing else self._last
        self._last = last._replace(at=time.monotonic())

    @contextmanager
    def during(self, doing: str, limit: float) -> Iterator[None]:
        """A phase with its own limit; the previous work and limit are restored at its end."""
        before = self._last
        self.beat(doing, limit)
        try:
            yield
        finally:
            self.beat(before.doing, before.limit)

    @property
    def doing(self) -> str:
        return self._last.doing

    @property
    def age(self) -> float:
        """Seconds since the last beat."""
        return time.monotonic() - self._last.at

    @property
    def overdue(self) -> str:
        """Why the thread counts as stuck, in a few words, or ""."""
        last = self._last
        age = time.monotonic() - last.at
        if age <= last.limit:
            return ""
        return f"no heartbeat for {age:.0f} s while {last.doing} ({last.limit:.0f} s allowed)"


class Busy(Exception):
    """The queue is full; `retry_after` is an estimate in seconds."""

    def __init__(self, retry_after: int, is_client_limit: bool):
        reason = "you have reached the limit of waiting requests" if is_client_limit else "its queue is full"
        super().__init__(f"The device is busy and {reason}; try again in {retry_after} seconds.")
        self.retry_after = retry_after


class Ticket:
    """One request in the queue. Cancelling drops waiting work and sets `cancelled`, which running work checks."""

    def __init__(
        self, queue: "DeviceQueue", client: str, work: Callable[["Ticket"], None], on_dropped: Callable[[], None]
    ):
        self.client, self.work, self.on_dropped = client, work, on_dropped
        self.cancelled = threading.Event()
        self.since = time.monotonic()
        self._queue = queue

    def cancel(self) -> bool:
        """Drop the work or ask it to stop. True if it had not started, and so never will."""
        self.cancelled.set()
        return self._queue._drop(self)


class DeviceQueue:
    """Runs tickets on its own thread until `close`. `max_per_client` and `max_waiting` limit the waiting requests."""

    def __init__(
        self,
        name: str,
        max_per_client: int = MAX_PER_CLIENT,
        max_waiting: int = MAX_WAITING,
        limit: float = inf,
        on_begin: Callable[[float], Any] = float,
        on_panic: Callable[[], Any] = lambda: None,
    ):
        """`limit`: seconds between heartbeats. `on_begin` gets the seconds waited. `on_panic` is called after
        work raised a BaseException that is no Exception, such as a panic in Rust code."""
        self.name, self.max_per_client, self.max_waiting = name, max_per_client, max_waiting
        self.heartbeat = Heartbeat(limit)
        self._on_begin, self._on_panic = on_begin, on_panic
        self._by_client: OrderedDict[str, deque[Ticket]] = OrderedDict()
        self._ready = threading.Condition()  # its lock is reentrant
        self._closed = False
        self._current: Ticket | None = None
        self._seconds = TYPICAL_SECONDS
        self.idle_since = time.monotonic()
        self._thread = threading.Thread(target=self._run, name=f"device-{name}", daemon=True)
        self._thread.start()

    def submit(
        self, client: str, work: Callable[[Ticket], None], on_dropped: Callable[[], None] = lambda: None
    ) -> Ticket:
        """Queue work of `client`. `on_dropped` is called if the work never starts. Raises Busy if the queue is full."""
        ticket = Ticket(self, client, work, on_dropped)
        with self._ready:
            if not self._closed:
                self.check_capacity(client)
                self._by_client.setdefault(client, deque()).append(ticket)
                self._ready.notify()
                return ticket
        ticket.cancelled.set()
        on_dropped()
        return ticket

    def check_capacity(self, client: str) -> None:
        """Raises Busy if `client` has too many waiting requests or the queue is full."""
        with self._ready:
            own_waiting, all_waiting = len(self._by_client.get(client, ())), self.waiting
            if client != UPKEEP and (own_waiting >= self.max_per_client or all_waiting >= self.max_waiting):
                ahead = own_waiting * len(self._by_client) if own_waiting >= self.max_per_client else all_waiting
                raise Busy(min(LONGEST_RETRY, max(1, round(self._seconds * ahead))), own_waiting >= self.max_per_client)

    @property
    def waiting(self) -> int:
        with self._ready:
            return sum(map(len, self._by_client.values()))

    @property
    def waiting_clients(self) -> int:
        """Number of waiting clients."""
        with self._ready:
            return len(self._by_client)

    @property
    def busy(self) -> bool:
        return self._current is not None

    @property
    def failure(self) -> str:
        """Why the thread does not work any more, in a few words, or ""."""
        if self._closed:
            return ""
        return self.heartbeat.overdue if self._thread.is_alive() else "its thread has ended"

    def close(self, timeout: float = 10.0) -> None:
        """Drop the waiting work, ask the running work to stop, and join the thread."""
        with self._ready:
            self._closed = True
            dropped = [ticket for tickets in self._by_client.values() for ticket in tickets]
            self._by_client.clear()
            if self._current:
                self._current.cancelled.set()
            self._ready.notify()
        for ticket in dropped:
            ticket.cancelled.set()
            self._call(ticket.on_dropped)
        self._thread.join(timeout)

    def _drop(self, ticket: Ticket) -> bool:
        with self._ready:
            waiting = self._by_client.get(ticket.client, ())
            if ticket not in waiting:
                return False
            waiting.remove(ticket)
            if not waiting:
                del self._by_client[ticket.client]
        self._call(ticket.on_dropped)
        return True

    def _run(self) -> None:
        lower_priority(self.name)
        while (ticket := self._next()) is not None:
            started = time.monotonic()
            self.heartbeat.beat("working")
            self._call(lambda: self._on_begin(started - ticket.since))  # noqa: B023
            self._call(lambda: ticket.work(ticket))  # noqa: B023
            self.idle_since = time.monotonic()
            self._seconds += 0.2 * (self.idle_since - started - self._seconds)
            self._current = None

    def _call(self, work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            log.exception("Work on %s failed", self.name)
            if not isinstance(error, Exception):
                self._on_panic()

    def _next(self) -> Ticket | None:
        with self._ready:
            while not (self._closed or self._by_client):
                self.heartbeat.beat("idle", IDLE_LIMIT)
                self._ready.wait(IDLE_BEAT)
            if self._closed:
                return None
            client, waiting = next(iter(self._by_client.items()))
            self._current = waiting.popleft()
            self._by_client.move_to_end(client) if waiting else self._by_client.pop(client)
            return self._current

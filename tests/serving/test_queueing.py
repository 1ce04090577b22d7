"""The device's queue: one at a time, clients in turn, bounded, and closed without leaving work behind."""

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from serving.queueing import LONGEST_RETRY, TYPICAL_SECONDS, UPKEEP, Busy, DeviceQueue, Ticket
from speculoos.cpu_load import NICE
from tests.serving.conftest import until


class BlockedQueue:
    """A queue whose thread is blocked by a first ticket until `release`."""

    def __init__(self, max_per_client: int = 64, max_waiting: int = 256):
        self.queue = DeviceQueue("test", max_per_client, max_waiting)
        self.gate = threading.Event()
        self.order: list[str] = []
        self.queue.submit("first", lambda _: self.gate.wait(10))
        until(lambda: self.queue.busy)

    def add(self, client: str, name: str) -> Ticket:
        return self.queue.submit(client, lambda _: self.order.append(name), lambda: self.order.append(f"-{name}"))

    def release(self) -> None:
        self.gate.set()
        until(lambda: not self.queue.busy and not self.queue.waiting)


@pytest.fixture
def blocked() -> Iterator[BlockedQueue]:
    queue = BlockedQueue()
    yield queue
    queue.gate.set()
    queue.queue.close()


def test_clients_take_turns_and_each_keeps_its_order(blocked: BlockedQueue) -> None:
    for name in ("a1", "a2", "a3", "a4"):
        blocked.add("api", name)
    for name in ("c1", "c2"):
        blocked.add("chat", name)
    blocked.release()
    assert blocked.order == ["a1", "c1", "a2", "c2", "a3", "a4"]


def test_work_never_overlaps() -> None:
    queue, inside, counts = DeviceQueue("test"), [], []

    def work(_: Ticket) -> None:
        inside.append(1)
        counts.append(len(inside))
        threading.Event().wait(0.002)
        inside.pop()

    for number in range(30):
        queue.submit(f"client {number % 3}", work)
    until(lambda: len(counts) == 30)
    queue.close()
    assert max(counts) == 1


def test_a_client_with_sixty_waiting_delays_another_by_one(blocked: BlockedQueue) -> None:
    for number in range(60):
        blocked.add("greedy", f"g{number}")
    blocked.add("modest", "m")
    blocked.release()
    assert blocked.order.index("m") <= 1


def test_a_client_with_too_many_requests_is_refused_with_a_time_to_retry(blocked: BlockedQueue) -> None:
    full = BlockedQueue(max_per_client=2)
    full.add("api", "1")
    full.add("api", "2")
    with pytest.raises(Busy) as busy:
        full.add("api", "3")
    assert busy.value.retry_after >= 1
    full.add("chat", "another client has room")
    full.release()
    full.queue.close()


def test_all_clients_together_are_bounded_too(blocked: BlockedQueue) -> None:
    full = BlockedQueue(max_per_client=2, max_waiting=3)
    for client in ("a", "b", "c"):
        full.add(client, client)
    with pytest.raises(Busy, match="its queue is full"):
        full.add("d", "d")
    full.queue.submit(UPKEEP, lambda _: full.order.append("upkeep"))  # the server's own work always has room
    full.release()
    assert "upkeep" in full.order
    full.queue.close()


def test_retry_after_grows_with_the_queue_up_to_a_limit(blocked: BlockedQueue) -> None:
    full = BlockedQueue(max_per_client=3)
    for client in ("a", "b"):
        for _ in range(3):
            full.add(client, client)
    with pytest.raises(Busy, match="the limit of waiting requests") as busy:
        full.add("a", "a")
    assert busy.value.retry_after == round(3 * 2 * TYPICAL_SECONDS)
    full.queue._seconds = 1000
    with pytest.raises(Busy) as busy:
        full.add("a", "a")
    assert busy.value.retry_after == LONGEST_RETRY
    full.release()
    full.queue.close()


def test_cancelled_work_is_dropped_at_once_and_its_place_is_free(blocked: BlockedQueue) -> None:
    cancelled = [blocked.add("api", "gone") for _ in range(3)]
    assert blocked.queue.waiting == 3 and blocked.queue.waiting_clients == 1
    assert [ticket.cancel() for ticket in cancelled] == [True] * 3
    assert blocked.queue.waiting == blocked.queue.waiting_clients == 0 and blocked.order == ["-gone"] * 3
    assert cancelled[0].cancel() is False, "it is dropped once"
    blocked.add("api", "done")
    blocked.release()
    assert blocked.order == ["-gone"] * 3 + ["done"]


def test_running_work_is_told_to_stop(blocked: BlockedQueue) -> None:
    seen: list[bool] = []
    ticket = blocked.queue.submit("api", lambda running: seen.append(running.cancelled.wait(20)))
    blocked.gate.set()
    until(lambda: blocked.queue._current is ticket)
    assert ticket.cancel() is False
    until(lambda: seen == [True])


class Panic(BaseException):
    pass


def test_a_panic_does_not_stop_the_queue_and_is_counted() -> None:
    panics: list[int] = []
    queue, done = DeviceQueue("test", on_panic=lambda: panics.append(1)), threading.Event()

    def panic(_: Ticket) -> None:
        raise Panic

    queue.submit("a", panic)
    dropped = queue.submit("b", lambda _: None, lambda: panic(None))
    dropped.cancel()
    queue.submit("a", lambda _: done.set())
    assert done.wait(20)
    until(lambda: len(panics) >= 1)
    assert not queue.failure
    queue.close()


def test_work_for_a_closed_queue_is_dropped(blocked: BlockedQueue) -> None:
    blocked.gate.set()
    blocked.queue.close()
    blocked.add("api", "late")
    assert blocked.order == ["-late"] and not blocked.queue.failure


def test_work_that_fails_does_not_stop_the_queue(blocked: BlockedQueue) -> None:
    blocked.queue.submit("api", lambda _: 1 / 0)
    blocked.add("api", "after")
    blocked.release()
    assert blocked.order == ["after"]


def test_closing_cancels_what_runs_and_drops_what_waits() -> None:
    queue, seen = DeviceQueue("test"), []

    def work(ticket: Ticket) -> None:
        ticket.cancelled.wait(10)
        seen.append("stopped")

    queue.submit("api", work)
    until(lambda: queue.busy)
    queue.submit("api", lambda _: seen.append("done"), lambda: seen.append("dropped"))
    queue.close()
    assert sorted(seen) == ["dropped", "stopped"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a priority is the process's, not a thread's")
def test_the_queue_of_a_cpu_has_a_lower_priority() -> None:
    priorities: dict[str, int] = {}

    def record_priority(name: str) -> None:
        queue = DeviceQueue(name)
        ticket = queue.submit("a", lambda _: priorities.update({name: os.getpriority(os.PRIO_PROCESS, 0)}))
        until(lambda: name in priorities)
        assert not ticket.cancelled.is_set()
        queue.close()

    usual = os.getpriority(os.PRIO_PROCESS, 0)
    record_priority("cpu")
    record_priority("cuda:0")
    assert priorities == {"cpu": min(usual + NICE, 19), "cuda:0": usual} and os.getpriority(os.PRIO_PROCESS, 0) == usual

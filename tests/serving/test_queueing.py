"""The device's queue: one at a time, clients in turn, bounded, and closed without leaving work behind."""

import os
import sys
import threading
from collections.abc import Iterator

import pytest

from serving.queueing import LONGEST_RETRY, TYPICAL_SECONDS, UPKEEP, Busy, DeviceQueue, Ticket
from speculoos.other_work import NICE
from tests.serving.conftest import until


class Held:
    """A queue whose thread is held by a first ticket until `release`."""

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
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.gate.set()
    made.queue.close()


def test_clients_take_turns_and_each_keeps_its_order(held: Held) -> None:
    for name in ("a1", "a2", "a3", "a4"):
        held.add("api", name)
    for name in ("c1", "c2"):
        held.add("chat", name)
    held.release()
    assert held.order == ["a1", "c1", "a2", "c2", "a3", "a4"]


def test_work_never_overlaps() -> None:
    queue, inside, most = DeviceQueue("test"), [], []

    def work(_: Ticket) -> None:
        inside.append(1)
        most.append(len(inside))
        threading.Event().wait(0.002)
        inside.pop()

    for number in range(30):
        queue.submit(f"client {number % 3}", work)
    until(lambda: len(most) == 30)
    queue.close()
    assert max(most) == 1


def test_a_client_with_sixty_waiting_delays_another_by_one(held: Held) -> None:
    for number in range(60):
        held.add("greedy", f"g{number}")
    held.add("modest", "m")
    held.release()
    assert held.order.index("m") <= 1


def test_a_client_with_too_many_requests_is_told_busy_and_says_when_to_come_back(held: Held) -> None:
    full = Held(max_per_client=2)
    full.add("api", "1")
    full.add("api", "2")
    with pytest.raises(Busy) as busy:
        full.add("api", "3")
    assert busy.value.retry_after >= 1
    full.add("chat", "another client has room")
    full.release()
    full.queue.close()


def test_all_clients_together_are_bounded_too(held: Held) -> None:
    full = Held(max_per_client=2, max_waiting=3)
    for client in ("a", "b", "c"):
        full.add(client, client)
    with pytest.raises(Busy, match="its queue is full"):
        full.add("d", "d")
    full.queue.submit(UPKEEP, lambda _: full.order.append("upkeep"))  # the server's own work always has room
    full.release()
    assert "upkeep" in full.order
    full.queue.close()


def test_retry_after_grows_with_what_is_ahead_and_stays_sensible(held: Held) -> None:
    full = Held(max_per_client=3)
    for client in ("a", "b"):
        for _ in range(3):
            full.add(client, client)
    with pytest.raises(Busy, match="as many of your requests") as busy:
        full.add("a", "a")
    assert busy.value.retry_after == round(3 * 2 * TYPICAL_SECONDS)
    full.queue._seconds = 1000
    with pytest.raises(Busy) as busy:
        full.add("a", "a")
    assert busy.value.retry_after == LONGEST_RETRY
    full.release()
    full.queue.close()


def test_cancelled_work_is_dropped_at_once_and_its_place_is_free(held: Held) -> None:
    gone = [held.add("api", "gone") for _ in range(3)]
    assert held.queue.waiting == 3 and held.queue.waiting_clients == 1
    assert [ticket.cancel() for ticket in gone] == [True] * 3
    assert held.queue.waiting == held.queue.waiting_clients == 0 and held.order == ["-gone"] * 3
    assert gone[0].cancel() is False, "it is dropped once"
    held.add("api", "done")
    held.release()
    assert held.order == ["-gone"] * 3 + ["done"]


def test_work_that_has_begun_is_asked_to_stop(held: Held) -> None:
    seen: list[bool] = []
    ticket = held.queue.submit("api", lambda own: seen.append(own.cancelled.wait(20)))
    held.gate.set()
    until(lambda: held.queue._current is ticket)
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


def test_work_given_to_a_closed_queue_is_dropped(held: Held) -> None:
    held.gate.set()
    held.queue.close()
    held.add("api", "late")
    assert held.order == ["-late"] and not held.queue.failure


def test_work_that_fails_does_not_stop_the_queue(held: Held) -> None:
    held.queue.submit("api", lambda _: 1 / 0)
    held.add("api", "after")
    held.release()
    assert held.order == ["after"]


def test_closing_cancels_what_runs_and_drops_what_waits() -> None:
    queue, seen = DeviceQueue("test"), []

    def work(ticket: Ticket) -> None:
        ticket.cancelled.wait(10)
        seen.append("stopped")

    queue.submit("api", work)
    until(lambda: queue.busy)
    queue.submit("api", lambda _: seen.append("done"), lambda: seen.append("dropped"))
    queue.close()
    assert seen == ["dropped", "stopped"]


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere a priority is the process's, not a thread's")
def test_a_processor_that_computes_comes_after_the_pages() -> None:
    seen: dict[str, int] = {}

    def look(name: str) -> None:
        queue = DeviceQueue(name)
        ticket = queue.submit("a", lambda _: seen.update({name: os.getpriority(os.PRIO_PROCESS, 0)}))
        until(lambda: name in seen)
        assert not ticket.cancelled.is_set()
        queue.close()

    own = os.getpriority(os.PRIO_PROCESS, 0)
    look("cpu")
    look("cuda:0")
    assert seen == {"cpu": min(own + NICE, 19), "cuda:0": own} and os.getpriority(os.PRIO_PROCESS, 0) == own

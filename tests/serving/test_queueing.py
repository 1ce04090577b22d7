"""The device's queue: one at a time, lanes in turn, bounded, and closed without leaving work behind."""

import threading
from collections.abc import Iterator

import pytest

from serving.queueing import Busy, DeviceQueue, Ticket
from tests.serving.conftest import until


class Held:
    """A queue whose thread is held by a first ticket until `release`."""

    def __init__(self, depth: int = 64):
        self.queue = DeviceQueue("test", depth)
        self.gate = threading.Event()
        self.order: list[str] = []
        self.queue.submit("first", lambda _: self.gate.wait(10))
        until(lambda: self.queue.busy)

    def add(self, lane: str, name: str) -> Ticket:
        return self.queue.submit(lane, lambda _: self.order.append(name), lambda: self.order.append(f"-{name}"))

    def release(self) -> None:
        self.gate.set()
        until(lambda: not self.queue.busy and not self.queue.waiting)


@pytest.fixture
def held() -> Iterator[Held]:
    made = Held()
    yield made
    made.gate.set()
    made.queue.close()


def test_lanes_take_turns_and_each_keeps_its_order(held: Held) -> None:
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
        queue.submit(f"lane {number % 3}", work)
    until(lambda: len(most) == 30)
    queue.close()
    assert max(most) == 1


def test_a_full_lane_is_busy_and_says_when_to_come_back(held: Held) -> None:
    full = Held(depth=2)
    full.add("api", "1")
    full.add("api", "2")
    with pytest.raises(Busy) as busy:
        full.add("api", "3")
    assert busy.value.retry_after >= 1
    full.add("chat", "another lane has room")
    full.release()
    full.queue.close()


def test_cancelled_work_is_dropped_not_done(held: Held) -> None:
    held.add("api", "gone").cancel()
    held.add("api", "done")
    held.release()
    assert held.order == ["-gone", "done"]


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

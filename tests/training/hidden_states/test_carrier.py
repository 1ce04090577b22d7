"""The prefetcher limits its requests ahead and retries; no network is used."""

import threading
import time
from types import SimpleNamespace

import pytest
import torch

from speculoos.errors import BadInput
from tests.tools.running import wait_for
from tests.training.hidden_states.conftest import Notebook
from training.batches import Batch
from training.hidden_states.client import TemporarilyUnavailable
from training.hidden_states.prefetcher import FeatureSource, ServerWaitMonitor, ThreadedPrefetcher
from training.hidden_states.wire import HiddenStates, StatesRequest
from training.method import RequiredStates

BASE = SimpleNamespace(dtype=torch.float32)


class Slow:
    """A client whose responses wait for `open`; it records the requests."""

    workers = 4

    def __init__(self) -> None:
        self.open, self.requested, self.failures = threading.Event(), [], 0

    def states(self, request: StatesRequest) -> HiddenStates:
        self.requested.append(request.rows[0][0].item())
        if self.failures:
            self.failures -= 1
            raise TemporarilyUnavailable("it cannot be reached")
        self.open.wait(20)
        return HiddenStates(torch.ones(request.tokens, 4) * request.rows[0][0], torch.empty(request.tokens, 0))

    def close(self) -> None:
        pass


class Plain:
    """A method that reads the head's input at every position."""

    def required_states(self, batch: Batch) -> RequiredStates:
        return RequiredStates()

    def features(self, batch: Batch, states: tuple) -> dict[str, torch.Tensor]:
        return {"hidden": states[0]}


def batch(index: int) -> Batch:
    ids = torch.full((2, 3), index)
    return Batch(ids, torch.ones_like(ids, dtype=torch.bool), torch.tensor([3, 2]), index)


def test_no_more_than_the_set_number_is_requested_ahead() -> None:
    client, notes = Slow(), Notebook()
    carrier = ThreadedPrefetcher(client, ServerWaitMonitor(notes, "here"))
    source = FeatureSource(Plain(), BASE, carrier, prefetch_batches=2)
    results: list[torch.Tensor] = []
    thread = threading.Thread(
        target=lambda: results.append(source.features(batch(0), (batch(i) for i in range(1, 100)))["hidden"])
    )
    thread.start()
    wait_for(lambda: len(client.requested) >= 3, "three requests", seconds=60, every=0.01)
    time.sleep(0.2)  # a fourth one would arrive
    assert sorted(client.requested) == [0, 1, 2]
    client.open.set()
    thread.join()
    assert results[0].tolist()[1] == [[0.0] * 4] * 3
    source.features(batch(1), (batch(i) for i in range(2, 100)))
    wait_for(lambda: len(client.requested) >= 4, "the fourth request", seconds=60, every=0.01)
    time.sleep(0.2)
    assert sorted(client.requested) == [0, 1, 2, 3], "one was taken, so one more was asked for"
    carrier.close()


def test_positions_that_were_not_sent_are_zero() -> None:
    client = Slow()
    client.open.set()
    carrier = ThreadedPrefetcher(client, ServerWaitMonitor(Notebook(), "here"))
    hidden = FeatureSource(Plain(), BASE, carrier, prefetch_batches=0).features(batch(7))["hidden"]
    assert hidden[:, :, 0].tolist() == [[7, 7, 7], [7, 7, 0]]
    carrier.close()


def test_it_retries_and_reports_it_once() -> None:
    client, notes = Slow(), Notebook()
    client.failures, client.workers = 2, 1
    monitor = ServerWaitMonitor(notes, "here")
    monitor.progress = lambda: client.open.set() or (0, None)  # the third request waits for the report
    carrier = ThreadedPrefetcher(client, monitor)
    carrier.result(carrier.submit(StatesRequest((torch.tensor([1]),))))
    carrier.close()
    assert notes.lines[0] == "Waiting for the server of hidden states “here”: it cannot be reached."
    assert notes.lines[1] == f"The server of hidden states “here” answers again after {monitor.seconds:.0f} s."
    assert len(notes.lines) == 2 and set(notes.notes) == {notes.lines[0]}
    assert monitor.seconds > 0 and client.requested == [1, 1, 1]


def test_a_refusal_is_raised_and_not_retried() -> None:
    client = Slow()
    client.states = lambda request: (_ for _ in ()).throw(BadInput("no such layer"))
    carrier = ThreadedPrefetcher(client, ServerWaitMonitor(Notebook(), "here"))
    with pytest.raises(BadInput, match="no such layer"):
        carrier.result(carrier.submit(StatesRequest((torch.tensor([1]),))))
    carrier.close()

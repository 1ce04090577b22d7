"""Bringing hidden states while the training computes: threads that ask, ask again while a server is away, and a watch
by which the training says so and still hears a stop."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from speculoos.errors import Cancelled
from speculoos.reporting import Reporter
from training.hidden_states.client import Away, Client
from training.hidden_states.daemons import Daemons
from training.hidden_states.wire import HiddenStates, StatesRequest

LOOK = 0.2
FIRST_PAUSE, LONGEST_PAUSE = 0.5, 5.0
"""Seconds before a server that is away is asked again; each time twice as long."""


class CarrierWatch:
    """Says that a server is away, once in the log and all the time in the progress, and heeds a stop meanwhile."""

    def __init__(self, reporter: Reporter, name: str):
        self.reporter, self.name = reporter, name
        self.place: Callable[[], tuple[int, int | None]] = lambda: (0, None)
        """Steps done, and of how many."""
        self.before_stop: Callable[[], None] = lambda: None
        self.seconds = 0.0
        """Spent waiting for a server that was away."""
        self._since = 0.0

    def look(self, trouble: str) -> None:
        """Called again and again while something is waited for; `trouble` is why, "" when all is well. Raises
        Cancelled."""
        if trouble:
            self._say(f"Waiting for the server of hidden states “{self.name}”: {trouble}.")
        if self.reporter.stop_requested():
            self.before_stop()
            raise Cancelled(f"Stopped at your request while waiting for hidden states of “{self.name}”.")

    def answered(self) -> None:
        """What was waited for is here."""
        if self._since:
            passed, self._since = time.monotonic() - self._since, 0.0
            self.seconds += passed
            self.reporter.log(f"The server of hidden states “{self.name}” answers again after {passed:.0f} s.")

    def _say(self, sentence: str) -> None:
        if not self._since:
            self._since = time.monotonic()
            self.reporter.log(sentence, "warning")
        done, total = self.place()
        self.reporter.progress(done, total, "steps", sentence)


class Threaded:
    """A carrier with a few threads."""

    def __init__(self, client: Client, watch: CarrierWatch):
        self._client, self._watch = client, watch
        self._daemons = Daemons(client.workers)
        self._closed = threading.Event()
        self._trouble = ""

    def begin(self, asked: StatesRequest) -> Future:
        return self.call(lambda: self._client.states(asked))

    def call(self, task: Callable[[], Any]) -> Future:
        """Any task, in its turn, done again while it raises Away."""
        return self._daemons.call(self._patiently, task)

    def result(self, begun: Future) -> Any:
        """Waits, under the watch. Raises what the task raised, or Cancelled."""
        while not begun.done():
            if wait([begun], LOOK).not_done:
                self._watch.look(self._trouble)
        self._watch.answered()
        return begun.result()

    def close(self) -> None:
        """What waits for a server gives up."""
        self._closed.set()
        self._daemons.close()
        self._client.close()

    def _patiently(self, function: Callable[[], Any]) -> Any:
        pause = FIRST_PAUSE
        while True:
            try:
                done = function()
                self._trouble = ""
                return done
            except Away as away:
                self._trouble = str(away).rstrip(".")
            if self._closed.wait(pause):
                raise Cancelled("Stopped.")
            pause = min(2 * pause, LONGEST_PAUSE)


class Direct:
    """A carrier for a base in this process: nothing begins before it is needed."""

    def __init__(self, client: Client):
        self._client = client

    def begin(self, asked: StatesRequest) -> StatesRequest:
        return asked

    def result(self, begun: StatesRequest) -> HiddenStates:
        return self._client.states(begun)

    def close(self) -> None:
        pass

"""Prefetch hidden states on background threads while the training computes. Requests are retried while the server is
unavailable; the wait is reported and can be stopped."""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any

from speculoos.errors import Cancelled
from speculoos.reporting import Reporter
from training.hidden_states.client import DaemonPool, StatesClient, TemporarilyUnavailable
from training.hidden_states.wire import HiddenStates, StatesRequest

Compute = Callable[[StatesRequest], HiddenStates]
POLL_SECONDS = 0.2
FIRST_DELAY, MAX_DELAY = 0.5, 5.0
"""Seconds between retries while the server is unavailable; doubled after each one."""


class ServerWaitMonitor:
    """Reports that the server is unavailable (once in the log, continuously in the progress) and checks for a stop."""

    def __init__(self, reporter: Reporter, name: str):
        self.reporter, self.name = reporter, name
        self.progress: Callable[[], tuple[int, int | None]] = lambda: (0, None)
        """(steps done, total steps or None)."""
        self.before_stop: Callable[[], None] = lambda: None
        self.seconds = 0.0
        """Total time spent waiting for an unavailable server."""
        self._since = 0.0

    def poll(self, error: str) -> None:
        """Call regularly while waiting; `error` is the reason, "" when the server responds. Raises Cancelled."""
        if error:
            message = f"Waiting for the server of hidden states “{self.name}”: {error}."
            if not self._since:
                self._since = time.monotonic()
                self.reporter.log(message, "warning")
            self.reporter.progress(*self.progress(), "steps", message)
        if self.reporter.stop_requested():
            self.before_stop()
            raise Cancelled(f"Stopped at your request while waiting for hidden states of “{self.name}”.")

    def answered(self) -> None:
        """The result has arrived: end the waiting period."""
        if self._since:
            waited, self._since = time.monotonic() - self._since, 0.0
            self.seconds += waited
            self.reporter.log(f"The server of hidden states “{self.name}” answers again after {waited:.0f} s.")


class ThreadedPrefetcher:
    def __init__(self, client: StatesClient, watch: ServerWaitMonitor, compute: Compute | None = None):
        """`compute`: replaces `client.states`."""
        self._client, self._watch, self._compute = client, watch, compute or client.states
        self._daemons = DaemonPool(client.workers)
        self._closed = threading.Event()
        self._error = ""

    def begin(self, request: StatesRequest) -> Future:
        return self.call(lambda: self._compute(request))

    def call(self, task: Callable[[], Any]) -> Future:
        """Queue a task; it is retried while it raises TemporarilyUnavailable."""
        return self._daemons.call(self._with_retries, task)

    def result(self, pending: Future) -> Any:
        """Wait for a task and report the wait. Raises what the task raised, or Cancelled."""
        while not pending.done():
            if wait([pending], POLL_SECONDS).not_done:
                self._watch.poll(self._error)
        self._watch.answered()
        return pending.result()

    def close(self) -> None:
        """Stop retrying, end the threads and close the client."""
        self._closed.set()
        self._daemons.close()
        self._client.close()

    def _with_retries(self, task: Callable[[], Any]) -> Any:
        delay = FIRST_DELAY
        while True:
            try:
                result = task()
                self._error = ""
                return result
            except TemporarilyUnavailable as error:
                self._error = str(error).rstrip(".")
            if self._closed.wait(delay):
                raise Cancelled("Stopped.")
            delay = min(2 * delay, MAX_DELAY)


class LocalPrefetcher:
    """Prefetcher for a base model in this process: computes only when the result is needed."""

    def __init__(self, compute: Compute):
        self.result = compute

    def begin(self, request: StatesRequest) -> StatesRequest:
        return request

    def close(self) -> None:
        pass


StatesPrefetcher = ThreadedPrefetcher | LocalPrefetcher

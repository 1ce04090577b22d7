"""Features of batches whose hidden states come from a server or from disk, requested in advance on background threads,
so that base and draft run in parallel with bounded memory. Requests are retried while the server is unavailable; the
wait is reported and can be stopped.
"""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from models.head_only import HeadOnlyBase
from models.methods.settings import FROM_STORE, TrainConfig
from speculoos.errors import BadInput, Cancelled, NotFound
from speculoos.reporting import Reporter
from speculoos.settings import HiddenStatesServer
from training.batches import Batch, TokenizedConversation
from training.hidden_states.client import DaemonPool, ReferenceClient, StatesClient, TemporarilyUnavailable, VllmClient
from training.hidden_states.states_store import StatesStore
from training.hidden_states.wire import HiddenStates, StatesRequest, compute_states
from training.method import PaddedStates, RequiredStates

Compute = Callable[[StatesRequest], HiddenStates]
POLL_SECONDS = 0.2
FIRST_DELAY, MAX_DELAY = 0.5, 5.0  # seconds between retries while the server is unavailable; doubled after each one

NO_STATES: PaddedStates = (torch.empty(0), ())
"""Passed to a method that needs no hidden states of a batch."""


class ServerWaitMonitor:
    """Reports that the server is unavailable (once in the log, continuously in the progress) and checks for a stop."""

    def __init__(self, reporter: Reporter, name: str):
        self.reporter, self.name = reporter, name
        self.progress: Callable[[], tuple[int, int | None]] = lambda: (0, None)  # (steps done, total steps or None)
        self.before_stop: Callable[[], None] = lambda: None
        self.seconds = 0.0  # total time spent waiting for an unavailable server
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
    def __init__(self, client: StatesClient, wait_monitor: ServerWaitMonitor, compute: Compute | None = None):
        """`compute`: replaces `client.states`."""
        self._client, self._wait_monitor, self._compute = client, wait_monitor, compute or client.states
        self._pool = DaemonPool(client.workers)
        self._closed = threading.Event()
        self._error = ""

    def submit(self, request: StatesRequest) -> Future:
        return self.submit_task(lambda: self._compute(request))

    def submit_task(self, task: Callable[[], Any]) -> Future:
        """Queue a task; it is retried while it raises TemporarilyUnavailable."""
        return self._pool.submit(self._with_retries, task)

    def result(self, pending: Future) -> Any:
        """Wait for a task and report the wait. Raises what the task raised, or Cancelled."""
        while not pending.done():
            if wait([pending], POLL_SECONDS).not_done:
                self._wait_monitor.poll(self._error)
        self._wait_monitor.answered()
        return pending.result()

    def close(self) -> None:
        """Stop retrying, end the threads and close the client."""
        self._closed.set()
        self._pool.close()
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

    def submit(self, request: StatesRequest) -> StatesRequest:
        return request

    def close(self) -> None:
        pass


StatesPrefetcher = ThreadedPrefetcher | LocalPrefetcher


class FeatureSource:
    """Features of batches. With a prefetcher, hidden states are requested `prefetch_batches` batches ahead; without
    one, the base model runs in the method's own forward."""

    def __init__(self, method: Any, base: Any, prefetcher: StatesPrefetcher | None, prefetch_batches: int):
        self._method, self.base, self._prefetcher, self._prefetch_batches = method, base, prefetcher, prefetch_batches
        self._prefetched: dict[int, tuple[RequiredStates, Any]] = {}

    def features(self, batch: Batch, upcoming: Iterable[Batch] = ()) -> dict[str, Tensor]:
        """Features of `batch`; `upcoming` are the next batches, in order."""
        if self._prefetcher is None or not hasattr(self._method, "required_states"):  # it calls base.forward_hidden
            return self._method.features(batch)
        submitted = self._prefetched.pop(batch.index, None) or self._submit(batch)
        self._prefetch(upcoming, batch.index)
        if submitted is None:
            return self._method.features(batch, NO_STATES)
        required, pending = submitted
        return self._method.features(batch, pad_states(self._prefetcher.result(pending), batch, required, self.base))

    def _prefetch(self, upcoming: Iterable[Batch], current: int) -> None:
        for batch in upcoming if len(self._prefetched) < self._prefetch_batches else ():
            if batch.index not in (current, *self._prefetched) and (submitted := self._submit(batch)):
                self._prefetched[batch.index] = submitted
            if len(self._prefetched) >= self._prefetch_batches:
                return

    def _submit(self, batch: Batch) -> tuple[RequiredStates, Any] | None:
        """None when the method needs no hidden states."""
        required = self._method.required_states(batch)
        return required and (required, self._prefetcher.submit(make_states_request(batch, required)))


@dataclass(frozen=True)
class StatesLocation:
    """The server and the folder that the settings `hidden_states` and `hidden_states_store` refer to."""

    server: HiddenStatesServer | None = None
    folder: Path | None = None


class StoreOnly(StatesClient):
    """In place of a server when all hidden states are read from the store."""

    def states(self, request: StatesRequest) -> HiddenStates:
        raise NotFound(
            f"The store lacks the hidden states of {len(request.rows)} conversations that this training reads.",
            "Train once with a server and this store, or name a server in hidden_states.",
        )


def connect_prefetcher(
    config: TrainConfig,
    location: StatesLocation | None,
    base: Any,
    sha256: str,
    conversations: Sequence[TokenizedConversation],
    wait_monitor: ServerWaitMonitor,
) -> StatesPrefetcher | None:
    """Connect and check the source of hidden states, waiting for an unavailable server, and register it with a base
    without layers. None when the base runs in this process and no store is used. Raises BadInput for another base,
    Cancelled."""
    if not (config.hidden_states or config.hidden_states_store):
        return None
    location = location or StatesLocation()
    server, client = location.server, None
    if isinstance(base, HeadOnlyBase) and config.hidden_states == FROM_STORE:
        client = StoreOnly()
    elif isinstance(base, HeadOnlyBase):
        if server is None:
            raise BadInput(f"hidden_states: there is no server named “{config.hidden_states}” in settings.toml.")
        client = VllmClient(server, base) if server.kind == "vllm" else ReferenceClient(server, base, sha256)
    compute = client.states if client else partial(compute_states, base)
    if config.hidden_states_store:
        if location.folder is None:
            raise BadInput("hidden_states_store: it has no folder.")
        store = StatesStore(location.folder, sha256, base.dtype, base.hidden_size)
        compute = partial(store.read_through, compute)
        wait_monitor.reporter.log(f"Hidden states are stored in {location.folder}.")
    if client is None:
        return LocalPrefetcher(compute)
    prefetcher = ThreadedPrefetcher(client, wait_monitor, compute)
    rows = [conversation.token_ids for conversation in conversations]
    if message := prefetcher.result(prefetcher.submit_task(lambda: client.check(rows))):
        wait_monitor.reporter.log(message)

    def compute_hidden(input_ids: Tensor, lengths: Tensor | None, layers: Sequence[int]) -> PaddedStates:
        """Hidden states of whole rows."""
        if lengths is None:
            lengths = torch.full((len(input_ids),), input_ids.shape[1], device=input_ids.device)
        batch = Batch(input_ids, torch.ones_like(input_ids, dtype=torch.bool), lengths)
        required = RequiredStates(tuple(layers))
        states = prefetcher.result(prefetcher.submit(make_states_request(batch, required)))
        hidden, aux = pad_states(states, batch, required, base)
        return hidden, tuple(aux[0].split(base.hidden_size, -1)) if aux else ()

    base.compute_hidden = compute_hidden
    return prefetcher


def make_states_request(batch: Batch, required: RequiredStates) -> StatesRequest:
    """The request for a batch, without padding."""
    lengths = batch.lengths.tolist()
    rows = tuple(row[:length].int().cpu() for row, length in zip(batch.input_ids, lengths, strict=True))
    if required.positions is None:
        return StatesRequest(rows, required.layers)
    positions = (row[:n].nonzero()[:, 0].int().cpu() for row, n in zip(required.positions, lengths, strict=True))
    return StatesRequest(rows, required.layers, tuple(positions))


def pad_states(states: HiddenStates, batch: Batch, required: RequiredStates, base: Any) -> PaddedStates:
    """The response as padded tensors [B, L, …] in the base's dtype; unrequested positions are zero and never read."""
    token_mask = torch.arange(batch.input_ids.shape[1], device=batch.lengths.device) < batch.lengths[:, None]
    mask = token_mask if required.positions is None else token_mask & required.positions
    return _scatter(states.hidden, mask, base), (_scatter(states.aux, token_mask, base),) if required.layers else ()


def _scatter(values: Tensor, mask: Tensor, base: Any) -> Tensor:
    """Scatter `values` [n, …] to the n True positions of `mask` [B, L], in row-major order."""
    padded = torch.zeros(*mask.shape, values.shape[-1], dtype=base.dtype, device=mask.device)
    padded[mask] = values.to(mask.device, base.dtype)
    return padded

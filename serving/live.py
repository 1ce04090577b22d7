"""Live runs: rows that the web made are generated here, detached from any request, and stored step by step.

A run goes on when its page closes. Runs of one comparison are made one after the other, in the order of their dates.
"""

import logging
import queue
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from serving.catalog import local_model
from serving.engine import Engine, GenerationResult
from serving.errors import as_api_error
from serving.protocol import ChatRequest
from serving.queueing import Ticket
from speculoos.errors import Conflict, SpeculoosError
from speculoos.settings import Settings
from tracking import chats, runs
from tracking.db import reading, writing
from tracking.tables import Run, now

log = logging.getLogger(__name__)
BATCH_SECONDS = 0.05
FETCH_SECONDS = 4 * 3600.0
"""A model that only the store has comes here once; large ones over slow lines take their time."""
PAGES = "pages"
STOPPED = "The inference server was stopped while this run was going on; send it again."


class LiveRuns:
    """Starts and cancels runs by id. Remembers only those that wait or go on here."""

    def __init__(self, settings: Settings, engine: Engine):
        self.settings, self.engine = settings, engine
        self._since = now()
        self._tickets: dict[str, Ticket] = {}
        self._unmarked: dict[str, BaseException] = {}
        self._lock = threading.RLock()

    def start(self, run_id: str) -> list[str]:
        """Queue a run, or all QUEUED columns of its comparison; returns the ids queued now (none when all were).

        Raises NotFound, Conflict when it has ended, Busy when too much waits.
        """
        with reading(self.settings) as db:
            run = runs.get_run(db, run_id)
            if run.state in runs.ENDED:
                raise Conflict(f"Run {run_id} has ended ({run.state}); make a new one.")
            compare = run.kind == "compare" and run.group_id
            together = runs.group_runs(db, run.group_id) if compare else [run]
        together = sorted(together, key=lambda r: r.created_at)
        return [r.id for r in together if r.state == "QUEUED" and self._submit(r)]

    def cancel(self, run_id: str) -> bool:
        """Stop a run between two steps, or before it starts. False when it had ended already. Raises NotFound."""
        with self._lock:
            ticket = self._tickets.get(run_id)
            if ticket:
                ticket.cancelled.set()  # under the lock: it may be about to move from the prompts to the device
        if ticket and ticket.cancel():
            return True
        with writing(self.settings) as db:
            run = runs.get_run(db, run_id)
            if run.state == "QUEUED" or (run.state == "RUNNING" and ticket is None):
                return runs.cancel_run(db, run_id)
            return run.state not in runs.ENDED

    def fail_forgotten(self) -> None:
        """End runs that were posted to an earlier server just before it was killed: they wait, but not here. And those
        whose end could not be written when it came."""
        for run_id, error in list(self._unmarked.items()):
            self._mark(run_id, error)
            del self._unmarked[run_id]
        with reading(self.settings) as db:
            waiting = runs.queued_before(db, min(self._since, now() - runs.POSTED_WITHIN))
        with self._lock:
            forgotten = [run_id for run_id in waiting if run_id not in self._tickets]
        for run_id in forgotten:
            with writing(self.settings) as db:
                runs.fail_run(db, run_id, runs.LEFT_OVER)

    def _submit(self, run: Run) -> bool:
        with self._lock:
            if run.id in self._tickets:
                return False
            lane = _lane(run)
            self.engine.queue.check_room(lane)
            self._tickets[run.id] = self.engine.prompts.queue.submit(
                lane, lambda ticket: self._prepare(run, ticket), lambda: self._drop(run)
            )
        return True

    def _prepare(self, run: Run, ticket: Ticket) -> None:
        """On the prompts' thread: find the model, render the conversation, wait for the device."""
        with self._marking(run):
            with reading(self.settings) as db:
                if runs.get_run(db, run.id).state != "QUEUED":
                    self._forget(run)
                    return
                written = chats.written(db, run)
            request = parse_request(run)
            with self.engine.prompts.queue.heart.during("fetching a model from the store", FETCH_SECONDS):
                ref = local_model(self.settings, run.model)
            prompt_ids = self.engine.prompts.render(ref, request.chat())
            compared = run.id if run.kind == "compare" else ""
            make_answer = partial(self.engine.answer, ref, request, prompt_ids, written=written, compared=compared)
            self._move_on(run, ticket, lambda moved: self._do(run, make_answer, moved))

    @contextmanager
    def _marking(self, run: Run) -> Iterator[None]:
        """An error ends the run; one that is no Exception goes on, to the queue that counts it."""
        try:
            yield
        except BaseException as error:
            self._end(run, error)
            if not isinstance(error, Exception):
                raise

    def _move_on(self, run: Run, ticket: Ticket, work: Callable[[Ticket], None]) -> None:
        """From the prompts' queue to the device's, unless it was cancelled meanwhile."""
        with self._lock:
            if not ticket.cancelled.is_set():
                self._tickets[run.id] = self.engine.queue.submit(_lane(run), work, lambda: self._drop(run))
                return
        self._drop(run)

    def _drop(self, run: Run) -> None:
        """It was cancelled, or the server stops, before it began."""
        self._forget(run)
        with writing(self.settings) as db:
            runs.fail_run(db, run.id, STOPPED) if self.engine.closing else runs.cancel_run(db, run.id)

    def _do(self, run: Run, make_answer: Callable[..., GenerationResult], ticket: Ticket) -> None:
        """On the device's thread."""
        with self._marking(run):
            with writing(self.settings) as db:
                started = runs.start_run(db, run.id)
            if started:
                self._generate(run, make_answer, ticket)
        self._forget(run)

    def _generate(self, run: Run, make_answer: Callable[..., GenerationResult], ticket: Ticket) -> None:
        writer = RunWriter(self.settings, run.id)
        try:
            answer = make_answer(on_step=writer.step, cancelled=ticket.cancelled)
        finally:
            writer.close()
        with writing(self.settings) as db:
            if answer.finish != "cancelled":
                runs.finish_run(db, run.id, answer.text, answer.summary)
            elif self.engine.closing:
                runs.fail_run(db, run.id, STOPPED)
            else:
                runs.cancel_run(db, run.id, answer.text, answer.summary)

    def _end(self, run: Run, error: BaseException) -> None:
        """Mark a run whose making ended in `error`; where the database is away, later."""
        self._forget(run)
        try:
            self._mark(run.id, error)
        except SpeculoosError as away:
            log.warning("Run %s cannot be marked now: %s", run.id, away)
            self._unmarked[run.id] = error

    def _mark(self, run_id: str, error: BaseException) -> None:
        with writing(self.settings) as db:
            runs.fail_run(db, run_id, str(as_api_error(error)))

    def _forget(self, run: Run) -> None:
        with self._lock:
            self._tickets.pop(run.id, None)


def _lane(run: Run) -> str:
    """Each chat and each comparison of the pages takes turns with the others and with the clients of the API."""
    return f"{PAGES}:{run.group_id or run.id}"


def parse_request(run: Run) -> ChatRequest:
    """The stored request of a run, checked like one that came over HTTP. Raises pydantic's ValidationError."""
    asked = {name: value for name, value in run.request.items() if name != chats.KEY}
    return ChatRequest(**{**asked, "model": run.model})


class RunWriter:
    """Stores records from a thread of its own, so that no commit stands between two steps.

    The first record is written at once, later ones together, at most BATCH_SECONDS apart.
    """

    def __init__(self, settings: Settings, run_id: str):
        self._settings, self._run_id = settings, run_id
        self._records: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"run-{run_id[:8]}", daemon=True)
        self._thread.start()

    def step(self, record: dict[str, Any]) -> None:
        """Keep one record. Raises what storing an earlier one raised."""
        if self._error:
            raise self._error
        self._records.put(record)

    def close(self) -> None:
        """Write what is left. Raises what storing raised."""
        self._records.put(None)
        self._thread.join()
        if self._error:
            raise self._error

    def _run(self) -> None:
        going_on = True
        while going_on:
            batch = self._batch()
            going_on = batch[-1] is not None
            try:
                with writing(self._settings) as db:
                    runs.add_steps(db, self._run_id, [record for record in batch if record is not None])
            except BaseException as error:  # the thread that makes the steps hears of it at its next one
                self._error = error
                return
            if going_on:
                time.sleep(BATCH_SECONDS)

    def _batch(self) -> list[dict[str, Any] | None]:
        """At least one record; None at the end means that no more will come."""
        batch = [self._records.get()]
        while batch[-1] is not None and not self._records.empty():
            batch.append(self._records.get())
        return batch

"""Live runs: rows created by the web app are generated independently of any request and stored step by step.

A run continues when its page is closed. The runs of one comparison are generated one by one, ordered by created_at.
Responses of servers (model `@endpoint`) need no device: a thread streams each of them.
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
from serving.served import ServedResponse, ServedTicket, stream_answer
from speculoos.errors import Conflict, SpeculoosError, Unavailable
from speculoos.settings import Settings
from tracking import chats, runs
from tracking.db import reading, writing
from tracking.names import server_of
from tracking.tables import Run, now

log = logging.getLogger(__name__)
BATCH_SECONDS = 0.05
FETCH_SECONDS = 4 * 3600.0  # time limit for fetching a model from the store; large models on slow networks take long
PAGE_CLIENT = "pages"
MAX_SERVED = 64  # maximum number of chats and comparisons with servers at the same time
CLOSE_SECONDS = 5.0
STOPPED = "The inference server was stopped during this run; send it again."


class LiveRuns:
    """Starts and cancels runs by id. `_tickets` has the runs that wait or run in this server."""

    def __init__(self, settings: Settings, engine: Engine):
        self.settings, self.engine = settings, engine
        self._since = now()
        self._tickets: dict[str, Ticket | ServedTicket] = {}
        self._in_order: dict[str, threading.Thread] = {}
        self._unstored_errors: dict[str, BaseException] = {}
        self._lock = threading.Condition()  # reentrant; notified when a ticket is removed

    def start(self, run_id: str) -> list[str]:
        """Queue a run, or all QUEUED columns of its comparison; returns their ids. Raises NotFound, Conflict, Busy."""
        with reading(self.settings) as session:
            run = runs.get_run(session, run_id)
            if run.state in runs.ENDED:
                raise Conflict(f"Run {run_id} has ended ({run.state}); create a new one.")
            compare = run.kind == "compare" and run.group_id
            group = runs.group_runs(session, run.group_id) if compare else [run]
        group = sorted((r for r in group if r.state == "QUEUED"), key=lambda r: r.created_at)
        if any(server_of(r.model) for r in group):
            return self._start_in_order(group)
        return [r.id for r in group if self._submit(r)]

    def cancel(self, run_id: str) -> bool:
        """Stop a run between two steps or before it starts. False if it had ended already. Raises NotFound."""
        with self._lock:
            ticket = self._tickets.get(run_id)
            if ticket:
                ticket.cancelled.set()  # under the lock: the run may be moving from the prompt queue to the device
        if ticket and ticket.cancel():
            return True
        with writing(self.settings) as session:
            run = runs.get_run(session, run_id)
            if run.state == "QUEUED" or (run.state == "RUNNING" and ticket is None):
                return runs.cancel_run(session, run_id)
            dropped = ticket is not None and run.state == "CANCELLED"  # by the prompt queue's thread, just now
            return dropped or run.state not in runs.ENDED

    def close(self) -> None:
        """Stop the responses of servers. Call it after the engine's."""
        with self._lock:
            served = [ticket for ticket in self._tickets.values() if isinstance(ticket, ServedTicket)]
            threads = list(self._in_order.values())
        for ticket in served:
            ticket.cancel()
        for thread in threads:
            thread.join(timeout=CLOSE_SECONDS)

    def fail_orphaned(self) -> None:
        """Fail runs whose error could not be stored earlier, and QUEUED runs of an earlier server that was killed."""
        for run_id, error in list(self._unstored_errors.items()):
            self._store_error(run_id, error)
            del self._unstored_errors[run_id]
        with reading(self.settings) as session:
            waiting = runs.queued_before(session, min(self._since, now() - runs.POSTED_WITHIN))
        with self._lock:
            lost = [run_id for run_id in waiting if run_id not in self._tickets]
        for run_id in lost:
            with writing(self.settings) as session:
                runs.fail_run(session, run_id, runs.LEFT_OVER)

    def _start_in_order(self, group: list[Run]) -> list[str]:
        key = str(group[0].group_id) if group[0].kind == "compare" else group[0].id
        with self._lock:
            if key in self._in_order:
                return []
            if len(self._in_order) >= MAX_SERVED:
                raise Unavailable(f"{MAX_SERVED} responses of servers are being generated; send this again later.")
            thread = threading.Thread(target=self._run_in_order, args=(key, group), name="served", daemon=True)
            self._in_order[key] = thread
        thread.start()
        return [run.id for run in group]

    def _run_in_order(self, key: str, group: list[Run]) -> None:
        """One run after another, those of servers on this thread, so that columns of a comparison do not overlap."""
        try:
            for run in group:
                with self._fail_on_error(run):
                    if server_of(run.model):
                        self._serve(run)
                        continue
                    self._submit(run)
                    with self._lock:
                        self._lock.wait_for(lambda run=run: run.id not in self._tickets)
        finally:
            with self._lock:
                del self._in_order[key]

    def _serve(self, run: Run) -> None:
        ticket = self._tickets[run.id] = ServedTicket()
        with writing(self.settings) as session:
            started = runs.start_run(session, run.id)
        if started:
            answer, writer = ServedResponse(), RunWriter(self.settings, run.id)
            try:
                ticket.run(stream_answer(self.settings, server_of(run.model), run.request, answer, writer.step))
            finally:
                writer.close()
            self._store_served(run, answer)
        self._remove_ticket(run)

    def _store_served(self, run: Run, answer: ServedResponse) -> None:
        changed = answer.end()
        with writing(self.settings) as session:
            if changed:
                runs.replace_steps(session, run.id, answer.records)
            if answer.finish:
                runs.finish_run(session, run.id, answer.text, answer.summary())
            elif self.engine.closing:
                runs.fail_run(session, run.id, STOPPED)
            else:
                runs.cancel_run(session, run.id, answer.text, answer.summary())

    def _submit(self, run: Run) -> bool:
        with self._lock:
            if run.id in self._tickets:
                return False
            self.engine.queue.check_capacity(_queue_client(run))
            prepare, on_dropped = partial(self._prepare, run), partial(self._dropped, run)
            self._tickets[run.id] = self.engine.prompts.queue.submit(_queue_client(run), prepare, on_dropped)
        return True

    def _prepare(self, run: Run, ticket: Ticket) -> None:
        with self._fail_on_error(run):  # on the prompt queue's thread
            with reading(self.settings) as session:
                if runs.get_run(session, run.id).state != "QUEUED":
                    self._remove_ticket(run)
                    return
                prefix = chats.continued_token_ids(session, run)
            request = parse_request(run)
            with self.engine.prompts.queue.heartbeat.during("fetching a model from the store", FETCH_SECONDS):
                ref = local_model(self.settings, run.model)
            prompt_ids = self.engine.prompts.render(ref, request.chat())
            options = {"response_prefix": prefix, "comparison_run_id": run.id if run.kind == "compare" else ""}
            generate = partial(self.engine.answer, ref, request, prompt_ids, **options)
            with self._lock:
                if not ticket.cancelled.is_set():
                    work, on_dropped = partial(self._run, run, generate), partial(self._dropped, run)
                    self._tickets[run.id] = self.engine.queue.submit(_queue_client(run), work, on_dropped)
                    return
            self._dropped(run)

    def _dropped(self, run: Run) -> None:
        self._remove_ticket(run)
        with writing(self.settings) as session:
            runs.fail_run(session, run.id, STOPPED) if self.engine.closing else runs.cancel_run(session, run.id)

    def _run(self, run: Run, generate: Callable[..., GenerationResult], ticket: Ticket) -> None:
        with self._fail_on_error(run):  # on the device's thread
            with writing(self.settings) as session:
                started = runs.start_run(session, run.id)
            if started:
                self._generate(run, generate, ticket)
        self._remove_ticket(run)

    def _generate(self, run: Run, generate: Callable[..., GenerationResult], ticket: Ticket) -> None:
        writer = RunWriter(self.settings, run.id)
        try:
            result = generate(on_step=writer.step, cancelled=ticket.cancelled)
        finally:
            writer.close()
        with writing(self.settings) as session:
            if result.summary["finish"] != "cancelled":
                runs.finish_run(session, run.id, result.text, result.summary)
            elif self.engine.closing:
                runs.fail_run(session, run.id, STOPPED)
            else:
                runs.cancel_run(session, run.id, result.text, result.summary)

    @contextmanager
    def _fail_on_error(self, run: Run) -> Iterator[None]:
        """Any error fails the run; if the database is unavailable, `fail_orphaned` stores the error later."""
        try:
            yield
        except BaseException as error:
            self._remove_ticket(run)
            try:
                self._store_error(run.id, error)
            except SpeculoosError as unavailable:
                log.warning("The error of run %s cannot be stored now: %s", run.id, unavailable)
                self._unstored_errors[run.id] = error
            if not isinstance(error, Exception):  # such as a panic in Rust code, which the queue counts
                raise

    def _store_error(self, run_id: str, error: BaseException) -> None:
        with writing(self.settings) as session:
            runs.fail_run(session, run_id, str(as_api_error(error)))

    def _remove_ticket(self, run: Run) -> None:
        with self._lock:
            self._tickets.pop(run.id, None)
            self._lock.notify_all()


def _queue_client(run: Run) -> str:
    """The client of a run in the queue: its chat or comparison, which takes turns with others and with API clients."""
    return f"{PAGE_CLIENT}:{run.group_id or run.id}"


def parse_request(run: Run) -> ChatRequest:
    """The stored request of a run, validated like an HTTP request. Raises pydantic's ValidationError."""
    fields = {name: value for name, value in run.request.items() if name != chats.KEY}
    return ChatRequest(**{**fields, "model": run.model})


class RunWriter:
    """Stores step records from its own thread, so that commits do not delay decoding; after the first, in batches."""

    def __init__(self, settings: Settings, run_id: str):
        self._settings, self._run_id = settings, run_id
        self._records: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name=f"run-{run_id[:8]}", daemon=True)
        self._thread.start()

    def step(self, record: dict[str, Any]) -> None:
        """Queue one record. Reraises an error of storing an earlier one."""
        if self._error:
            raise self._error
        self._records.put(record)

    def close(self) -> None:
        """Write the remaining records. Reraises an error of storing them."""
        self._records.put(None)
        self._thread.join()
        if self._error:
            raise self._error

    def _run(self) -> None:
        more = True
        while more:
            batch = [self._records.get()]
            while batch[-1] is not None and not self._records.empty():
                batch.append(self._records.get())
            more = batch[-1] is not None
            try:
                with writing(self._settings) as session:
                    runs.add_steps(session, self._run_id, [record for record in batch if record is not None])
            except BaseException as error:  # reraised by the next call of `step` or `close`
                self._error = error
                return
            if more:
                time.sleep(BATCH_SECONDS)

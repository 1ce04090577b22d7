"""Answers to a prompt set through an OpenAI-compatible endpoint that the operator named in the settings.

Threads ask, with the client's own retries; this one writes, so every row arrives once, in any order, and rows that
still come after a stop are dropped. The key is read from the environment when the client is made and appears nowhere
else.
"""

import queue
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from corpus.closing import close
from corpus.conversations import FAILED, TEXT, Conversation, GenerateOptions, count_answers, to_answer
from corpus.endpoints import EndpointPool, plain_reason
from corpus.labels import PROMPT, WHY, ServedBase, Trail
from corpus.replies import Reply
from corpus.seeds import row_seed
from corpus.shards import ShardWriter
from corpus.telling import Telling
from speculoos.errors import BadInput, Cancelled, SpeculoosError, Unavailable
from speculoos.reporting import Reporter, check_stop
from speculoos.settings import Endpoint

FLUSH_SECONDS = 10.0
GIVE_UP_AFTER = 8
WATCH_SECONDS = 0.5
HELLO = [{"role": "user", "content": "Hello"}]
REFUSALS = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)


def generate_remote(
    endpoints: Endpoint | Sequence[Endpoint],
    model: str,
    source: str | Path,
    folder: str | Path,
    options: GenerateOptions,
    reporter: Reporter,
    served: ServedBase | None = None,
) -> dict[str, Any]:
    """Answer the prompts of data set `source` into `folder` with `model` (default each endpoint's); returns the report:

    `rows`, `tokens` (as the endpoint counts them), `seconds`, `finish`, `failed` ([{id, reason}]), `left_out` (those by
    kind), `labels` (answered rows by how their labels are known), `retries` (of rows that were answered), `complete`.
    `served` is the base behind the endpoints: token ids are then asked for and kept. Rows that failed after all retries
    are left out and tried again by the next call. Raises Unavailable when an endpoint refuses everything, Cancelled
    when the reporter says stop; what is finished is kept.
    """
    endpoints = [endpoints] if isinstance(endpoints, Endpoint) else endpoints
    if options.api == "completions" and served is None:
        raise BadInput("Plain completions need the base that the endpoint serves: its template is rendered here.")
    pool = EndpointPool(endpoints, model, reporter.log, probe=_probe(options, served))
    total = count_answers(source, options)
    with ShardWriter(folder, seconds=FLUSH_SECONDS) as shards:
        run = _RemoteRun(pool, shards, options, reporter, total, served)
        run.go(to_answer(source, options, set(shards.done)))
    report = run.report()
    sums = {"base_sha256": "", "tokenizer_sha256": ""}
    if served:
        sums = {"base_sha256": served.base_sha256, "tokenizer_sha256": served.tokenizer_sha256}
    return close(folder, options, report, source=Path(source).name, config=pool.config(), **sums)


def _probe(options: GenerateOptions, served: ServedBase | None) -> dict[str, Any] | None:
    """A request for one token, which shows how a server says token ids."""
    if served is None:
        return None
    asked: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0}
    if options.api == "completions":
        return {"prompt": served.render(HELLO), **asked}
    return {"messages": HELLO, **asked}


@dataclass
class _Row:
    """A row on its way: its token ids, what the endpoint counted, and why it failed, if it did."""

    conversation: Conversation
    trail: Trail | None = None
    tokens: int = 0
    retries: int = 0
    error: Exception | None = None

    def take(self, reply: Reply, prompt: list[int] | None) -> None:
        """The next answer of the conversation, and its ids; `prompt` is what our template makes of what was asked."""
        if self.trail is not None and prompt is not None:
            self.trail.take(prompt, reply)
        if reply.reasoning:
            self.conversation.reasoning[len(self.conversation.answers)] = reply.reasoning
        self.conversation.answers.append(reply.text)
        self.conversation.finish.append(reply.finish)
        self.tokens += reply.tokens

    def to_json(self) -> dict[str, Any]:
        """The line of a data set folder."""
        known = self.trail.to_json() if self.trail else {}
        return self.conversation.to_json(answer_tokens=self.tokens, **known)


class _Asking:
    """Threads that share the rows and put each into `ended`, answered or not; None for a thread that found no more,
    an error for one that could not read on."""

    def __init__(
        self,
        pool: EndpointPool,
        options: GenerateOptions,
        rows: Iterator[Conversation],
        served: ServedBase | None = None,
    ):
        self.pool, self.options, self.served = pool, options, served
        self.ended: queue.SimpleQueue[_Row | Exception | None] = queue.SimpleQueue()
        self.stopped = threading.Event()
        self.threads = pool.slots
        self._rows, self._lock = rows, threading.Lock()

    def start(self) -> None:
        for _ in range(self.threads):  # daemons: one that waits for an answer does not keep a stopped program
            threading.Thread(target=self._ask_on, daemon=True).start()

    def _ask_on(self) -> None:
        end: Exception | None = None
        try:
            while not self.stopped.is_set() and (row := self._next()) is not None:
                self.ended.put(self._answered(row))
        except Exception as error:  # the prompts cannot be read on
            end = error
        self.ended.put(end)

    def _next(self) -> Conversation | None:
        with self._lock:
            return next(self._rows, None)

    def _answered(self, conversation: Conversation) -> _Row:
        """All turns of one row."""
        row = _Row(conversation, Trail(self.served) if self.served else None)
        try:
            while not conversation.complete and not self.stopped.is_set():
                reply, retries, prompt = self._request(row)
                row.take(reply, prompt)
                row.retries += retries
        except Cancelled:  # asked to stop: the row is nobody's failure
            pass
        except Exception as error:
            row.error = error
        return row

    def _request(self, row: _Row) -> tuple[Reply, int, list[int] | None]:
        """(an answer, retries, the prompt's ids by our template). What has no effect is not sent: some servers refuse
        fields they do not know."""
        asked, options = row.conversation, self.options
        extra: dict[str, Any] = {"top_p": options.top_p} if options.top_p < 1 else {}
        if (temperature := options.temperature_of(asked.id)) > 0:
            extra["seed"] = row_seed(options.seed, asked.id, len(asked.answers)) & 0x7FFFFFFF
        limits = {"max_tokens": options.max_tokens, "temperature": temperature, **extra}
        if options.api == "completions" and row.trail:
            prompt = row.trail.continued(asked)
            return *self.pool.ask(self.stopped, prompt=prompt, **limits), prompt
        reply, retries = self.pool.ask(self.stopped, messages=asked.messages(), **limits)
        return reply, retries, self._rendered(row)

    def _rendered(self, row: _Row) -> list[int] | None:
        """What our template makes of a chat; None where it is not needed, or refuses."""
        if row.trail is None or row.trail.wrong:
            return None
        try:
            return row.trail.prompt(row.conversation)
        except SpeculoosError:
            row.trail.wrong = PROMPT
            return None


class _RemoteRun:
    """One call's state: what was counted and written."""

    def __init__(
        self,
        pool: EndpointPool,
        shards: ShardWriter,
        options: GenerateOptions,
        reporter: Reporter,
        total: int,
        served: ServedBase | None,
    ) -> None:
        self.pool, self.shards, self.options, self.served = pool, shards, options, served
        self.reporter, self.total = reporter, total
        self.labels, self.finish = Counter[str](), Counter[str]()
        self.tokens = self.retries = self.failed_in_a_row = 0
        self.telling = Telling(reporter, shards.folder)
        self.started, self.complete = time.monotonic(), True

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def go(self, rows: Iterator[Conversation]) -> None:
        """Write rows as they end, until the threads find no more, the time is over or someone asks to stop."""
        asking = _Asking(self.pool, self.options, rows, self.served)
        asking.start()
        try:
            running = asking.threads
            while running:
                check_stop(self.reporter)
                self.telling.now(self.pool.tokens)
                if self._out_of_time():
                    asking.stopped.set()
                try:
                    row = asking.ended.get(timeout=WATCH_SECONDS)
                except queue.Empty:
                    continue
                if isinstance(row, _Row):
                    self._take(row)
                elif row is not None:
                    raise row
                else:
                    running -= 1
        finally:
            asking.stopped.set()
            self.telling.now(self.pool.tokens, last=True)

    def report(self) -> dict[str, Any]:
        """See `generate_remote`."""
        return {
            "rows": len(self.shards.done),
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "tokens_per_second": round(self.tokens / max(self.seconds, 1e-9), 1),
            "finish": dict(self.finish),
            "failed": self.telling.failed,
            "left_out": dict(self.telling.kinds),
            "labels": dict(self.labels),
            "retries": self.retries,
            "complete": self.complete,
        }

    def _take(self, row: _Row) -> None:
        if row.error is not None:
            self._failed(row.conversation, row.error)
        elif row.conversation.complete:
            self.failed_in_a_row = 0
            self.tokens += row.tokens
            self.retries += row.retries
            if problem := row.conversation.problem(self.options):
                self.telling.left_out(row.conversation, *problem)
            else:
                self._keep(row)
        self._report_progress()

    def _keep(self, row: _Row) -> None:
        self.finish.update(row.conversation.finish)
        record = row.to_json()
        self.shards.add(record)
        self.telling.made(record, row.tokens)
        kind = row.trail.kind if row.trail else TEXT
        self.labels[kind] += 1
        if kind in WHY and self.labels[kind] == 1:
            told = f"{row.conversation.id}: {WHY[kind]}; such rows are counted, and tokenised from their text."
            self.reporter.log(told, "warning")

    def _failed(self, row: Conversation, error: Exception) -> None:
        if isinstance(error, Unavailable):
            raise error
        reason = self._reason(error)
        if isinstance(error, REFUSALS):
            refuse = "refuse" if "," in self._who else "refuses"
            raise Unavailable(f"{self._who} {refuse}: {reason}.", "Check its url, model and key.")
        self.telling.left_out(row, FAILED, reason)
        self.failed_in_a_row += 1
        if self.failed_in_a_row >= max(GIVE_UP_AFTER, self.pool.slots):
            count = self.failed_in_a_row
            raise Unavailable(
                f"{self._who}: {count} rows in a row failed, the last with: {reason}.",
                "What was finished is kept; retry when it answers again.",
            )

    def _reason(self, error: Exception) -> str:
        text = plain_reason(error)
        for key in {server.endpoint.key for server in self.pool.servers} - {""}:
            text = text.replace(key, "•••")
        return text

    @property
    def _who(self) -> str:
        names = [repr(name) for name in self.pool.config()["endpoint"].split(",")]
        return ("Endpoint " if len(names) == 1 else "Endpoints ") + ", ".join(names)

    def _out_of_time(self) -> bool:
        minutes = self.options.max_minutes
        if minutes is not None and self.seconds > minutes * 60:
            self.complete = False
            return True
        return False

    def _report_progress(self) -> None:
        failed = len(self.telling.failed)
        note = f"{self.retries} retries, {failed} failed" if self.retries or failed else ""
        self.reporter.progress(len(self.shards.done) + failed, self.total, "rows", note)

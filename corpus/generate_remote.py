"""Answers to a prompt set through an OpenAI-compatible endpoint that the operator named in the settings.

Threads ask, with the client's own retries; this one writes, so every row arrives once, in any order, and rows that
still come after a stop are dropped. The key is read from the environment when the client is made and appears nowhere
else.
"""

import queue
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import openai

from corpus.conversations import Conversation, GenerateOptions, count_answers, to_answer
from corpus.endpoints import Pool, plain_reason
from corpus.seeds import row_seed
from corpus.shards import ShardWriter, write_summary
from speculoos.errors import Cancelled, Unavailable
from speculoos.reporting import Reporter, check_stop
from speculoos.settings import Endpoint

FLUSH_SECONDS = 10.0
GIVE_UP_AFTER = 8
WATCH_SECONDS = 0.5
REFUSALS = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)


def generate_remote(
    endpoints: Endpoint | Sequence[Endpoint],
    model: str,
    source: str | Path,
    folder: str | Path,
    options: GenerateOptions,
    reporter: Reporter,
) -> dict[str, Any]:
    """Answer the prompts of data set `source` into `folder` with `model` (default each endpoint's); returns the report:

    `rows`, `tokens` (as the endpoint counts them), `seconds`, `finish`, `failed` ([{id, reason}]), `retries` (of rows
    that were answered), `complete`. Rows that failed after all retries are left out and tried again by the next call.
    Raises Unavailable when an endpoint refuses everything, Cancelled when the reporter says stop; what is finished
    is kept.
    """
    endpoints = [endpoints] if isinstance(endpoints, Endpoint) else endpoints
    pool = Pool(endpoints, model, reporter.log)
    total = count_answers(source, options)
    with ShardWriter(folder, seconds=FLUSH_SECONDS) as shards:
        run = _Run(pool, shards, options, reporter, total)
        run.go(to_answer(source, options, set(shards.done)))
    report = run.report()
    config = {**asdict(options), **pool.config()}
    name = str(Path(source).name)
    write_summary(
        folder, kind="conversations", source=name, base_sha256="", tokenizer_sha256="", config=config, **report
    )
    return report


@dataclass
class _Row:
    """A row on its way: what the endpoint counted, and why it failed, if it did."""

    conversation: Conversation
    tokens: int = 0
    retries: int = 0
    error: Exception | None = None


class _Asking:
    """Threads that share the rows and put each into `ended`, answered or not; None for a thread that found no more,
    an error for one that could not read on."""

    def __init__(self, pool: Pool, options: GenerateOptions, rows: Iterator[Conversation]):
        self.pool, self.options = pool, options
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
        row = _Row(conversation)
        try:
            while not conversation.complete and not self.stopped.is_set():
                raw, retries = self._request(conversation)
                completion = raw.parse()
                if not getattr(completion, "choices", None):
                    raise ValueError("an answer without choices")
                conversation.answers.append(completion.choices[0].message.content or "")
                conversation.finish.append(completion.choices[0].finish_reason or "stop")
                row.retries += retries
                row.tokens += completion.usage.completion_tokens if completion.usage else 0
        except Cancelled:  # asked to stop: the row is nobody's failure
            pass
        except Exception as error:
            row.error = error
        return row

    def _request(self, row: Conversation) -> tuple[Any, int]:
        """One chat completion. What has no effect is not sent: some servers refuse fields they do not know."""
        options = self.options
        extra: dict[str, Any] = {"top_p": options.top_p} if options.top_p < 1 else {}
        if options.temperature > 0:
            extra["seed"] = row_seed(options.seed, row.id, len(row.answers)) & 0x7FFFFFFF
        return self.pool.ask(
            self.stopped,
            messages=row.messages(),
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            **extra,
        )


class _Run:
    """One call's state: what was counted and written."""

    def __init__(
        self, pool: Pool, shards: ShardWriter, options: GenerateOptions, reporter: Reporter, total: int
    ) -> None:
        self.pool, self.shards, self.options = pool, shards, options
        self.reporter, self.total = reporter, total
        self.failed: list[dict[str, str]] = []
        self.finish: dict[str, int] = {}
        self.tokens = self.retries = self.failed_in_a_row = 0
        self.started, self.complete = time.monotonic(), True

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def go(self, rows: Iterator[Conversation]) -> None:
        """Write rows as they end, until the threads find no more, the time is over or someone asks to stop."""
        asking = _Asking(self.pool, self.options, rows)
        asking.start()
        try:
            running = asking.threads
            while running:
                check_stop(self.reporter)
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

    def report(self) -> dict[str, Any]:
        """See `generate_remote`."""
        return {
            "rows": len(self.shards.done),
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "tokens_per_second": round(self.tokens / max(self.seconds, 1e-9), 1),
            "finish": self.finish,
            "failed": self.failed,
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
            for how in row.conversation.finish:
                self.finish[how] = self.finish.get(how, 0) + 1
            self.shards.add(row.conversation.to_json(answer_tokens=row.tokens))
        self._report_progress()

    def _failed(self, row: Conversation, error: Exception) -> None:
        if isinstance(error, Unavailable):
            raise error
        reason = self._reason(error)
        if isinstance(error, REFUSALS):
            refuse = "refuse" if "," in self._who else "refuses"
            raise Unavailable(f"{self._who} {refuse}: {reason}.", "Check its url, model and key.")
        self.failed.append({"id": row.id, "reason": reason})
        self.reporter.log(f"{row.id} is left out: {reason}", "warning")
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
        note = f"{self.retries} retries, {len(self.failed)} failed" if self.retries or self.failed else ""
        self.reporter.progress(len(self.shards.done) + len(self.failed), self.total, "rows", note)

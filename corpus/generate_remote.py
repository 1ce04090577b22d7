"""Answers to a prompt set through an OpenAI-compatible endpoint that the operator named in the settings.

Threads ask, with the client's own retries; this one writes, so every row arrives once, in any order, and rows that
still come after a stop are dropped. The key is read from the environment when the client is made and appears nowhere
else.
"""

import queue
import threading
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import openai

from corpus.conversations import Conversation, GenerateOptions, to_answer
from corpus.sampling import row_seed
from corpus.shards import ShardWriter, count_rows, write_summary
from speculoos.errors import BadInput, Unavailable
from speculoos.reporting import Reporter, check_stop
from speculoos.settings import Endpoint

FLUSH_SECONDS = 10.0
GIVE_UP_AFTER = 8
WATCH_SECONDS = 0.5
REFUSALS = (openai.AuthenticationError, openai.PermissionDeniedError, openai.NotFoundError)


def generate_remote(
    endpoint: Endpoint,
    model: str,
    source: str | Path,
    folder: str | Path,
    options: GenerateOptions,
    reporter: Reporter,
) -> dict[str, Any]:
    """Answer the prompts of data set `source` into `folder` with `model` (default the endpoint's); returns the report:

    `rows`, `tokens` (as the endpoint counts them), `seconds`, `finish`, `failed` ([{id, reason}]), `retries` (of rows
    that were answered), `complete`. Rows that failed after all retries are left out and tried again by the next call.
    Raises Unavailable when the endpoint refuses everything, Cancelled when the reporter says stop; what is finished
    is kept.
    """
    model = model or endpoint.model
    if not model:
        raise BadInput(f"Endpoint {endpoint.name!r} names no model; give one here or in settings.toml.")
    total = min(count_rows(source), options.limit or 1 << 62)
    with ShardWriter(folder, seconds=FLUSH_SECONDS) as shards:
        run = _Run(endpoint, model, shards, options, reporter, total)
        run.go(to_answer(source, options, set(shards.done)))
    report = run.report()
    config = {**asdict(options), "endpoint": endpoint.name, "model": model}
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

    def __init__(self, endpoint: Endpoint, model: str, options: GenerateOptions, rows: Iterator[Conversation]):
        self.endpoint, self.model, self.options = endpoint, model, options
        self.ended: queue.SimpleQueue[_Row | Exception | None] = queue.SimpleQueue()
        self.stopped = threading.Event()
        self.threads = max(1, endpoint.concurrency)
        self._rows, self._lock = rows, threading.Lock()
        limits: dict[str, Any] = {"timeout": endpoint.timeout, "max_retries": endpoint.retries}
        self._client = openai.OpenAI(base_url=endpoint.url, api_key=endpoint.key or "none", **limits)

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
                raw = self._request(conversation)
                made = raw.parse()
                if not getattr(made, "choices", None):
                    raise ValueError("an answer without choices")
                conversation.answers.append(made.choices[0].message.content or "")
                conversation.finish.append(made.choices[0].finish_reason or "stop")
                row.retries += raw.retries_taken
                row.tokens += made.usage.completion_tokens if made.usage else 0
        except Exception as error:
            row.error = error
        return row

    def _request(self, row: Conversation) -> Any:
        """One chat completion. What has no effect is not sent: some servers refuse fields they do not know."""
        options = self.options
        extra: dict[str, Any] = {"top_p": options.top_p} if options.top_p < 1 else {}
        if options.temperature > 0:
            extra["seed"] = row_seed(options.seed, row.id, len(row.answers)) & 0x7FFFFFFF
        return self._client.chat.completions.with_raw_response.create(
            model=self.model,
            messages=row.messages(),
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            **extra,
        )


class _Run:
    """One call's state: what was counted and written."""

    def __init__(
        self,
        endpoint: Endpoint,
        model: str,
        shards: ShardWriter,
        options: GenerateOptions,
        reporter: Reporter,
        total: int,
    ):
        self.endpoint, self.model, self.shards, self.options = endpoint, model, shards, options
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
        asking = _Asking(self.endpoint, self.model, self.options, rows)
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
            self.shards.add(row.conversation.to_json())
        self._report_progress()

    def _failed(self, row: Conversation, error: Exception) -> None:
        reason = self._reason(error)
        if isinstance(error, REFUSALS):
            raise Unavailable(f"Endpoint {self.endpoint.name!r} refuses: {reason}.", "Check its url, model and key.")
        self.failed.append({"id": row.id, "reason": reason})
        self.reporter.log(f"{row.id} is left out: {reason}", "warning")
        self.failed_in_a_row += 1
        if self.failed_in_a_row >= max(GIVE_UP_AFTER, self.endpoint.concurrency):
            count = self.failed_in_a_row
            raise Unavailable(
                f"Endpoint {self.endpoint.name!r}: {count} rows in a row failed, the last with: {reason}.",
                "What was finished is kept; retry when it answers again.",
            )

    def _reason(self, error: Exception) -> str:
        text = plain_reason(error)
        return text.replace(self.endpoint.key, "•••") if self.endpoint.key else text

    def _out_of_time(self) -> bool:
        minutes = self.options.max_minutes
        if minutes is not None and self.seconds > minutes * 60:
            self.complete = False
            return True
        return False

    def _report_progress(self) -> None:
        note = f"{self.retries} retries, {len(self.failed)} failed" if self.retries or self.failed else ""
        self.reporter.progress(len(self.shards.done) + len(self.failed), self.total, "rows", note)


def plain_reason(error: Exception) -> str:
    """One short line: the status and what the endpoint said."""
    if isinstance(error, openai.APITimeoutError):
        return "no answer within the time limit"
    if isinstance(error, openai.APIConnectionError):
        return "no connection"
    body = getattr(error, "body", None)
    said = body.get("message") if isinstance(body, dict) else None
    text = str(said or error).splitlines()[0][:200] if str(said or error) else type(error).__name__
    status = getattr(error, "status_code", None)
    return f"{status} {text}" if status and not text.startswith(str(status)) else text

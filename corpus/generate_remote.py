"""Answers to a prompt set through an OpenAI-compatible endpoint that the operator named in the settings.

Every row arrives once: retries are counted here (the client's own are off), finished rows are known by id, and rows
may end in any order. The key is read from the environment when the client is made and appears nowhere else.
"""

import asyncio
import time
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import openai

from corpus import loops
from corpus.conversations import Conversation, GenerateOptions, to_answer
from corpus.retries import ask, plain_reason
from corpus.sampling import row_seed
from corpus.shards import ShardWriter, count_rows, write_summary
from speculoos.errors import BadInput, Cancelled, SpeculoosError, Unavailable
from speculoos.reporting import Reporter
from speculoos.settings import Endpoint

FLUSH_SECONDS = 10.0
GIVE_UP_AFTER = 8
WATCH_SECONDS = 0.5


def generate_remote(
    endpoint: Endpoint,
    model: str,
    source: str | Path,
    folder: str | Path,
    options: GenerateOptions,
    reporter: Reporter,
) -> dict[str, Any]:
    """Answer the prompts of data set `source` into `folder` with `model` (default the endpoint's); returns the report:

    `rows`, `tokens` (as the endpoint counts them), `seconds`, `finish`, `failed` ([{id, reason}]), `retries`,
    `complete`. Rows that failed after all retries are left out and tried again by the next call.
    Raises Unavailable when the endpoint refuses everything, Cancelled when the reporter says stop; what is finished
    is kept. A notebook may call it too: beside a running event loop it runs its own in a thread.
    """
    model = model or endpoint.model
    if not model:
        raise BadInput(f"Endpoint {endpoint.name!r} names no model; give one here or in settings.toml.")
    total = min(count_rows(source), options.limit or 1 << 62)
    with ShardWriter(folder, seconds=FLUSH_SECONDS) as shards:
        run = _Run(endpoint, model, shards, options, reporter, total)
        _unwrapped(run.go(to_answer(source, options, set(shards.done))))
    report = run.report()
    config = {**asdict(options), "endpoint": endpoint.name, "model": model}
    name = str(Path(source).name)
    write_summary(
        folder, kind="conversations", source=name, base_sha256="", tokenizer_sha256="", config=config, **report
    )
    return report


def _unwrapped(work: Any) -> None:
    """Run the coroutine; of a group of errors raise the first one that has a sentence for the user."""
    try:
        loops.run(work)
    except* SpeculoosError as group:
        raise group.exceptions[0] from None


class _Run:
    """One call's state: rows to hand out, what was counted."""

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

    async def go(self, rows: Iterator[Conversation]) -> None:
        """`concurrency` workers share the rows; a watcher looks for a stop."""
        key = self.endpoint.key or "none"
        limits = {"timeout": self.endpoint.timeout, "max_retries": 0}
        client = openai.AsyncOpenAI(base_url=self.endpoint.url, api_key=key, **limits)
        async with client, asyncio.TaskGroup() as group:
            watcher = group.create_task(self._watch())
            count = max(1, self.endpoint.concurrency)
            workers = [group.create_task(self._work(client, rows)) for _ in range(count)]
            await asyncio.wait(workers)
            watcher.cancel()

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

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(WATCH_SECONDS)
            if self.reporter.stop_requested():
                raise Cancelled("Stopped at your request; what was finished is kept.")

    async def _work(self, client: openai.AsyncOpenAI, rows: Iterator[Conversation]) -> None:
        for row in rows:
            if self._out_of_time():
                return
            try:
                await self._answer(client, row)
                self.failed_in_a_row = 0
            except (openai.OpenAIError, ValueError) as error:
                self._failed(row, error)
            self._report_progress()

    async def _answer(self, client: openai.AsyncOpenAI, row: Conversation) -> None:
        """All turns of one row, then its line."""
        while not row.complete:
            made = await ask(lambda: self._request(client, row), self.endpoint.retries, self._retried)
            choice = made.choices[0]
            row.answers.append(choice.message.content or "")
            row.finish.append(choice.finish_reason or "stop")
            self.finish[row.finish[-1]] = self.finish.get(row.finish[-1], 0) + 1
            self.tokens += made.usage.completion_tokens if made.usage else 0
        self.shards.add(row.to_json())

    async def _request(self, client: openai.AsyncOpenAI, row: Conversation) -> Any:
        """One chat completion. What has no effect is not sent: some servers refuse fields they do not know."""
        options = self.options
        extra: dict[str, Any] = {"top_p": options.top_p} if options.top_p < 1 else {}
        if options.temperature > 0:
            extra["seed"] = row_seed(options.seed, row.id, len(row.answers)) & 0x7FFFFFFF
        return await client.chat.completions.create(
            model=self.model,
            messages=row.messages(),
            max_tokens=options.max_tokens,
            temperature=options.temperature,
            **extra,
        )

    def _retried(self, error: Exception, wait: float) -> None:
        self.retries += 1
        if self.retries <= 5 or self.retries % 100 == 0:
            self.reporter.log(f"{self._reason(error)}; trying again in {wait:.1f} s ({self.retries} retries so far)")

    def _failed(self, row: Conversation, error: Exception) -> None:
        reason = self._reason(error)
        if isinstance(error, openai.AuthenticationError | openai.PermissionDeniedError | openai.NotFoundError):
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

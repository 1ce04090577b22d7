"""Answer a prompt set through OpenAI-compatible endpoints from the settings.

Worker threads send the requests; the calling thread writes the rows, each once and in any order, and drops those that
arrive after a stop. API keys are read from the environment when the client is created and never logged.
"""

import queue
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from corpus.conversations import (
    KIND_FAILED,
    TEXT,
    Conversation,
    GenerateOptions,
    count_answers,
    finish_dataset,
    row_seed,
    to_answer,
)
from corpus.endpoints import EndpointPool, short_error
from corpus.generation_status import GenerationStatus
from corpus.labels import LABEL_PROBLEMS, PROMPT, ConversationTokens, ServedBase
from corpus.replies import Reply
from corpus.shards import ShardWriter
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
    """Answer the prompts of dataset `source` into `folder` with `model` (default each endpoint's); returns the report:

    `rows`, `tokens` (as counted by the endpoint), `seconds`, `finish`, `failed` ([{id, reason}]), `left_out` (failed
    rows by kind), `labels` (answered rows by label source), `retries` (of answered rows), `complete`. With `served`,
    the base model behind the endpoints, token ids are requested and stored. Rows that failed after all retries are
    omitted; the next call tries them again. Raises Unavailable when an endpoint rejects all requests, Cancelled when
    the reporter requests a stop; finished rows are kept.
    """
    endpoints = [endpoints] if isinstance(endpoints, Endpoint) else endpoints
    if options.api == "completions" and served is None:
        raise BadInput("Plain completions need the base that the endpoint serves, to render its chat template.")
    pool = EndpointPool(endpoints, model, reporter.log, probe=_probe(options, served))
    with ShardWriter(folder, seconds=FLUSH_SECONDS) as shards:
        status = GenerationStatus(reporter, shards, options, count_answers(source, options))
        run = _RemoteRun(pool, options, reporter, status, served)
        run.run(to_answer(source, options, set(shards.done)))
    report = {**status.report(), "labels": dict(run.labels), "retries": run.retries}
    checksums = {"base_sha256": "", "tokenizer_sha256": ""}
    if served:
        checksums = {"base_sha256": served.base_sha256, "tokenizer_sha256": served.tokenizer_sha256}
    return finish_dataset(folder, options, report, source=Path(source).name, config=pool.config(), **checksums)


def _probe(options: GenerateOptions, served: ServedBase | None) -> dict[str, Any] | None:
    if served is None:
        return None
    limits: dict[str, Any] = {"max_tokens": 1, "temperature": 0.0}
    if options.api == "completions":
        return {"prompt": served.render(HELLO), **limits}
    return {"messages": HELLO, **limits}


@dataclass
class _Row:
    """A row being answered: its token ids, the endpoint's token count, and the error if it failed."""

    conversation: Conversation
    conversation_tokens: ConversationTokens | None = None
    tokens: int = 0
    retries: int = 0
    error: Exception | None = None

    def append(self, reply: Reply, prompt: list[int] | None) -> None:
        """Add the next answer and its ids; `prompt` are the prompt ids by our chat template."""
        if self.conversation_tokens is not None and prompt is not None:
            self.conversation_tokens.append(prompt, reply)
        if reply.reasoning:
            self.conversation.reasoning[len(self.conversation.answers)] = reply.reasoning
        self.conversation.answers.append(reply.text)
        self.conversation.finish.append(reply.finish)
        self.tokens += reply.tokens

    def to_json(self) -> dict[str, Any]:
        extra = self.conversation_tokens.to_json() if self.conversation_tokens else {}
        return self.conversation.to_json(answer_tokens=self.tokens, **extra)


class _RemoteRun:
    """State of one call. Threads answer the rows and put each into the queue `results`: answered or failed rows, None
    for a finished thread, an exception if the rows cannot be read."""

    def __init__(
        self,
        pool: EndpointPool,
        options: GenerateOptions,
        reporter: Reporter,
        status: GenerationStatus,
        served: ServedBase | None,
    ) -> None:
        self.pool, self.options, self.reporter, self.status, self.served = pool, options, reporter, status, served
        self.labels = Counter[str]()
        self.retries = self.failed_in_a_row = 0
        self.results: queue.SimpleQueue[_Row | Exception | None] = queue.SimpleQueue()
        self.stopped, self._lock = threading.Event(), threading.Lock()

    def run(self, rows: Iterator[Conversation]) -> None:
        running = self.pool.slots
        for _ in range(running):  # daemon threads do not keep the process alive
            threading.Thread(target=self._work, args=(rows,), daemon=True).start()
        try:
            while running:
                check_stop(self.reporter)
                self.status.update(self.pool.tokens)
                if self.status.out_of_time():
                    self.stopped.set()
                try:
                    row = self.results.get(timeout=WATCH_SECONDS)
                except queue.Empty:
                    continue
                if isinstance(row, _Row):
                    self._handle_result(row)
                elif row is not None:
                    raise row
                else:
                    running -= 1
        finally:
            self.stopped.set()
            self.status.update(self.pool.tokens, last=True)

    def _work(self, rows: Iterator[Conversation]) -> None:
        end: Exception | None = None
        try:
            while not self.stopped.is_set():
                with self._lock:
                    conversation = next(rows, None)
                if conversation is None:
                    break
                self.results.put(self._answer(conversation))
        except Exception as error:  # the prompts cannot be read
            end = error
        self.results.put(end)

    def _answer(self, conversation: Conversation) -> _Row:
        row = _Row(conversation, ConversationTokens(self.served) if self.served else None)
        try:
            while not conversation.complete and not self.stopped.is_set():
                reply, retries, prompt = self._request(row)
                row.append(reply, prompt)
                row.retries += retries
        except Cancelled:  # a stop is not a failure of the row
            pass
        except Exception as error:
            row.error = error
        return row

    def _request(self, row: _Row) -> tuple[Reply, int, list[int] | None]:
        """(reply, retries, prompt ids by our template). Options without effect are not sent: some servers reject
        unknown fields."""
        conversation, options = row.conversation, self.options
        extra: dict[str, Any] = {"top_p": options.top_p} if options.top_p < 1 else {}
        if (temperature := options.temperature_of(conversation.id)) > 0:
            extra["seed"] = row_seed(options.seed, conversation.id, len(conversation.answers)) & 0x7FFFFFFF
        limits = {"max_tokens": options.max_tokens, "temperature": temperature, **extra}
        if options.api == "completions" and row.conversation_tokens:
            prompt = row.conversation_tokens.continued(conversation)
            return *self.pool.create_completion(self.stopped, prompt=prompt, **limits), prompt
        reply, retries = self.pool.create_completion(self.stopped, messages=conversation.messages(), **limits)
        prompt = None
        if row.conversation_tokens and not row.conversation_tokens.problem:
            try:
                prompt = row.conversation_tokens.prompt(conversation)
            except SpeculoosError:  # the template rejects the messages
                row.conversation_tokens.problem = PROMPT
        return reply, retries, prompt

    def _handle_result(self, row: _Row) -> None:
        if row.error is not None:
            self._failed(row.conversation, row.error)
        elif row.conversation.complete:
            self.failed_in_a_row = 0
            self.status.tokens += row.tokens
            self.retries += row.retries
            if self.status.accept_row(row.conversation):
                self._store_row(row)
        failed = len(self.status.failed)
        self.status.progress(f"{self.retries} retries, {failed} failed" if self.retries or failed else "")

    def _store_row(self, row: _Row) -> None:
        self.status.finish.update(row.conversation.finish)
        self.status.add_row(row.to_json(), row.tokens)
        label_source = row.conversation_tokens.label_source if row.conversation_tokens else TEXT
        self.labels[label_source] += 1
        if label_source in LABEL_PROBLEMS and self.labels[label_source] == 1:
            message = f"{LABEL_PROBLEMS[label_source]}; such rows are counted, and tokenized from their text."
            self.reporter.log(f"{row.conversation.id}: {message}", "warning")

    def _failed(self, row: Conversation, error: Exception) -> None:
        if isinstance(error, Unavailable):
            raise error
        reason = self._reason(error)
        if isinstance(error, REFUSALS):
            refuse = "refuse" if "," in self._endpoint_names else "refuses"
            raise Unavailable(f"{self._endpoint_names} {refuse}: {reason}.", "Check its url, model and key.")
        self.status.add_omitted(row, KIND_FAILED, reason)
        self.failed_in_a_row += 1
        if self.failed_in_a_row >= max(GIVE_UP_AFTER, self.pool.slots):
            count = self.failed_in_a_row
            raise Unavailable(
                f"{self._endpoint_names}: {count} rows in a row failed, the last with: {reason}.",
                "Finished rows are kept; retry when it answers again.",
            )

    def _reason(self, error: Exception) -> str:
        text = short_error(error)
        for key in {server.endpoint.key for server in self.pool.servers} - {""}:
            text = text.replace(key, "•••")
        return text

    @property
    def _endpoint_names(self) -> str:
        names = [repr(name) for name in self.pool.config()["endpoint"].split(",")]
        return ("Endpoint " if len(names) == 1 else "Endpoints ") + ", ".join(names)

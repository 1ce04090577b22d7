"""Answer a prompt set with the local base model: batched, turn by turn, with exact token ids.

Finished rows are written to shards within a minute; another call with the same folder continues with the rest. Greedy
answers do not depend on the batch except for rounding; sampled ones use random numbers derived from the row.
"""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from corpus.batch import BatchAnswer, answer_all
from corpus.closing import finish_dataset
from corpus.conversations import KIND_FAILED, Conversation, GenerateOptions, count_answers, to_answer
from corpus.estimate import check_needs, estimate_needs
from corpus.generation_status import GenerationStatus
from corpus.seeds import row_rng
from corpus.shards import ShardWriter
from models.base import LoadedBase, has_bfloat16
from models.chat import after_answer, render
from models.fetch import read_card
from speculoos.errors import SpeculoosError
from speculoos.reporting import Reporter, check_stop
from training.hidden_states.states_store import StatesStore

FLUSH_SECONDS = 20.0
POOL = 8  # batches whose prompts are sorted by length together
WORTH_KEEPING = 16  # minimum tokens of an answer truncated by the time limit


def generation_dtype(device: str = "cpu") -> str:
    """bfloat16 where it is faster (GPUs, and CPUs with native support), else float32.

    Measured on two cores with AVX512-BF16, batch 32, SmolLM2-135M: 353 tokens per second instead of 214.
    """
    if device.startswith("cuda") or (device == "auto" and torch.cuda.is_available()):
        return "bfloat16"
    native = has_bfloat16(torch.device("cpu")) or torch.cpu._is_amx_tile_supported()
    return "bfloat16" if native else "float32"


@dataclass(eq=False)
class _Turn:
    """A conversation whose next answer is being generated. `ids` are all token ids so far, prompts and answers."""

    conversation: Conversation
    ids: list[int] = field(default_factory=list)
    spans: list[list[int]] = field(default_factory=list)
    hidden: list[torch.Tensor] = field(default_factory=list)


def generate_local(
    base: LoadedBase,
    source: str | Path,
    folder: str | Path,
    options: GenerateOptions,
    reporter: Reporter,
    card: dict[str, Any] | None = None,
    keep: StatesStore | None = None,
) -> dict[str, Any]:
    """Answer the prompts of data set `source` into data set `folder`; returns the report:

    `rows`, `tokens` (generated), `seconds`, `tokens_per_second` (both of this call), `finish` (answers by finish
    reason), `failed` ([{id, reason}]), `left_out` (failed rows by kind), `complete` (False when the time limit stopped
    it; truncated answers are kept from 16 tokens on), `dtype`. Hidden states of kept rows are stored in `keep`. Raises
    Unavailable for too little disk space or memory, Cancelled after a stop request; finished rows are kept.
    """
    card = card or read_card(base.path)
    total = count_answers(source, options)
    with ShardWriter(folder, seconds=FLUSH_SECONDS) as shards:
        _check_needs(base, source, folder, options, reporter, total - len(shards.done))
        run = _LocalRun(base, shards, options, reporter, total, keep)
        run.run(to_answer(source, options, shards.done))
        run.status.update(run.tokens, last=True)
    report = run.report()
    sums = {"base_sha256": card.get("weights_sha256", ""), "tokenizer_sha256": card.get("tokenizer_sha256", "")}
    return finish_dataset(folder, options, report, source=Path(source).name, **sums)


class _LocalRun:
    """State of one call: queued answers and counters."""

    def __init__(
        self,
        base: LoadedBase,
        shards: ShardWriter,
        options: GenerateOptions,
        reporter: Reporter,
        total: int,
        keep: StatesStore | None = None,
    ):
        self.base, self.shards, self.options, self.reporter, self.total = base, shards, options, reporter, total
        self.keep = keep
        self.ready: list[BatchAnswer] = []
        self.status = GenerationStatus(reporter, shards.folder)
        self.finish: dict[str, int] = {}
        self.tokens, self.complete = 0, True
        self.started = time.monotonic()

    def run(self, rows: Iterator[Conversation]) -> None:
        def source(count: int) -> list[BatchAnswer]:
            return self._next(rows, count)

        options = self.options
        for ended, running in answer_all(self.base, source, options.batch_size, options.top_p, self.keep is not None):
            for answer in ended:
                self._finish_answer(answer)
            self._report_progress()
            check_stop(self.reporter)
            if options.max_minutes is not None and self.seconds > options.max_minutes * 60:
                self._keep_truncated(running)
                return

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def report(self) -> dict[str, Any]:
        """See `generate_local`."""
        return {
            "rows": len(self.shards.done),
            "tokens": self.tokens,
            "seconds": round(self.seconds, 1),
            "tokens_per_second": round(self.tokens / max(self.seconds, 1e-9), 1),
            "finish": self.finish,
            "failed": self.status.failed,
            "left_out": dict(self.status.kinds),
            "complete": self.complete,
            "dtype": str(self.base.dtype).removeprefix("torch."),
        }

    def _next(self, rows: Iterator[Conversation], count: int) -> list[BatchAnswer]:
        """Up to `count` answers to generate; prompts are sorted by length within a pool of POOL batches."""
        if not self.ready:
            for conversation in islice(rows, POOL * self.options.batch_size):
                self._queue(_Turn(conversation))
            self.ready.sort(key=lambda answer: len(answer.prompt), reverse=True)
        batch, self.ready = self.ready[:count], self.ready[count:]
        return batch

    def _queue(self, turn: _Turn) -> None:
        """Queue the next answer of a conversation, or report why it cannot be generated."""
        conversation = turn.conversation
        try:
            turn.ids = self._prompt(turn)
        except SpeculoosError as error:
            self.status.add_omitted(conversation, KIND_FAILED, str(error))
            return
        remaining = self.base.max_length - len(turn.ids)
        if remaining < 1:
            self.status.add_omitted(
                conversation, KIND_FAILED, f"{len(turn.ids)} prompt tokens; this base takes {self.base.max_length}"
            )
            return
        numbers = row_rng(self.options.seed, conversation.id, len(conversation.answers))
        temperature = self.options.temperature_of(conversation.id)
        self.ready.append(BatchAnswer(turn.ids, min(self.options.max_tokens, remaining), numbers, turn, temperature))

    def _prompt(self, turn: _Turn) -> list[int]:
        """The prompt ids of the next answer: the exact ids so far, and the template's tokens between two turns."""
        messages = turn.conversation.messages()
        if not turn.ids:
            return render(self.base.tokenizer, messages)
        return turn.ids + after_answer(self.base.tokenizer, self.base.eos_ids, messages, turn.ids[-1])

    def _finish_answer(self, answer: BatchAnswer) -> None:
        turn: _Turn = answer.tag
        conversation = turn.conversation
        self.tokens += len(answer.tokens)
        self.finish[answer.finish] = self.finish.get(answer.finish, 0) + 1
        turn.spans.append([len(turn.ids), len(turn.ids) + len(answer.tokens)])
        turn.hidden += answer.hidden
        turn.ids = turn.ids + answer.tokens
        conversation.answers.append(self.base.tokenizer.decode(answer.tokens, skip_special_tokens=True))
        conversation.finish.append(answer.finish)
        if not conversation.complete:
            self._queue(turn)
        elif problem := conversation.problem(self.options):
            self.status.add_omitted(conversation, *problem)
        else:
            self._store_hidden_states(turn)
            self._keep(conversation.to_json(token_ids=turn.ids, loss_spans=turn.spans))

    def _store_hidden_states(self, turn: _Turn) -> None:
        """Store hidden states before the row, so that finished rows have them. The one at t predicted token t + 1."""
        if self.keep:
            positions = [at - 1 for start, end in turn.spans for at in range(start, end)]
            self.keep.write_answers(turn.ids, positions, torch.stack(turn.hidden))

    def _keep(self, row: dict[str, Any]) -> None:
        self.shards.add(row)
        self.status.add_row(row, sum(end - start for start, end in row["loss_spans"]))

    def _keep_truncated(self, running: list[BatchAnswer]) -> None:
        """At the time limit: keep running conversations whose last answer has at least WORTH_KEEPING tokens."""
        self.complete = False
        for answer in running:
            conversation = answer.tag.conversation
            if len(answer.tokens) >= WORTH_KEEPING:
                answer.finish = "length"
                conversation.users = conversation.users[: len(conversation.answers) + 1]
                self._finish_answer(answer)

    def _report_progress(self) -> None:
        self.status.update(self.tokens)
        done = len(self.shards.done) + len(self.status.failed)
        note = f"{self.tokens / max(self.seconds, 1e-9):.0f} tokens/s"
        self.reporter.progress(done, self.total, "rows", note)


def _check_needs(
    base: LoadedBase, source: str | Path, folder: str | Path, options: GenerateOptions, reporter: Reporter, rows: int
) -> None:
    estimate = estimate_needs(base, source, options, rows)
    reporter.log(estimate.sentence())
    check_needs(estimate, base, folder)

"""Conversations of datasets: prompts to answer, and answered rows. Independent of models."""

import hashlib
import random
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from corpus.shards import count_rows, read_rows, write_summary

KIND_FAILED, EMPTY, CUT = "failed", "empty", "cut"
"""Kinds of omitted rows."""
EXACT, TEXT = "exact", "text alone"
"""Label sources of a row: its token ids, or its text, which is tokenized for training."""
MAX_NAMED_ROWS = 50
"""Maximum omitted rows of one kind named in the log; all are counted."""


@dataclass(frozen=True)
class GenerateOptions:
    """Generation options. Temperature 0 is greedy and ignores the seed."""

    system_prompt: str = ""
    """Used when a prompt has no system message of its own."""
    max_tokens: int = 256
    """Maximum tokens of one answer."""
    temperature: float = 0.0
    top_p: float = 1.0
    batch_size: int = 16
    """Concurrent answers of the local model."""
    seed: int = 0
    limit: int | None = None
    """Maximum prompts to answer."""
    max_minutes: float | None = None
    """Stop after this time and keep finished rows."""
    first: int = 0
    """Prompts to skip at the beginning."""
    samples: int = 1
    """Answers per prompt, with different random numbers."""
    first_sample: int = 0
    """Number of the first sample."""
    temperatures: tuple[float, ...] = ()
    """Replaces `temperature`: prompts are spread over these, and the samples of a prompt cycle through them."""
    replace_system: bool = False
    """Replace the prompts' own system messages by `system_prompt`; an empty one removes them."""
    api: str = "chat"
    """API of endpoints: `chat`, or `completions`, with the chat template rendered by this process."""
    drop_cut: bool = False
    """Omit conversations with an answer truncated at `max_tokens`."""

    def temperature_of(self, row_id: str) -> float:
        """Temperature of a row's answers: a function of its id alone, i.e. of prompt and sample."""
        if not self.temperatures:
            return self.temperature
        prompt, _, sample = row_id.partition("#")
        index = row_seed(0, prompt, 0) + int(sample or 0)
        return self.temperatures[index % len(self.temperatures)]


@dataclass(eq=False)
class Conversation:
    """One row being answered turn by turn: `users` are the prompts, `answers` the answers so far."""

    id: str
    users: list[str]
    system: str = ""
    category: str = ""
    source: Any = None
    answers: list[str] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)
    reasoning: dict[int, str] = field(default_factory=dict)
    """{answer number: its reasoning}, if the server returns it separately."""

    @property
    def complete(self) -> bool:
        return len(self.answers) == len(self.users)

    def messages(self) -> list[dict[str, str]]:
        """All messages up to the next user turn, inclusive; answers without reasoning, as chat clients send them."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for number, user in enumerate(self.users[: len(self.answers) + 1]):
            messages.append({"role": "user", "content": user})
            if number < len(self.answers):
                messages.append({"role": "assistant", "content": self.answers[number]})
        return messages

    def problem(self, options: GenerateOptions) -> tuple[str, str] | None:
        """(kind, reason) if a complete row must be omitted, else None."""
        if any(not (answer.strip() or self.reasoning.get(number)) for number, answer in enumerate(self.answers)):
            return EMPTY, "an answer is empty"
        if options.drop_cut and "length" in self.finish:
            return CUT, f"an answer was cut at {options.max_tokens} tokens"
        return None

    def to_json(self, **extra: Any) -> dict[str, Any]:
        """The row in a dataset folder; `extra` has token_ids and loss_spans if known. Reasoning is stored under the
        name that chat templates use."""
        messages = self.messages()
        answers = [message for message in messages if message["role"] == "assistant"]
        for number, reasoning in self.reasoning.items():
            answers[number]["reasoning_content"] = reasoning
        row = {"id": self.id, "messages": messages, "finish": self.finish, **extra}
        return row | {k: v for k, v in (("category", self.category), ("source", self.source)) if v}


def row_rng(seed: int, row_id: str, turn: int) -> random.Random:
    """Random generator of one answer, independent of batch, shard and resumes."""
    return random.Random(row_seed(seed, row_id, turn))


def row_seed(seed: int, row_id: str, turn: int) -> int:
    """64-bit seed of one answer, a function of seed, row and turn only."""
    return int.from_bytes(hashlib.sha256(f"{seed}/{row_id}/{turn}".encode()).digest()[:8], "big")


def to_answer(folder: str | Path, options: GenerateOptions, done: set[str]) -> Iterator[Conversation]:
    """Rows of a dataset that are not in `done`, as conversations without answers, sample after sample. Existing
    answers are ignored: they are another model's."""
    for sample in range(options.first_sample, options.first_sample + options.samples):
        for row in read_rows(folder, options.limit, options.first):
            row_id = sample_id(row["id"], sample)
            if row_id not in done:
                yield make_conversation_from_row({**row, "id": row_id}, options.system_prompt, options.replace_system)


def sample_id(row_id: str, sample: int) -> str:
    """Row id of a prompt's sample (from 0); it also determines the random numbers."""
    return f"{row_id}#{sample}" if sample else row_id


def count_answers(folder: str | Path, options: GenerateOptions) -> int:
    """Number of rows of `to_answer`, finished ones included."""
    prompts = max(0, count_rows(folder) - options.first)
    return (prompts if options.limit is None else min(prompts, options.limit)) * options.samples


def make_conversation_from_row(
    row: dict[str, Any], system_prompt: str = "", replace_system: bool = False
) -> Conversation:
    """A row's user turns and system message; `system_prompt` if it has none or `replace_system` is set."""
    system_messages = [m["content"] for m in row["messages"] if m["role"] == "system"]
    system = system_messages[0] if system_messages and not replace_system else system_prompt
    users = [m["content"] for m in row["messages"] if m["role"] == "user"]
    return Conversation(row["id"], users, system, row.get("category", ""), row.get("source"))


def finish_dataset(
    folder: str | Path, options: GenerateOptions, report: dict[str, Any], **summary: Any
) -> dict[str, Any]:
    """Write the report and `summary` to `dataset.json`; returns the report."""
    config = {**asdict(options), **summary.pop("config", {})}
    write_summary(folder, kind="conversations", config=config, **summary, **report)
    return report

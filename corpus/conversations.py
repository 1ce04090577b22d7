"""Conversations as data sets keep them: prompts to answer, and rows with answers. Knows no model."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from corpus.seeds import row_seed
from corpus.shards import count_rows, read_rows

FAILED, EMPTY, CUT, DUPLICATE = "failed", "empty", "cut", "duplicate"
"""Kinds of rows that are left out."""
EXACT, TEXT = "exact", "text alone"
"""How the labels of a row are known: by its token ids, or by its text, which is tokenised for training."""
NAMED = 50
"""Rows of a kind that the log names; all are counted."""


@dataclass(frozen=True)
class GenerateOptions:
    """How answers are made. Temperature 0 is greedy; the seed matters above it only."""

    system_prompt: str = ""
    """Goes first, unless the prompt brings its own."""
    max_tokens: int = 256
    """Most tokens of one answer."""
    temperature: float = 0.0
    top_p: float = 1.0
    batch_size: int = 16
    """Answers made at once by the local model."""
    seed: int = 0
    limit: int | None = None
    """Most prompts to answer."""
    max_minutes: float | None = None
    """Stop by the clock and keep what is finished."""
    first: int = 0
    """Prompts to leave out at the beginning."""
    samples: int = 1
    """Answers to each prompt, drawn with different numbers."""
    first_sample: int = 0
    """Number of the first of them."""
    temperatures: tuple[float, ...] = ()
    """In place of one temperature: prompts are spread over them, and several answers to a prompt take them in turn."""
    replace_system: bool = False
    """Put `system_prompt` in the place of the prompts' own; empty, it leaves theirs out."""
    api: str = "chat"
    """How endpoints are asked: `chat`, or `completions`, for which the template is rendered here."""
    drop_cut: bool = False
    """Leave conversations out in which an answer was cut at `max_tokens`."""
    unique: bool = False
    """Leave conversations out that are equal to an earlier one, word for word."""

    def temperature_of(self, row_id: str) -> float:
        """Of the answers of one row: a function of its id, so of prompt and sample, and of nothing made beside it."""
        if not self.temperatures:
            return self.temperature
        prompt, _, sample = row_id.partition("#")
        place = row_seed(0, prompt, 0) + int(sample or 0)
        return self.temperatures[place % len(self.temperatures)]


@dataclass(eq=False)
class Conversation:
    """One row being answered, turn by turn: `users` are the prompts, `answers` what came back so far."""

    id: str
    users: list[str]
    system: str = ""
    category: str = ""
    source: Any = None
    answers: list[str] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)
    reasoning: dict[int, str] = field(default_factory=dict)
    """What came before answer number so and so, where the server tells it apart."""

    @property
    def complete(self) -> bool:
        return len(self.answers) == len(self.users)

    def messages(self) -> list[dict[str, str]]:
        """Everything said so far, up to and with the next user turn; answers without their reasoning, as clients of a
        chat send them back."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        for number, user in enumerate(self.users[: len(self.answers) + 1]):
            messages.append({"role": "user", "content": user})
            if number < len(self.answers):
                messages.append({"role": "assistant", "content": self.answers[number]})
        return messages

    def problem(self, options: GenerateOptions) -> tuple[str, str] | None:
        """Why a complete row is of no use, as (kind, words)."""
        if any(not (said.strip() or self.reasoning.get(number)) for number, said in enumerate(self.answers)):
            return EMPTY, "an answer is empty"
        if options.drop_cut and "length" in self.finish:
            return CUT, f"an answer was cut at {options.max_tokens} tokens"
        return None

    def to_json(self, **extra: Any) -> dict[str, Any]:
        """The line of a data set folder; `extra` holds token_ids and loss_spans when they are known. Reasoning stands
        under the name that chat templates know."""
        messages = self.messages()
        answers = [message for message in messages if message["role"] == "assistant"]
        for number, reasoning in self.reasoning.items():
            answers[number]["reasoning_content"] = reasoning
        row = {"id": self.id, "messages": messages, "finish": self.finish, **extra}
        return row | {k: v for k, v in (("category", self.category), ("source", self.source)) if v}


def to_answer(folder: str | Path, options: GenerateOptions, done: set[str]) -> Iterator[Conversation]:
    """Rows of a data set that are not in `done`, as conversations without answers, sample after sample.

    Answers a row already has are left out: they are another model's.
    """
    for sample in range(options.first_sample, options.first_sample + options.samples):
        for row in read_rows(folder, options.limit, options.first):
            row_id = sample_id(row["id"], sample)
            if row_id not in done:
                yield conversation({**row, "id": row_id}, options.system_prompt, options.replace_system)


def sample_id(row_id: str, sample: int) -> str:
    """What a prompt's answer number `sample` (from 0) is known by, and what its random numbers are made from."""
    return f"{row_id}#{sample}" if sample else row_id


def count_answers(folder: str | Path, options: GenerateOptions) -> int:
    """How many rows `to_answer` has in all."""
    prompts = max(0, count_rows(folder) - options.first)
    return (prompts if options.limit is None else min(prompts, options.limit)) * options.samples


def conversation(row: dict[str, Any], system_prompt: str = "", replace_system: bool = False) -> Conversation:
    """A row's system message, or `system_prompt` where it has none or that shall take its place, and user turns."""
    own = [m["content"] for m in row["messages"] if m["role"] == "system"]
    system = own[0] if own and not replace_system else system_prompt
    users = [m["content"] for m in row["messages"] if m["role"] == "user"]
    return Conversation(row["id"], users, system, row.get("category", ""), row.get("source"))

"""Read recorded prompts and outputs of a model, to evaluate drafts without running it. Supported sources:

- A data set folder: conversations, with their `token_ids` and `loss_spans` if present.
- JSONL, JSON, CSV, parquet: conversations, or prompt and answer (`corpus.answered`), as written by `speculoos replay
  record`.
- Text of `tensor([[…]])`, as in the demo of *Decoding Speculative Decoding*: the token ids of one output each. The
  prompts are in a separate JSONL of `{"prompt"}`, in the same order, and are continued as plain text.

A record may have `prompt_ids`, `token_ids` (of the output), `raw` (the prompt is plain text to continue, not a chat)
and `logprobs`: for each output token the top tokens with their log-probabilities, as [[token or id, logprob], …] or in
the format of OpenAI's chat completions.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from corpus.answered import ANSWERED_FIELDS, parse_answered
from corpus.fields import BadRecord, is_filled, text_of
from corpus.rows import BadRow, parsed_rows, row_id
from corpus.shapes import Message, record_of
from corpus.shards import read_rows
from speculoos.errors import BadInput

OWN_FIELDS = ANSWERED_FIELDS | {"prompt_ids", "token_ids", "logprobs", "raw"}
TENSOR = re.compile(r"tensor\(\s*\[\[([^\[\]]*)\]\]")
MAX_ID = 1 << 31
MAX_ID_DIGITS = len(str(MAX_ID))
MIN_LOGPROB = -1e30
"""Lower bound of valid log-probabilities, except minus infinity."""
TopLogprobs = list[tuple[str | int, float]]
"""Top tokens, as text or id, with their log-probabilities."""


@dataclass(frozen=True, slots=True)
class Recording:
    """One output. `messages` are the prompt (for `raw`, a single user turn with the text); ids are None if not
    recorded; `logprobs` has one entry per output token, or is empty. `line`: position in the file."""

    id: str
    messages: list[Message]
    output: str = ""
    prompt_ids: list[int] | None = None
    token_ids: list[int] | None = None
    logprobs: tuple[TopLogprobs, ...] = ()
    finish: str = "length"
    raw: bool = False
    line: int = 0

    @property
    def prompt(self) -> str:
        """The last user message."""
        return next((m["content"] for m in reversed(self.messages) if m["role"] == "user"), "")


def read_recordings(
    path: str | Path, prompts: str | Path | None = None, limit: int | None = None, raw: bool = False
) -> Iterator[Recording | BadRow]:
    """The recordings of a file or data set folder, at most `limit`, and the bad rows.

    `prompts` is the prompts file of a file of tensors; `raw`: continue all prompts as plain text. Raises BadInput for
    an unreadable file.
    """
    path = Path(path)
    if path.is_dir():
        return islice((r for row in read_rows(path) for r in _of_row(row)), limit)
    if _holds_tensors(path):
        return _tensors(path, prompts, limit)
    if prompts:
        raise BadInput(f"{path.name}: has its prompts in it; a file of prompts goes with outputs in tensor([[…]]).")
    return parsed_rows(path, lambda line, value: _record(line, value, raw), OWN_FIELDS, limit)


def _record(line: int, value: Any, raw: bool) -> Recording:
    record = record_of(value)
    messages, output, finish = _messages_and_output(line, record)
    ids, logprobs = _ids(record, "token_ids"), _logprobs(record.get("logprobs"))
    if ids is not None and logprobs and len(logprobs) != len(ids):
        raise BadRecord(f"logprobs: {len(logprobs)} entries for {len(ids)} tokens")
    name = str(record.get("id") or row_id(line))[:200]
    raw = raw or record.get("raw") is True
    return Recording(name, messages, output, _ids(record, "prompt_ids"), ids, logprobs, finish, raw, line)


def _messages_and_output(line: int, record: dict[str, Any]) -> tuple[list[Message], str, str]:
    """(prompt messages, output, finish reason); token ids may replace either text."""
    try:
        row = parse_answered(line, record)
    except BadRecord:
        if not is_filled(record.get("token_ids")):
            raise
        if not is_filled(record.get("prompt")) and not is_filled(record.get("prompt_ids")):
            raise BadRecord("token_ids without a prompt or prompt_ids") from None
        return [{"role": "user", "content": text_of(record.get("prompt") or "", "prompt")}], "", "length"
    return row.messages[:-1], row.messages[-1]["content"], row.finish[-1]


def _ids(record: dict[str, Any], key: str) -> list[int] | None:
    """Token ids; None without the field. Raises BadRecord for invalid ones."""
    value = record.get(key)
    if value is None:
        return None
    if not isinstance(value, list) or not value or any(type(i) is not int or not 0 <= i < MAX_ID for i in value):
        raise BadRecord(f"{key}: expected a list of token ids")
    return value


def _logprobs(value: Any) -> tuple[TopLogprobs, ...]:
    """Log-probabilities in our format, or OpenAI's `{"content": [{"token", "logprob", "top_logprobs"}]}`."""
    if isinstance(value, dict):
        value = value.get("content")
    if not is_filled(value):
        return ()
    if not isinstance(value, list):
        raise BadRecord("logprobs: expected a list with one entry per token")
    return tuple(_top_logprobs(entry) for entry in value)


def _top_logprobs(entry: Any) -> TopLogprobs:
    if isinstance(entry, dict):
        others = entry.get("top_logprobs") or []
        entry = [(e.get("token"), e.get("logprob")) for e in [entry, *others] if isinstance(e, dict)]
    if not isinstance(entry, list) or not all(_is_logprob(pair) for pair in entry):
        raise BadRecord("logprobs: expected [token, log-probability] pairs for each token")
    return [(_token(token), float(logprob)) for token, logprob in dict(map(tuple, entry)).items()]


def _token(token: str | int) -> str | int:
    """vLLM returns ids as text, `token_id:42`, when ids are requested."""
    number = token.removeprefix("token_id:") if isinstance(token, str) else ""
    return int(number) if _is_id(number) and token != number else token


def _is_id(text: str) -> bool:
    return text.isdecimal() and len(text) <= MAX_ID_DIGITS


def _is_logprob(pair: Any) -> bool:
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return False
    token, logprob = pair
    types_match = type(token) in (str, int) and type(logprob) in (int, float)
    return types_match and (MIN_LOGPROB < logprob <= 1e-6 or logprob == -math.inf)


def _of_row(row: dict[str, Any]) -> Iterator[Recording]:
    ids, spans = row.get("token_ids"), row.get("loss_spans") or []
    answers = [number for number, message in enumerate(row["messages"]) if message["role"] == "assistant"]
    finish = row.get("finish") or []
    for number, index in enumerate(answers):
        known = ids is not None and len(spans) == len(answers)
        start, end = spans[number] if known else (0, 0)
        yield Recording(
            id=row["id"] + (f"-{number}" if number else ""),
            messages=row["messages"][:index],
            output=row["messages"][index]["content"],
            prompt_ids=ids[:start] if known else None,
            token_ids=ids[start:end] if known else None,
            finish=finish[number] if number < len(finish) else "stop",
        )


def _holds_tensors(path: Path) -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read(200).lstrip("\ufeff \t\r\n").startswith("tensor(")
    except OSError as error:
        raise BadInput(f"{path.name}: cannot be read ({error.strerror or error}).") from None


def _tensors(path: Path, prompts: str | Path | None, limit: int | None) -> Iterator[Recording | BadRow]:
    if not prompts:
        raise BadInput(
            f"{path.name}: holds outputs as tensor([[…]]) without prompts; give the JSONL of prompts with --prompts."
        )
    rows = [row for row in parsed_rows(prompts, _prompt_record, ("prompt",)) if isinstance(row, Recording)]
    outputs = TENSOR.findall(path.read_text(encoding="utf-8", errors="replace"))
    if len(outputs) > len(rows):
        raise BadInput(f"{path.name}: has {len(outputs)} outputs and {Path(prompts).name} only {len(rows)} prompts.")
    pairs = islice(zip(rows, outputs, strict=False), limit)
    return (_tensor(number, row, output) for number, (row, output) in enumerate(pairs, 1))


def _tensor(number: int, prompt: Recording, output: str) -> Recording | BadRow:
    parts = [part.strip() for part in output.split(",") if part.strip()]
    if not parts or not all(map(_is_id, parts)):
        return BadRow(number, "a tensor holds something else than token ids" if parts else "a tensor is empty")
    return Recording(prompt.id, prompt.messages, token_ids=list(map(int, parts)), raw=True, line=number)


def _prompt_record(line: int, value: Any) -> Recording:
    record = record_of(value)
    if not is_filled(record.get("prompt")):
        raise BadRecord("no prompt: expected an object with a text called prompt")
    return Recording(row_id(line), [{"role": "user", "content": text_of(record["prompt"], "prompt")}], line=line)

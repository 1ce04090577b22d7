"""Import of benchmark suites as question sets: MT-Bench, HumanEval, GSM8K and Spec-Bench from their published files.

Parsing is strict: one question in another format fails the import, since figures on a part of a suite are not figures
on that suite.
"""

import gzip
import tempfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from corpus.fields import BadRecord, category_of, check_size, check_text, is_filled, kind_of, text_of
from corpus.importing import ImportReport, PromptSource, write_rows
from corpus.prompts import PromptRow
from corpus.readers import UnreadableRecord, read_records
from corpus.shapes import record_of
from speculoos.errors import BadInput
from speculoos.reporting import Reporter
from speculoos.suites import SUITES

GZIP = b"\x1f\x8b"
MAX_UNPACKED = 64 << 20
"""Maximum unpacked bytes of a gzip file."""
FIELDS = frozenset(
    ("turns", "prompt", "question", "answer", "category", "reference", "canonical_solution", "question_id", "task_id")
)
TASKS = {
    **dict.fromkeys(
        ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities"),
        "multi-turn conversation",
    ),
    "translation": "translation",
    "summarization": "summarization",
    "qa": "question answering",
    "math_reasoning": "mathematical reasoning",
    "rag": "retrieval-augmented generation",
}
"""{Spec-Bench category: one of the six tasks for which its figures are reported (Xia et al. 2024, section 4)}."""
COMPLETE = "Complete this Python function.\n\n```python\n{}\n```"
Question = tuple[list[str], str, list[str]]
"""(user turns, category, reference answers)."""


def import_suite(
    path: str | Path,
    folder: str | Path,
    reporter: Reporter,
    suite: str,
    *,
    original_name: str = "",
    limit: int | None = None,
) -> dict[str, Any]:
    """Import `suite` from `path` into the data set folder `folder`; returns the report of
    `corpus.importing.import_prompts`. Raises BadInput with file, line and field for a file in another format."""
    check_suite(suite)
    name = original_name or Path(path).name
    with _unpacked(Path(path), name) as file:
        rows = read_suite(file, suite, name, limit)
        source = PromptSource.of(path, name, None, "question")
        return write_rows(source, rows, folder, reporter, ImportReport(), kind="prompts", suite=suite)


def check_suite(suite: str) -> None:
    """Raise BadInput for an unknown suite."""
    if suite not in SUITES:
        raise BadInput(f"There is no suite {suite!r}; known are {', '.join(SUITES)}.")


def read_suite(path: Path, suite: str, name: str, limit: int | None = None) -> Iterator[PromptRow]:
    """At most `limit` questions of a suite's file. Raises BadInput for the first one in another format."""
    for number, record in enumerate(read_records(path, FIELDS)):
        if limit is not None and number >= limit:
            return
        reason = record.reason if isinstance(record, UnreadableRecord) else ""
        try:
            if not reason:
                yield _row(record.line, record.value, READERS[suite])
                continue
        except BadRecord as bad:
            reason = str(bad)
        suite_info = SUITES[suite]
        raise BadInput(f"{name}, line {record.line}: {reason}.", f"{suite_info.title} is read from {suite_info.form}.")


@contextmanager
def _unpacked(path: Path, name: str) -> Iterator[Path]:
    """The file, or the content of a gzip file in a temporary folder."""
    try:
        with open(path, "rb") as handle:
            packed = handle.read(2) == GZIP
    except OSError as error:
        raise BadInput(f"{name}: cannot be read ({error.strerror or error}).") from None
    if not packed:
        yield path
        return
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / Path(name.removesuffix(".gz") or "questions.jsonl").name
        _unpack(path, target, name)
        yield target


def _unpack(path: Path, target: Path, name: str) -> None:
    try:
        with gzip.open(path) as packed:
            content = packed.read(MAX_UNPACKED + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise BadInput(f"{name}: its packing (gzip) is damaged; get it again.") from None
    if len(content) > MAX_UNPACKED:
        raise BadInput(f"{name}: unpacks to more than {MAX_UNPACKED >> 20} MiB, which no suite does.")
    target.write_bytes(content)


def _row(line: int, value: Any, read: Callable[[dict[str, Any]], Question]) -> PromptRow:
    record = record_of(value)
    users, category, answers = read(record)
    check_size(users, answers)
    messages = [{"role": "user", "content": user} for user in users]
    origin = {key: record[key] for key in ("question_id", "task_id") if isinstance(record.get(key), str | int)}
    row = PromptRow(line, messages, answers if any(answers) else [], category, origin)
    check_text(row.to_json())
    return row


def _mt_bench(record: dict[str, Any]) -> Question:
    return _turns(record), _category(record), _answers(record)


def _humaneval(record: dict[str, Any]) -> Question:
    if is_filled(record.get("turns")):
        return _turns(record), "code", _answers(record)
    _require(record, "task_id")
    return [COMPLETE.format(_text(record, "prompt").strip("\n"))], "code", [_optional(record, "canonical_solution")]


def _gsm8k(record: dict[str, Any]) -> Question:
    if is_filled(record.get("turns")):
        return _turns(record), "math", _answers(record)
    return [_text(record, "question")], "math", [_optional(record, "answer")]


def _spec_bench(record: dict[str, Any]) -> Question:
    category = _category(record)
    if category not in TASKS:
        raise BadRecord(f"category: {category!r} is of none of the six tasks; known are {', '.join(TASKS)}")
    return _turns(record), TASKS[category], _answers(record)


READERS: dict[str, Callable[[dict[str, Any]], Question]] = {
    "mt_bench": _mt_bench,
    "humaneval": _humaneval,
    "gsm8k": _gsm8k,
    "spec_bench": _spec_bench,
}


def _turns(record: dict[str, Any]) -> list[str]:
    turns = _require(record, "turns")
    if not isinstance(turns, list):
        raise BadRecord(f"turns: expected a list of texts, found {kind_of(turns)}")
    users = [text_of(turn, f"turns[{number}]") for number, turn in enumerate(turns)]
    if not all(user.strip() for user in users):
        raise BadRecord("turns: one of them is empty")
    return users


def _category(record: dict[str, Any]) -> str:
    text_of(_require(record, "category"), "category")
    return category_of(record)


def _answers(record: dict[str, Any]) -> list[str]:
    answers = record.get("reference")
    return [answer for answer in answers if isinstance(answer, str)] if isinstance(answers, list) else []


def _text(record: dict[str, Any], key: str) -> str:
    text = text_of(_require(record, key), key)
    if not text.strip():
        raise BadRecord(f"{key}: is empty")
    return text


def _optional(record: dict[str, Any], key: str) -> str:
    return record[key] if isinstance(record.get(key), str) else ""


def _require(record: dict[str, Any], key: str) -> Any:
    if not is_filled(record.get(key)):
        fields = ", ".join(sorted(record)[:8]) or "none"
        raise BadRecord(f"{key}: is missing (there are {fields})")
    return record[key]

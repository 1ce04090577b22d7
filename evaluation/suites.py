"""Import of benchmark suites as question sets: MT-Bench, HumanEval, GSM8K and Spec-Bench from their published files,
SPEED-Bench from files that its own script has prepared.

Parsing is strict: one question in another format fails the import, since results on a part of a suite are not results
on that suite.
"""

import gzip
import re
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import islice
from pathlib import Path
from typing import Any

from corpus.importing import write_rows
from corpus.readers import UnreadableRecord, read_records
from corpus.rows import BadRecord, ImportedRow, category_of, checked, is_filled, kind_of, record_of, text_of
from speculoos.errors import BadInput
from speculoos.reporting import Reporter
from speculoos.suites import SUITES

GZIP = b"\x1f\x8b"
MAX_DECOMPRESSED = 64 << 20
"""Maximum unpacked bytes of a gzip file."""
FIELDS = frozenset(
    (
        *("turns", "messages", "prompt", "question", "answer", "category", "reference", "canonical_solution"),
        *("question_id", "task_id"),
    )
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
"""{Spec-Bench category: one of the six tasks for which its results are reported (Xia et al. 2024, section 4)}."""
CATEGORIES = {"humaneval": "code", "gsm8k": "math"}
"""Category of all questions of a suite that names none."""
SPLIT = re.compile(r"qualitative|throughput_(\d+)k")
UNPREPARED = "FULL BENCHMARK DATA SHOULD BE FETCHED"
"""Start of the placeholders for texts of other datasets in SPEED-Bench's hub dataset."""
COMPLETION_PROMPT = "Complete this Python function.\n\n```python\n{}\n```"


def import_suite(
    path: str | Path,
    folder: str | Path,
    reporter: Reporter,
    suite: str,
    *,
    original_name: str = "",
    limit: int | None = None,
) -> dict[str, Any]:
    """Import `suite` from `path` into the dataset folder `folder`; returns the report of
    `corpus.importing.import_prompts`. Raises BadInput with file, line and field for a file in another format."""
    check_suite(suite)
    name = original_name or Path(path).name
    _check_split(name, suite)
    if licence := SUITES[suite].licence:
        reporter.log(f"{SUITES[suite].title} has the license “{licence}”.")
    with _decompressed(Path(path), name) as file:
        rows = read_suite(file, suite, name, limit)
        return write_rows(path, rows, folder, reporter, "question", original_name=name, kind="prompts", suite=suite)


def check_suite(suite: str) -> None:
    """Raise BadInput for an unknown suite."""
    if suite not in SUITES:
        raise BadInput(f"There is no suite {suite!r}; known are {', '.join(SUITES)}.")


def read_suite(path: Path, suite: str, name: str, limit: int | None = None) -> Iterator[ImportedRow]:
    """At most `limit` questions of a suite's file. Raises BadInput for the first one in another format, and for a whole
    file without questions of some category."""
    missing, form = {*SUITES[suite].categories}, f"{SUITES[suite].title} is read from {SUITES[suite].form}."
    for record in islice(read_records(path, FIELDS), limit):
        try:
            if isinstance(record, UnreadableRecord):
                raise BadRecord(record.reason)
            row = _row(record.line, record_of(record.value), suite)
        except BadRecord as bad:
            raise BadInput(f"{name}, line {record.line}: {bad}.", form) from None
        missing.discard(row.category)
        yield row
    if missing and limit is None:
        raise BadInput(f"{name}: it has no question of {', '.join(sorted(missing))}; a suite must be complete.", form)


def installed_file(suite: str) -> Path | None:
    """The suite's file in an installed Python package."""
    package, file = SUITES[suite].package or ("", "")
    spec = find_spec(package) if package else None
    path = Path(spec.origin).parent / file if spec and spec.origin else None
    return path if path and path.is_file() else None


def _check_split(name: str, suite: str) -> None:
    """Raise BadInput if a file's name is that of another split of SPEED-Bench, whose questions look the same."""
    if not suite.startswith("speed_bench") or not (split_match := SPLIT.search(name)):
        return
    named_suite = f"speed_bench_{split_match[1]}k" if split_match[1] else "speed_bench"
    if named_suite != suite:
        raise BadInput(f"{name}: by its name it is of the suite {named_suite}, not {suite}; choose that one.")


@contextmanager
def _decompressed(path: Path, name: str) -> Iterator[Path]:
    """The file, or the content of a gzip file in a temporary folder."""
    try:
        with open(path, "rb") as handle:
            is_gzip = handle.read(2) == GZIP
        if is_gzip:
            with gzip.open(path) as compressed:
                content = compressed.read(MAX_DECOMPRESSED + 1)
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise BadInput(f"{name}: the gzip data is damaged; download it again.") from None
    except OSError as error:
        raise BadInput(f"{name}: cannot be read ({error.strerror or error}).") from None
    if not is_gzip:
        yield path
        return
    if len(content) > MAX_DECOMPRESSED:
        raise BadInput(f"{name}: unpacks to more than {MAX_DECOMPRESSED >> 20} MiB, which no suite does.")
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / Path(name.removesuffix(".gz") or "questions.jsonl").name
        target.write_bytes(content)
        yield target


def _row(line: int, record: dict[str, Any], suite: str) -> ImportedRow:
    users, answers = _turns_and_answers(record, suite)
    if not (category := CATEGORIES.get(suite)):
        text_of(_require(record, "category"), "category")
        category = category_of(record)
    known_categories = SUITES[suite].categories
    if known_categories and category not in known_categories:
        raise BadRecord(
            f"category: {category!r} is not one of {SUITES[suite].title}; known are {', '.join(known_categories)}"
        )
    if suite == "spec_bench":
        if category not in TASKS:
            raise BadRecord(f"category: {category!r} is of none of the six tasks; known are {', '.join(TASKS)}")
        category = TASKS[category]
    origin = {key: record[key] for key in ("question_id", "task_id") if isinstance(record.get(key), str | int)}
    messages = [{"role": "user", "content": user} for user in users]
    return checked(ImportedRow(line, messages, category, origin, reference=answers if any(answers) else []))


def _turns_and_answers(record: dict[str, Any], suite: str) -> tuple[list[str], list[str]]:
    """(user turns, reference answers), from the suite's own fields, or else from `turns` and `reference`."""
    if suite == "humaneval" and not is_filled(record.get("turns")):
        _require(record, "task_id")
        prompt = COMPLETION_PROMPT.format(_text(record, "prompt").strip("\n"))
        return [prompt], _texts([record.get("canonical_solution")])
    if suite == "gsm8k" and not is_filled(record.get("turns")):
        return [_text(record, "question")], _texts([record.get("answer")])
    if suite.startswith("speed_bench"):
        _require(record, "question_id")
        if not is_filled(record.get("turns")) and is_filled(record.get("messages")):
            record = {**record, "turns": _user_turns(record["messages"])}
    turns = _require(record, "turns")
    if not isinstance(turns, list):
        raise BadRecord(f"turns: expected a list of texts, found {kind_of(turns)}")
    users = [text_of(turn, f"turns[{number}]") for number, turn in enumerate(turns)]
    if not all(user.strip() for user in users):
        raise BadRecord("turns: one of them is empty")
    if any(UNPREPARED in user for user in users):
        raise BadRecord("turns: a placeholder; prepare the file with NVIDIA's script, which fetches the texts")
    return users, _texts(record.get("reference"))


def _user_turns(messages: Any) -> list[Any]:
    """The texts of a list of user messages."""
    if not isinstance(messages, list) or not all(isinstance(each, dict) for each in messages):
        raise BadRecord(f"messages: expected a list of messages, found {kind_of(messages)}")
    if other := next((each.get("role") for each in messages if each.get("role") != "user"), None):
        raise BadRecord(f"messages: expected messages of the user only, found {other!r}")
    return [each.get("content") for each in messages]


def _texts(values: Any) -> list[str]:
    return [value for value in values if isinstance(value, str)] if isinstance(values, list) else []


def _text(record: dict[str, Any], key: str) -> str:
    text = text_of(_require(record, key), key)
    if not text.strip():
        raise BadRecord(f"{key}: is empty")
    return text


def _require(record: dict[str, Any], key: str) -> Any:
    if not is_filled(record.get(key)):
        fields = ", ".join(sorted(record)[:8]) or "none"
        raise BadRecord(f"{key}: is missing (there are {fields})")
    return record[key]

"""Question sets: the built-in one, prompt files and data sets. Knows rows, no model."""

from pathlib import Path
from typing import Any

from corpus.conversations import conversation
from corpus.prompts import BadRow, Row, read_prompts
from corpus.shards import read_rows
from speculoos.errors import BadInput
from speculoos.reporting import ConsoleReporter, Reporter

BUILT_IN = Path(__file__).resolve().parent / "questions.jsonl"


def built_in(limit: int | None = None) -> list[dict[str, Any]]:
    """The first `limit` of the questions that come with the workbench: `id`, `messages`, `category`."""
    return read_questions(BUILT_IN, limit)


def read_questions(
    path: str | Path, limit: int | None = None, reporter: Reporter | None = None
) -> list[dict[str, Any]]:
    """Rows with `messages` (user turns) from a prompt file or a data set folder, at most `limit`.

    Rows that hold no question are logged as warnings; raises BadInput when nothing is left.
    """
    path = Path(path)
    rows = list(read_rows(path, limit)) if path.is_dir() else _from_file(path, limit, reporter or ConsoleReporter())
    if not rows:
        raise BadInput(f"{path.name}: holds no question.")
    return rows


def turns(row: dict[str, Any]) -> tuple[str, list[str]]:
    """(system prompt, user turns) of a row."""
    chat = conversation(row)
    return chat.system, chat.users


def _from_file(path: Path, limit: int | None, reporter: Reporter) -> list[dict[str, Any]]:
    rows = []
    for row in read_prompts(path, limit):
        if isinstance(row, BadRow):
            reporter.log(f"{path.name}, line {row.line}: left out, {row.reason}", "warning")
        elif isinstance(row, Row):
            rows.append(row.to_json())
    return rows

"""Question sets: the built-in one, suites, prompt files and datasets. Independent of models."""

from collections.abc import Iterable
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any

from corpus.conversations import make_conversation_from_row
from corpus.prompts import read_prompts
from corpus.rows import BadRow
from corpus.shards import read_rows, read_summary
from speculoos.errors import BadInput
from speculoos.reporting import ConsoleReporter, Reporter

BUILT_IN = Path(__file__).resolve().parent / "questions.jsonl"


def built_in(limit: int | None = None) -> list[dict[str, Any]]:
    """The first `limit` built-in questions: `id`, `messages`, `category`."""
    return read_questions(BUILT_IN, limit)


def read_questions(
    path: str | Path, limit: int | None = None, reporter: Reporter | None = None
) -> list[dict[str, Any]]:
    """At most `limit` rows with `messages` (user turns) from a prompt file or a dataset folder: of a suite evenly from
    all categories, else the first ones.

    Bad rows are logged as warnings; raises BadInput when there is no good one.
    """
    path = Path(path)
    rows = _from_folder(path, limit) if path.is_dir() else _from_file(path, limit, reporter or ConsoleReporter())
    if not rows:
        raise BadInput(f"{path.name}: contains no question.")
    return rows


def spread_over_categories(rows: Iterable[dict[str, Any]], limit: int) -> list[dict[str, Any]]:
    """`limit` rows, taken in turn from each category, in their original order."""
    by_category: dict[str, list[int]] = {}
    rows = list(rows)
    for number, row in enumerate(rows):
        by_category.setdefault(row.get("category", ""), []).append(number)
    in_turn = chain.from_iterable(zip_longest(*by_category.values()))
    chosen = [number for number in in_turn if number is not None][:limit]
    return [rows[number] for number in sorted(chosen)]


def turns(row: dict[str, Any]) -> tuple[str, list[str]]:
    """(system prompt, user turns) of a row."""
    chat = make_conversation_from_row(row)
    return chat.system, chat.users


def _from_folder(folder: Path, limit: int | None) -> list[dict[str, Any]]:
    if limit is None or not read_summary(folder).get("suite"):
        return list(read_rows(folder, limit))
    return spread_over_categories(read_rows(folder), limit)


def _from_file(path: Path, limit: int | None, reporter: Reporter) -> list[dict[str, Any]]:
    rows = []
    for row in read_prompts(path, limit):
        if isinstance(row, BadRow):
            reporter.log(f"{path.name}, line {row.line}: left out, {row.reason}", "warning")
        else:
            rows.append(row.to_json())
    return rows

"""Import a prompt file into a data set folder, with a report of all omitted rows."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpus.prompts import read_prompts
from corpus.rows import DEFAULT_MAX_ROWS, BadRow, Files
from corpus.shards import ShardWriter, length_bucket, write_summary
from speculoos.errors import BadInput
from speculoos.files import new_file, new_folder
from speculoos.reporting import Reporter, check_stop

REPORTED = 200
CATEGORIES = 10_000
"""Maximum number of counted categories."""
MAX_UNPACKED_BYTES, UNPACKED_TIMES = 1 << 30, 100
"""Maximum size of the data set: bytes, or multiple of the file's size, whichever is larger."""
EVERY = 500


def import_prompts(
    files: Files,
    folder: str | Path,
    reporter: Reporter,
    *,
    original_name: str = "",
    size: int | None = None,
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
    mapping: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Import a file, or several of `size` bytes in total, into the data set folder `folder`; `mapping` assigns columns
    with other names to fields (`corpus.mapping`). Returns the report:

    `rows_read`, `rows` (good), `bad_rows`, `bad` (the first 200 as {line, reason}; all are in `bad.jsonl`),
    `turns` (rows by number of user turns), `categories`, `characters`, `lengths_in_characters` ([max, rows] by powers
    of two).
    Raises BadInput when a file cannot be read or none contains a prompt; the folder is not created then.
    """
    source = PromptSource.of(files, original_name, size, "prompt")
    rows = read_prompts(files, limit, max_rows, mapping)
    return write_rows(source, rows, folder, reporter, ImportReport(), kind="prompts")


@dataclass(frozen=True)
class PromptSource:
    """The imported file: display name, size in bytes, and the noun for one row."""

    name: str
    size: int
    noun: str

    @classmethod
    def of(cls, files: Files, name: str, size: int | None, noun: str) -> "PromptSource":
        """For a single file, an empty name and a size of None are taken from it."""
        path = Path(files) if isinstance(files, str | Path) else Path()
        if size is None:
            size = path.stat().st_size if path.is_file() else 0  # the reader reports a missing file
        return cls(name or path.name, size, noun)


def write_rows(
    source: PromptSource,
    rows: Iterable[Any],
    folder: str | Path,
    reporter: Reporter,
    report: "ImportReport",
    **summary: Any,
) -> dict[str, Any]:
    """Write good rows to the data set folder `folder` and bad ones to its `bad.jsonl`; `dataset.json` gets `summary`
    and the report, which is returned. Raises BadInput when no row is good."""
    max_size = max(MAX_UNPACKED_BYTES, UNPACKED_TIMES * source.size)
    with new_folder(Path(folder), replace=True) as building, new_file(building / "bad.jsonl") as bad:
        with ShardWriter(building) as shards:
            for row in rows:
                report.add(row)
                if report.size > max_size:
                    raise BadInput(
                        f"{source.name}: unpacks to more than {max_size >> 20:,} MiB; give a smaller part of it."
                    )
                if isinstance(row, BadRow):
                    bad.write(json.dumps({"line": row.line, "reason": row.reason}, ensure_ascii=False) + "\n")
                else:
                    shards.add(row.to_json())
                if report.read % EVERY == 0:
                    reporter.progress(report.read, None, "rows", f"{report.bad_rows} bad")
                    check_stop(reporter)
        figures = report.to_json()
        if not report.rows:
            first = f" The first: line {report.bad[0]['line']}, {report.bad[0]['reason']}." if report.bad else ""
            raise BadInput(f"{source.name}: no usable {source.noun} among {report.read} rows.{first}")
        write_summary(building, source=source.name, **summary, **figures)
    reporter.progress(report.read, report.read, "rows", f"{report.bad_rows} bad")
    return figures


class ImportReport:
    """Statistics of an import."""

    def __init__(self) -> None:
        self.rows = self.bad_rows = self.characters = self.size = 0
        self.bad: list[dict[str, Any]] = []
        self.turns: Counter[str] = Counter()
        self.categories: Counter[str] = Counter()
        self.lengths_in_characters: Counter[int] = Counter()

    @property
    def read(self) -> int:
        return self.rows + self.bad_rows

    def add(self, row: Any) -> None:
        if isinstance(row, BadRow):
            self.bad_rows += 1
            if len(self.bad) < REPORTED:
                self.bad.append({"line": row.line, "reason": row.reason})
            return
        self.rows += 1
        self.turns[str(sum(m["role"] == "user" for m in row.messages))] += 1
        characters = sum(len(m["content"]) for m in row.messages)
        self.characters += characters
        self.lengths_in_characters[length_bucket(characters)] += 1
        self.size += characters + sum(map(len, getattr(row, "reference", ())))
        if row.category and (row.category in self.categories or len(self.categories) < CATEGORIES):
            self.categories[row.category] += 1

    def to_json(self) -> dict[str, Any]:
        """See `import_prompts`."""
        return {
            "rows_read": self.read,
            "rows": self.rows,
            "bad_rows": self.bad_rows,
            "bad": self.bad,
            "turns": dict(self.turns),
            "categories": dict(self.categories.most_common(50)),
            "characters": self.characters,
            "lengths_in_characters": sorted(self.lengths_in_characters.items()),
        }

"""Import a file of prompts or of answered conversations into a dataset folder, with a report of all omitted rows.

Answered conversations are rendered, tokenized and masked with the base's chat template; their report includes lengths
and the coverage of draft vocabularies.
"""

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from corpus.answered import Masking, read_answered
from corpus.prompts import read_prompts
from corpus.rows import DEFAULT_MAX_ROWS, BadRow, Files, ImportedRow
from corpus.shards import ShardWriter, length_bucket, write_summary
from speculoos.errors import BadInput
from speculoos.files import new_file, new_folder
from speculoos.reporting import Reporter, check_stop

MAX_REPORTED_ROWS = 200
MAX_CATEGORIES = 10_000
"""Maximum number of counted categories."""
MAX_UNPACKED_BYTES, UNPACKED_TIMES = 1 << 30, 100
"""Maximum size of the dataset: bytes, or multiple of the file's size, whichever is larger."""
PROGRESS_ROWS = 500
VOCABULARY_SIZES = tuple(2**n for n in range(8, 18))
"""Draft vocabulary sizes whose coverage is reported: 256 … 131,072 tokens."""


def import_prompts(
    files: Files,
    folder: str | Path,
    reporter: Reporter,
    *,
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
    mapping: Mapping[str, str] | None = None,
    **source: Any,
) -> dict[str, Any]:
    """Import a file, or several, into the dataset folder `folder`; `mapping` assigns columns with other names to
    fields (`corpus.rows`); `source`: `original_name` and `size`, see `write_rows`. Returns the report:

    `rows_read`, `rows` (good), `bad_rows`, `bad` (the first 200 as {line, reason}; all are in `bad.jsonl`),
    `turns` (rows by number of user turns), `categories`, `characters`, `lengths_in_characters` ([max, rows] by powers
    of two).
    Raises BadInput when a file cannot be read or none contains a prompt; the folder is not created then.
    """
    rows = read_prompts(files, limit, max_rows, mapping)
    return write_rows(files, rows, folder, reporter, "prompt", **source, kind="prompts")


def import_answered(
    files: Files,
    folder: str | Path,
    masking: Masking,
    reporter: Reporter,
    *,
    limit: int | None = None,
    max_rows: int = DEFAULT_MAX_ROWS,
    mapping: Mapping[str, str] | None = None,
    **source: Any,
) -> dict[str, Any]:
    """Like `import_prompts`. The report has in addition `tokens`, `answer_tokens` (in the loss), `cut_answers`,
    `mask_sources` (rows by mask source), `lengths` ([max tokens, rows] by powers of two) and `coverage` ([size,
    fraction of answer tokens covered by the most frequent `size` tokens]). `source` may have the sha256 of the base and
    its tokenizer, for `dataset.json`."""
    rows = read_answered(files, max_rows, mapping, limit, masking)
    return write_rows(files, rows, folder, reporter, "conversation", **source, kind="conversations")


def write_rows(
    files: Files,
    rows: Iterable[ImportedRow | BadRow],
    folder: str | Path,
    reporter: Reporter,
    noun: str,
    *,
    original_name: str = "",
    size: int | None = None,
    kind: str,
    **summary: Any,
) -> dict[str, Any]:
    """Write good rows to the dataset folder `folder` and bad ones to its `bad.jsonl`; `dataset.json` gets `summary`
    and the report, which is returned. A missing name and size (in bytes) are those of a single file; `noun` is that of
    one row. Raises BadInput when no row is good."""
    path = Path(files) if isinstance(files, str | Path) else Path()
    name = original_name or path.name
    if size is None:
        size = path.stat().st_size if path.is_file() else 0  # the reader reports a missing file
    max_size, report = max(MAX_UNPACKED_BYTES, UNPACKED_TIMES * size), ImportReport()
    with new_folder(Path(folder), replace=True) as building, new_file(building / "bad.jsonl") as bad:
        with ShardWriter(building) as shards:
            for row in rows:
                report.add(row)
                if report.size > max_size:
                    raise BadInput(f"{name}: unpacks to more than {max_size >> 20:,} MiB; import a smaller part of it.")
                if isinstance(row, BadRow):
                    bad.write(json.dumps({"line": row.line, "reason": row.reason}, ensure_ascii=False) + "\n")
                else:
                    shards.add(row.to_json())
                if report.read % PROGRESS_ROWS == 0:
                    reporter.progress(report.read, None, "rows", f"{report.bad_rows} bad")
                    check_stop(reporter)
        report_json = report.to_json(with_tokens=kind == "conversations")
        if not report.rows:
            first = f" The first: line {report.bad[0]['line']}, {report.bad[0]['reason']}." if report.bad else ""
            raise BadInput(f"{name}: no usable {noun} among {report.read} rows.{first}")
        write_summary(building, source=name, kind=kind, **summary, **report_json)
    reporter.progress(report.read, report.read, "rows", f"{report.bad_rows} bad")
    return report_json


class ImportReport:
    """Statistics of an import: see `import_prompts` and `import_answered`."""

    def __init__(self) -> None:
        self.rows = self.bad_rows = self.characters = self.size = 0
        self.tokens = self.answer_tokens = self.cut_answers = 0
        self.bad: list[dict[str, Any]] = []
        self.turns: Counter[str] = Counter()
        self.categories: Counter[str] = Counter()
        self.lengths_in_characters: Counter[int] = Counter()
        self.mask_sources: Counter[str] = Counter()
        self.lengths: Counter[int] = Counter()
        self.token_counts: Counter[int] = Counter()

    @property
    def read(self) -> int:
        return self.rows + self.bad_rows

    def add(self, row: ImportedRow | BadRow) -> None:
        if isinstance(row, BadRow):
            self.bad_rows += 1
            if len(self.bad) < MAX_REPORTED_ROWS:
                self.bad.append({"line": row.line, "reason": row.reason})
            return
        self.rows += 1
        self.turns[str(sum(m["role"] == "user" for m in row.messages))] += 1
        characters = sum(len(m["content"]) for m in row.messages)
        self.characters += characters
        self.lengths_in_characters[length_bucket(characters)] += 1
        self.size += characters + sum(map(len, row.reference)) + 8 * len(row.token_ids)  # approximate size as JSON
        if row.category and (row.category in self.categories or len(self.categories) < MAX_CATEGORIES):
            self.categories[row.category] += 1
        self.cut_answers += row.cut
        if row.token_ids:
            self.tokens += len(row.token_ids)
            self.mask_sources[row.mask_source] += 1
            self.lengths[length_bucket(len(row.token_ids))] += 1
        for start, end in row.loss_spans:
            self.answer_tokens += end - start
            self.token_counts.update(row.token_ids[start:end])

    def to_json(self, with_tokens: bool = False) -> dict[str, Any]:
        report: dict[str, Any] = {
            "rows_read": self.read,
            "rows": self.rows,
            "bad_rows": self.bad_rows,
            "bad": self.bad,
            "turns": dict(self.turns),
            "categories": dict(self.categories.most_common(50)),
            "characters": self.characters,
            "lengths_in_characters": sorted(self.lengths_in_characters.items()),
        }
        if with_tokens:
            report |= {
                "tokens": self.tokens,
                "answer_tokens": self.answer_tokens,
                "cut_answers": self.cut_answers,
                "mask_sources": dict(self.mask_sources),
                "lengths": sorted(self.lengths.items()),
                "coverage": self._coverage(),
            }
        return report

    def _coverage(self) -> list[tuple[int, float]]:
        """[(size, fraction of answer tokens covered)] up to the size that covers all."""
        counts = [count for _, count in self.token_counts.most_common()]
        sizes = [size for size in VOCABULARY_SIZES if size < len(counts)] + [len(counts)]
        return [(size, round(sum(counts[:size]) / max(self.answer_tokens, 1), 4)) for size in sizes]

"""Streaming readers of JSONL, JSON, CSV and parquet files; each record has its line number.

Handles formats and limits, not the content of records. An unreadable record is returned as `UnreadableRecord` with a
reason, and reading continues with the next one.
"""

import csv
import io
import json
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from corpus.json_array import JsonArray, json_error_message
from corpus.records import MAX_ROW_BYTES, Record, UnreadableRecord, too_long
from speculoos.errors import BadInput

BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
FORMATS = "JSONL, JSON, CSV or parquet"
RECORD_LINES = 10_000
"""Maximum lines of one CSV row: an unclosed quote would consume the rest of the file."""
BLANK_LINES = 1_000_000
"""Maximum blank lines of a file, which are not counted as rows."""


def read_records(path: str | Path, fields: Collection[str] | None = None) -> Iterator[Record | UnreadableRecord]:
    """All records of a file, in order. Raises BadInput when the file as a whole is unreadable.

    Of columnar files, only the columns whose lower-case name is in `fields` are read.
    """
    path = Path(path)
    try:
        kind = detect(path)
        return _parquet(path, fields) if kind == "parquet" else READERS[kind](path)
    except OSError as error:
        raise BadInput(f"{path.name}: cannot be read ({error.strerror or error}).") from None


def detect(path: Path) -> str:
    """jsonl, json, csv or parquet, by the first bytes, then by the file extension."""
    with open(path, "rb") as handle:
        head = handle.read(4096)
    if head[:4] == b"PAR1":
        return "parquet"
    if compression := next((name for mark, name in PACKED.items() if head.startswith(mark)), ""):
        raise BadInput(f"{path.name}: is packed ({compression}); unpack it, and give the {FORMATS} file that is in it.")
    if head[:2] in UTF16:
        raise BadInput(f"{path.name}: is UTF-16; save it as UTF-8.")
    if not head.removeprefix(BOM).strip() and not _has_text(path):
        raise BadInput(f"{path.name}: is empty.")
    suffix = path.suffix.lower()
    if suffix in (".csv", ".tsv"):
        return "csv"
    return _detect_json(head.removeprefix(BOM).lstrip(), suffix, path)


def _has_text(path: Path) -> bool:
    """Whether a file that begins with many blanks has any other content."""
    with open(path, "rb") as handle:
        return any(chunk.removeprefix(BOM).strip() for chunk in iter(lambda: handle.read(1 << 16), b""))


def _detect_json(head: bytes, suffix: str, path: Path) -> str:
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if head[:1] == b"[":
        return "json"
    if suffix == ".json":
        return "jsonl" if _is_object(next(iter(head.splitlines()), b"")) else "json"
    if head[:1] == b"{":
        return "jsonl"
    raise BadInput(f"{path.name}: unknown file format; give {FORMATS}.")


def _is_object(line: bytes) -> bool:
    try:
        value = json.loads(line)
        return isinstance(value, dict) and "data" not in value
    except (ValueError, RecursionError):
        return False


def lines_of(handle: BinaryIO) -> Iterator[tuple[int, bytes | None]]:
    """(number, bytes) of each line; None for a line longer than MAX_ROW_BYTES, which is skipped."""
    number = 0
    while line := handle.readline(MAX_ROW_BYTES + 1):
        number += 1
        if len(line) <= MAX_ROW_BYTES:
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = handle.readline(MAX_ROW_BYTES)
        yield number, None


def _jsonl(path: Path) -> Iterator[Record | UnreadableRecord]:
    blanks = _Blanks(path)
    with open(path, "rb") as handle:
        for number, line in lines_of(handle):
            if line is None:
                yield UnreadableRecord(number, too_long())
            elif line.strip():
                yield _json_line(number, line.removeprefix(BOM) if number == 1 else line)
            else:
                blanks.count()


class _Blanks:
    """Counts blank lines and raises BadInput for too many."""

    def __init__(self, path: Path):
        self.path, self.lines = path, 0

    def count(self) -> None:
        self.lines += 1
        if self.lines > BLANK_LINES:
            raise BadInput(f"{self.path.name}: has more than {BLANK_LINES:,} blank lines; remove them.")


def _json_line(number: int, line: bytes) -> Record | UnreadableRecord:
    try:
        return Record(number, json.loads(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        return UnreadableRecord(number, f"wrong encoding: byte {error.start + 1} is not UTF-8")
    except RecursionError:
        return UnreadableRecord(number, "nested too deeply")
    except ValueError as error:
        return UnreadableRecord(number, f"broken JSON: {_json_error(error)}")


def _json_error(error: ValueError) -> str:
    """Python's message with the column, without its line number, which is not that of the file."""
    column = f", column {error.colno}" if isinstance(error, json.JSONDecodeError) else ""
    return json_error_message(error) + column


def _json(path: Path) -> Iterator[Record | UnreadableRecord]:
    with open(path, "rb") as raw:
        text = io.TextIOWrapper(raw, encoding="utf-8-sig", errors="surrogateescape")
        reader = JsonArray(text)
        yield from reader.elements() if reader.opens("[") else _json_object(path, reader)


def _json_object(path: Path, reader: JsonArray) -> Iterator[Record | UnreadableRecord]:
    """A JSON file with a single object. Raises BadInput for other values."""
    if not reader.opens("{"):
        raise BadInput(f"{path.name}: broken JSON: neither an array nor an object.")
    try:
        yield from reader.members()
    except RecursionError:
        raise BadInput(f"{path.name}: nested too deeply.") from None
    except ValueError as error:
        raise BadInput(f"{path.name}: broken JSON: {error}.") from None


def _csv(path: Path) -> Iterator[Record | UnreadableRecord]:
    csv.field_size_limit(MAX_ROW_BYTES)
    blanks = _Blanks(path)
    with open(path, "rb") as handle:
        source = _CsvLines(handle)
        reader = csv.reader(source, delimiter=_delimiter(path), strict=True)
        header = _header(path, reader, source)
        while (item := _csv_row(reader, source, header)) is not None:
            if item:
                yield item
            else:
                blanks.count()


def _header(path: Path, reader: Any, source: "_CsvLines") -> list[str]:
    """Names of the columns. Raises BadInput for a broken header, since rows are meaningless without it."""
    try:
        return [name.strip() for name in next(reader, [])]
    except csv.Error as error:
        raise BadInput(f"{path.name}: broken CSV: {_csv_reason(error, source)}, in the header.") from None


def _delimiter(path: Path) -> str:
    """Tab for .tsv; semicolon if the header has semicolons and no comma, as in European spreadsheets; else comma."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with open(path, "rb") as handle:
        header = handle.readline(MAX_ROW_BYTES)
    return ";" if b";" in header and b"," not in header else ","


class _CsvLines:
    """Decoded lines for csv.reader, which joins them into rows; `problem` is an error in the current row.

    Tracks where the last unclosed quote was opened, and ends a row that exceeds the limits because of it.
    """

    def __init__(self, handle: BinaryIO):
        self.lines, self.number = lines_of(handle), 0
        self.start_row()

    def start_row(self) -> None:
        self.problem, self.size, self.first, self.read = "", 0, self.number + 1, []

    def __iter__(self) -> "_CsvLines":
        return self

    def __next__(self) -> str:
        if self.size > MAX_ROW_BYTES or self.number - self.first >= RECORD_LINES:
            raise csv.Error(self.unclosed(f"within {MAX_ROW_BYTES >> 20} MiB or {RECORD_LINES:,} lines"))
        self.number, line = next(self.lines)
        self.read.append(self._text(line))
        self.size += len(line or b"")
        return self.read[-1]

    def unclosed(self, where: str) -> str:
        """The message for an unclosed quote: the last one of the row, ignoring doubled (escaped) ones."""
        before = "".join(self.read).replace('""', "").rpartition('"')[0]
        return f"a quote that opens in line {self.first + before.count(chr(10))} is not closed {where}"

    def _text(self, line: bytes | None) -> str:
        if line is None:
            self.problem = too_long()
            return "\n"
        try:
            return line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            self.problem = f"wrong encoding: byte {error.start + 1} is not UTF-8"
            return line.decode("utf-8", errors="replace")


def _csv_reason(error: csv.Error, source: _CsvLines) -> str:
    return source.unclosed("by the end of the file") if "end of data" in str(error) else str(error)


def _csv_row(reader: Any, source: _CsvLines, header: list[str]) -> Record | UnreadableRecord | bool | None:
    """The next row; False for a blank line, None at the end."""
    source.start_row()
    start = source.first
    try:
        cells = next(reader)
    except StopIteration:
        return None
    except csv.Error as error:
        lines = f", lines {start} to {source.number} are left out" if source.number > start else ""
        return UnreadableRecord(start, f"broken CSV: {_csv_reason(error, source)}{lines}")
    if source.problem:
        return UnreadableRecord(start, source.problem)
    if not cells:
        return False
    if len(cells) > len(header):
        return UnreadableRecord(start, f"{len(cells)} columns where the header has {len(header)}")
    return Record(start, dict(zip(header, cells, strict=False)))


def _parquet(path: Path, fields: Collection[str] | None) -> Iterator[Record | UnreadableRecord]:
    from corpus.parquet_rows import read_parquet  # imports numpy and pyarrow only when needed

    return read_parquet(path, fields)


READERS = {"jsonl": _jsonl, "json": _json, "csv": _csv}

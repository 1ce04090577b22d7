"""Streaming readers of JSONL, JSON, CSV and parquet files; each record has its line number.

Handles formats and limits, not the content of records. An unreadable record is returned as `UnreadableRecord` with a
reason, and reading continues with the next one.
"""

import csv
import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, TextIO

from speculoos.errors import BadInput

MAX_ROW_BYTES = 1 << 20
BOM = b"\xef\xbb\xbf"
UTF16 = (b"\xff\xfe", b"\xfe\xff")
PACKED = {b"\x1f\x8b": "gzip", b"PK\x03\x04": "zip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bzip2", b"\xfd7zXZ": "xz"}
FORMATS = "JSONL, JSON, CSV or parquet"
RECORD_LINES = 10_000
"""Maximum lines of one CSV row: an unclosed quote would consume the rest of the file."""
CHUNK = 1 << 16
ARRAY = re.compile(r'\s*(?:\[|\{.*?(?<!\\)"data"\s*:\s*\[)', re.DOTALL)
"""The beginning of a JSON array, or of an object up to the array called `data`."""
FIRST, NEXT, END = re.compile(r"\s*"), re.compile(r"\s*,\s*"), re.compile(r"\s*\]")


@dataclass(frozen=True, slots=True)
class Record:
    """One record: parsed `value` and 1-based `line`, which is the record's number in JSON arrays and parquet."""

    line: int
    value: Any


@dataclass(frozen=True, slots=True)
class UnreadableRecord:
    """An unreadable record and the reason."""

    line: int
    reason: str


Records = Iterator[Record | UnreadableRecord]


def too_long() -> str:
    """The reason for a record longer than MAX_ROW_BYTES."""
    return f"longer than {MAX_ROW_BYTES >> 20} MiB"


def read_records(path: str | Path, fields: Collection[str] | None = None) -> Records:
    """All records of a file, in order. Raises BadInput when the file as a whole is unreadable.

    Of columnar files, only the columns whose lower-case name is in `fields` are read.
    """
    path = Path(path)
    try:
        kind = detect(path)
    except OSError as error:
        raise BadInput(f"{path.name}: cannot be read ({error.strerror or error}).") from None
    if kind == "parquet":
        from corpus.parquet_rows import read_parquet  # imports numpy and pyarrow only when needed

        return read_parquet(path, fields)
    return {"jsonl": _jsonl, "json": _json, "csv": _csv}[kind](path)


def detect(path: Path) -> str:
    """jsonl, json, csv or parquet, by the first bytes, then by the file extension."""
    with open(path, "rb") as handle:
        head = handle.read(4096)
    if head[:4] == b"PAR1":
        return "parquet"
    if compression := next((name for mark, name in PACKED.items() if head.startswith(mark)), ""):
        raise BadInput(
            f"{path.name}: is compressed ({compression}); decompress it and import the {FORMATS} file in it."
        )
    if head[:2] in UTF16:
        raise BadInput(f"{path.name}: is UTF-16; save it as UTF-8.")
    head, suffix = head.removeprefix(BOM).lstrip(), path.suffix.lower()
    if not head:
        raise BadInput(f"{path.name}: is empty.")
    if suffix in (".csv", ".tsv"):
        return "csv"
    if suffix in (".jsonl", ".ndjson"):
        return "jsonl"
    if head[:1] == b"[":
        return "json"
    if suffix == ".json":
        return "jsonl" if _is_object(head.splitlines()[0]) else "json"
    if head[:1] == b"{":
        return "jsonl"
    raise BadInput(f"{path.name}: unknown file format; expected {FORMATS}.")


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


def _jsonl(path: Path) -> Records:
    with open(path, "rb") as handle:
        for number, line in lines_of(handle):
            if line is None:
                yield UnreadableRecord(number, too_long())
            elif line.strip():
                yield _json_line(number, line.removeprefix(BOM) if number == 1 else line)


def _json_line(number: int, line: bytes) -> Record | UnreadableRecord:
    try:
        return Record(number, json.loads(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        return UnreadableRecord(number, f"wrong encoding: byte {error.start + 1} is not UTF-8")
    except (ValueError, RecursionError) as error:
        return UnreadableRecord(number, _json_reason(error))


def _json_reason(error: ValueError | RecursionError) -> str:
    """Python's message without its position, which is not that of the file."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    return f"invalid JSON: {error.msg.removesuffix(' at') if isinstance(error, json.JSONDecodeError) else error}"


def _json(path: Path) -> Records:
    """An array of records, or an object that is a record or has an array of records called `data`. Invalid UTF-8 bytes
    become lone surrogates, which are refused with the row."""
    with open(path, encoding="utf-8-sig", errors="surrogateescape") as text:
        head = text.read(MAX_ROW_BYTES + 1)
        if start := ARRAY.match(head):
            yield from _elements(text, head, start.end())
            return
        try:
            if len(head) > MAX_ROW_BYTES:
                raise ValueError(f"one object {too_long()}")
            value = json.loads(head)
        except (ValueError, RecursionError) as error:
            raise BadInput(f"{path.name}: {_json_reason(error)}.") from None
        if not isinstance(value, dict):
            raise BadInput(f"{path.name}: invalid JSON: neither an array nor an object.")
        yield Record(1, value)


def _elements(text: TextIO, buffer: str, at: int) -> Records:
    """The elements of a JSON array: the first is in `buffer` at index `at`, the others follow and go on in `text`.
    Memory is bounded by the largest element. An error ends the reading, since the next element cannot be found."""
    number, decode = 1, json.JSONDecoder().raw_decode
    while not END.match(buffer, at):
        try:
            separator = (NEXT if number > 1 else FIRST).match(buffer, at)
            if separator is None:
                raise ValueError("a comma or ] is missing")
            value, end = decode(buffer, separator.end())
            complete = end < len(buffer)  # else a number may go on in the next chunk
        except (ValueError, RecursionError) as error:
            size, deep = len(buffer) - at, isinstance(error, RecursionError)
            if not deep and size <= MAX_ROW_BYTES and (chunk := text.read(max(CHUNK, size))):
                buffer, at = buffer[at:] + chunk, 0
                continue
            reason = f"{too_long()}, or broken" if size > MAX_ROW_BYTES and not deep else _json_reason(error)
            yield UnreadableRecord(number, f"{reason}; the rest of the file is not read")
            return
        if not complete and (chunk := text.read(CHUNK)):
            buffer, at = buffer[at:] + chunk, 0
            continue
        yield Record(number, value)
        number, at = number + 1, end


def _csv(path: Path) -> Records:
    csv.field_size_limit(MAX_ROW_BYTES)
    with open(path, "rb") as handle:
        lines = _CsvLines(handle)
        reader = csv.reader(lines, delimiter=_delimiter(path), strict=True)
        header: list[str] | None = None
        while True:
            first = lines.start_row()
            try:
                cells = next(reader, None)
            except csv.Error as error:
                cause = "a quote is not closed by the end of the file" if "end of data" in str(error) else error
                if header is None:
                    raise BadInput(f"{path.name}: broken CSV: {cause}, in the header.") from None
                left_out = f", lines {first} to {lines.number} are left out" if lines.number > first else ""
                yield UnreadableRecord(first, f"broken CSV: {cause}{left_out}")
                continue
            if cells is None:
                return
            if header is None:
                header = [name.strip() for name in cells]
            elif lines.problem:
                yield UnreadableRecord(first, lines.problem)
            elif len(cells) > len(header):
                yield UnreadableRecord(first, f"{len(cells)} columns where the header has {len(header)}")
            elif cells:
                yield Record(first, dict(zip(header, cells, strict=False)))


def _delimiter(path: Path) -> str:
    """Tab for .tsv; semicolon if the header has semicolons and no comma, as in European spreadsheets; else comma."""
    if path.suffix.lower() == ".tsv":
        return "\t"
    with open(path, "rb") as handle:
        header = handle.readline(MAX_ROW_BYTES)
    return ";" if b";" in header and b"," not in header else ","


class _CsvLines:
    """Decoded lines for csv.reader, which joins them into rows. Ends a row that exceeds the limits because of an
    unclosed quote; `problem` is an error in the current row."""

    def __init__(self, handle: BinaryIO):
        self.lines, self.number = lines_of(handle), 0

    def start_row(self) -> int:
        """The number of the row's first line."""
        self.problem, self.size, self.first = "", 0, self.number + 1
        return self.first

    def __iter__(self) -> "_CsvLines":
        return self

    def __next__(self) -> str:
        if self.size > MAX_ROW_BYTES or self.number - self.first >= RECORD_LINES:
            raise csv.Error(f"a quote is not closed within {MAX_ROW_BYTES >> 20} MiB or {RECORD_LINES:,} lines")
        self.number, line = next(self.lines)
        if line is None:
            self.problem = too_long()
            return "\n"
        self.size += len(line)
        try:
            return line.decode("utf-8-sig" if self.number == 1 else "utf-8")
        except UnicodeDecodeError as error:
            self.problem = f"wrong encoding: byte {error.start + 1} is not UTF-8"
            return line.decode("utf-8", errors="replace")

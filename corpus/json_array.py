"""Streaming reader of JSON arrays, and of objects that contain one: memory is bounded by the largest element."""

import io
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from corpus.records import MAX_ROW_BYTES, Record, UnreadableRecord, too_long

CHUNK = 1 << 16
SURROGATES = re.compile("[\udc80-\udcff]")


class JsonArray:
    """Reads from `text`, opened with errors=surrogateescape: invalid UTF-8 bytes become lone surrogates."""

    def __init__(self, text: io.TextIOBase):
        self.text, self.buffer, self.at, self.line = text, "", 0, 1
        self.offset = 0  # characters passed so far
        self.decoder = json.JSONDecoder()

    def opens(self, mark: str) -> bool:
        """Consume the next non-space character if it is `mark`; whether it was."""
        if self._skip_whitespace() != mark:
            return False
        self._advance(self.at + 1)
        return True

    def members(self) -> Iterator[Record | UnreadableRecord]:
        """One JSON object: a single record, or {"data": [record, …]}, numbered from 1.

        Raises ValueError or RecursionError when the object is invalid or, without such a list, too long.
        """
        fields: dict[str, Any] = {}
        size, more = 0, not self.opens("}")
        while more:
            self._skip_whitespace()
            key = self._value()
            if not isinstance(key, str) or not self.opens(":"):
                raise ValueError(f"a name and a colon are missing in line {self.line}")
            if key == "data" and self.opens("["):
                for number, record in enumerate(self.elements(), 1):
                    yield replace(record, line=number, **({"part": 0} if isinstance(record, Record) else {}))
                return
            self._skip_whitespace()
            before = self.offset
            fields[key] = self._value()
            size += self.offset - before
            if size > MAX_ROW_BYTES:
                raise ValueError(f"one object {too_long()}")
            more = self.opens(",")
            if not more and not self.opens("}"):
                raise ValueError(f"a comma or }} is missing in line {self.line}")
        if self._skip_whitespace():
            raise ValueError(f"something follows the object in line {self.line}")
        yield _checked(1, fields)

    def elements(self) -> Iterator[Record | UnreadableRecord]:
        if self.opens("]"):
            return
        start = part = 0
        while True:
            self._skip_whitespace()
            start, part = self.line, part + 1 if self.line == start else 0
            try:
                value = self._value()
            except (ValueError, RecursionError) as error:
                yield UnreadableRecord(start, _array_reason(error))
                return
            yield _checked(start, value, part)
            if not self.opens(","):
                if not self.opens("]"):
                    yield UnreadableRecord(
                        self.line, "broken JSON: a comma or ] is missing, the rest of the file is not read"
                    )
                return

    def _skip_whitespace(self) -> str:
        while True:
            end = self.at
            while end < len(self.buffer) and self.buffer[end] in " \t\r\n":
                end += 1
            self._advance(end)
            if self.at < len(self.buffer) or not self._more():
                return self.buffer[self.at : self.at + 1]

    def _value(self) -> Any:
        while True:
            try:
                value, end = self.decoder.raw_decode(self.buffer, self.at)
                if end < len(self.buffer) or not self._more():  # a number at the buffer's end may continue
                    self._advance(end)
                    return value
            except json.JSONDecodeError:
                if len(self.buffer) - self.at > MAX_ROW_BYTES:
                    raise ValueError(f"{too_long()}, or broken") from None
                if not self._more():
                    raise

    def _more(self) -> bool:
        chunk = self.text.read(max(CHUNK, len(self.buffer) - self.at))
        self.buffer, self.at = self.buffer[self.at :] + chunk, 0
        return bool(chunk)

    def _advance(self, end: int) -> None:
        self.line += self.buffer.count("\n", self.at, end)
        self.offset += end - self.at
        self.at = end


def json_error_message(error: Exception) -> str:
    """The message of a JSON error, without its position."""
    return error.msg.removesuffix(" at") if isinstance(error, json.JSONDecodeError) else str(error)


def _array_reason(error: Exception) -> str:
    text = "nested too deeply" if isinstance(error, RecursionError) else f"broken JSON: {json_error_message(error)}"
    return f"{text}; the rest of the file is not read"


def _checked(line: int, value: Any, part: int = 0) -> Record | UnreadableRecord:
    """The record, or a Broken one if it contains lone surrogates, i.e. invalid UTF-8."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return UnreadableRecord(line, "nested too deeply")
    if SURROGATES.search(text):
        return UnreadableRecord(line, "wrong encoding: some bytes are not UTF-8")
    return Record(line, value, part)

"""A JSON array read element by element, so that a large file needs the memory of its largest element only."""

import io
import json
from collections.abc import Iterator
from typing import Any

from corpus.records import MAX_ROW_BYTES, Broken, Record

CHUNK = 1 << 16


class JsonArray:
    """Reads from `text`, whose bytes that are not UTF-8 came through as lone surrogates (errors=surrogateescape)."""

    def __init__(self, text: io.TextIOBase):
        self.text, self.buffer, self.at, self.line = text, "", 0, 1
        self.decoder = json.JSONDecoder()

    def opens(self, mark: str) -> bool:
        """True when the next character that is no space is `mark`, which is then passed over."""
        if self._peek() != mark:
            return False
        self._advance(self.at + 1)
        return True

    def rest(self) -> str:
        return self.buffer[self.at :] + self.text.read()

    def elements(self) -> Iterator[Record | Broken]:
        if self.opens("]"):
            return
        while True:
            self._peek()
            start = self.line
            try:
                value = self._value()
            except (ValueError, RecursionError) as error:
                yield Broken(start, _array_reason(error))
                return
            yield _checked(start, value)
            if not self.opens(","):
                if not self.opens("]"):
                    yield Broken(self.line, "broken JSON: a comma or ] is missing, the rest of the file is not read")
                return

    def _peek(self) -> str:
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
                if end < len(self.buffer) or not self._more():  # a number at the buffer's end may go on
                    self._advance(end)
                    return value
            except ValueError:
                if len(self.buffer) - self.at > MAX_ROW_BYTES:
                    raise ValueError(f"longer than {MAX_ROW_BYTES >> 20} MiB, or broken") from None
                if not self._more():
                    raise

    def _more(self) -> bool:
        piece = self.text.read(max(CHUNK, len(self.buffer) - self.at))
        self.buffer, self.at = self.buffer[self.at :] + piece, 0
        return bool(piece)

    def _advance(self, end: int) -> None:
        self.line += self.buffer.count("\n", self.at, end)
        self.at = end


def _array_reason(error: Exception) -> str:
    reason = error.msg if isinstance(error, json.JSONDecodeError) else str(error)
    text = "nested too deeply" if isinstance(error, RecursionError) else f"broken JSON: {reason}"
    return f"{text}; the rest of the file is not read"


def _checked(line: int, value: Any) -> Record | Broken:
    """Bytes that are not UTF-8 came through as lone surrogates; they belong to this record alone."""
    if any("\udc80" <= c <= "\udcff" for c in json.dumps(value, ensure_ascii=False)):
        return Broken(line, "wrong encoding: some bytes are not UTF-8")
    return Record(line, value)

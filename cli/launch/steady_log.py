"""Log files of supervisord that tolerate a full disk: bytes that cannot be written are counted and dropped.

supervisord's own handler prints the error to a file on the same disk, fails again and ends with all programs.
"""

import os
from contextlib import suppress
from typing import Any

from supervisor import loggers


class FullDiskLogHandler(loggers.RotatingFileHandler):
    """Writes, rotates and reopens like its parent; logs the number of dropped bytes when writing works again."""

    def __init__(self, filename: str, mode: str = "ab", maxBytes: int = 0, backupCount: int = 0):  # noqa: N803
        loggers.Handler.__init__(self)
        self.baseFilename, self.mode = filename, "ab"
        self.maxBytes, self.backupCount = maxBytes, backupCount
        self.dropped = 0
        self._open()

    def emit(self, record: Any) -> None:
        message = record.msg if self._is_raw(record) else (self.fmt % record.asdict()).encode("utf-8", "replace")
        if self.dropped:
            gap = f"\n[{self.dropped} bytes of log are missing here: they could not be written]\n".encode()
            if self._write(gap):
                self.dropped += len(message)
                return
        self.dropped = self._write(message)
        if not self.dropped:
            with suppress(OSError, ValueError):
                self.doRollover()

    def _is_raw(self, record: Any) -> bool:
        return isinstance(record.msg, bytes) and self.fmt == "%(message)s"

    def _write(self, data: bytes) -> int:
        """Returns the number of bytes that could not be written."""
        try:
            if self.stream is None or self.stream.closed:
                self._open()
            while data:
                data = data[self.stream.write(data) :]
        except (OSError, AttributeError, ValueError):  # disk full, or no file
            pass
        return len(data)

    def _open(self) -> None:
        self.stream, self.closed = None, False
        with suppress(OSError):
            self.stream = open(self.baseFilename, "ab", buffering=0)  # noqa: SIM115 (closed in close)

    def doRollover(self) -> None:  # noqa: N802 (supervisord's name)
        if not self.maxBytes or self.stream.tell() < self.maxBytes:
            return
        self.stream.close()
        for number in range(self.backupCount - 1, 0, -1):
            with suppress(FileNotFoundError):
                os.replace(f"{self.baseFilename}.{number}", f"{self.baseFilename}.{number + 1}")
        if self.backupCount:
            os.replace(self.baseFilename, f"{self.baseFilename}.1")
        self._open()

    def flush(self) -> None:
        """Nothing is buffered."""

    def close(self) -> None:
        if self.stream is not None:
            with suppress(OSError):
                self.stream.close()
        self.closed = True

    def reopen(self) -> None:
        self.close()
        self._open()

    def remove(self) -> None:
        self.close()
        with suppress(OSError):
            os.remove(self.baseFilename)


class ErrorIgnoringStream:
    """A text stream that ignores write errors."""

    def __init__(self, stream: Any):
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def install() -> None:
    """Make supervisord use SteadyHandler for all log files in this process."""
    loggers.RotatingFileHandler = loggers.FileHandler = FullDiskLogHandler  # type: ignore[misc]

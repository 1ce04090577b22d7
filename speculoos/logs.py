"""Logging of all processes: each line has time, level, process, logger and context such as the job and attempt.

Plain text by default, one JSON object per line with SPECULOOS_LOG_FORMAT=json; both mask secrets. Lines go to standard
error or output; write errors are ignored, so that no process ends because of its log.
"""

import json
import logging
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any, TextIO

from speculoos.redaction import RedactingStream, known_secrets, redact
from speculoos.settings import Settings

_context: ContextVar[Mapping[str, Any]] = ContextVar("log_context", default=MappingProxyType({}))
HEAD = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ \S+ \S+( \[[^\]]*\])? ")
_process_context: dict[str, Any] = {}
"""Context of all lines of this process, in every thread: a job's child works for one job only."""


def configure_logging(settings: Settings, process: str, stream: TextIO | None = None, **everywhere: Any) -> None:
    """Log to `stream` (default: standard error) in the format of the settings; replaces an earlier configuration.

    `everywhere`: context of all lines (job=…, attempt=…).
    """
    _process_context.clear()
    _process_context.update(everywhere)
    secrets = known_secrets(settings)
    out = stream or sys.stderr
    handler = logging.StreamHandler(out if isinstance(out, RedactingStream) else RedactingStream(out, secrets))
    handler.setFormatter(RedactedFormatter(process, secrets, settings.log_format == "json"))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.raiseExceptions = False
    for noisy in ("httpx", "httpcore", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@contextmanager
def with_log_context(**subjects: Any) -> Iterator[None]:
    """Add context to lines logged in the block: `with with_log_context(job=job_id, attempt=2): …`."""
    token = _context.set({**_context.get(), **subjects})
    try:
        yield
    finally:
        _context.reset(token)


def message_of(line: str) -> str:
    """The message of a log line without time, level and context; other lines unchanged."""
    if line.startswith('{"time"'):
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(line)["message"])
    return HEAD.sub("", line)


class RedactedFormatter(logging.Formatter):
    """A line of text, `2026-01-31 12:00:00,123 INFO worker-gpu workers.child.main [job=1a2b… attempt=2] message`, or a
    JSON object with the same parts, the time in UTC, and the traceback if any."""

    def __init__(self, process: str, secrets: list[str], as_json: bool):
        super().__init__("%(asctime)s %(levelname)s %(process_name)s %(name)s%(subjects)s %(message)s")
        self.process, self.secrets, self.as_json = process, secrets, as_json

    def format(self, record: logging.LogRecord) -> str:
        context = {**_process_context, **_context.get()}
        if not self.as_json:
            context_text = " ".join(f"{name}={value}" for name, value in context.items())
            record.subjects, record.process_name = f" [{context_text}]" if context_text else "", self.process
            return redact(super().format(record), self.secrets)
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
        fields = {"time": time, "level": record.levelname.lower(), "process": self.process, "logger": record.name}
        fields |= {**context, "message": redact(record.getMessage(), self.secrets)}
        if record.exc_info:
            fields["exception"] = redact(self.formatException(record.exc_info), self.secrets)
        return json.dumps(fields, ensure_ascii=False, default=str)

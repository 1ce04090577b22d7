"""One way to log for all our processes: a line has its time, level, process, and the job, attempt or run it is about.

Plain text by default, one JSON object a line with SPECULOOS_LOG_FORMAT=json. Secrets are hidden in both. Lines go to
standard error or output; a line that cannot be written is dropped, since nothing may end because of its own log.
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

from speculoos.redaction import RedactingStream, redact, secrets
from speculoos.settings import Settings

_about: ContextVar[Mapping[str, Any]] = ContextVar("about", default=MappingProxyType({}))
HEAD = re.compile(r"^\d{4}-\d\d-\d\d [\d:,]+ [A-Z]+ \S+ \S+( \[[^\]]*\])? ")
_everywhere: dict[str, Any] = {}
"""What every line of this process is about: a job's child has no other subject, whichever thread speaks."""


def configure(settings: Settings, process: str, stream: TextIO | None = None, **everywhere: Any) -> None:
    """Send this process's log lines to `stream` (standard error), in the form the settings name.

    `everywhere`: subjects of all its lines (job=…, attempt=…). What was configured before is replaced.
    """
    _everywhere.clear()
    _everywhere.update(everywhere)
    known = secrets(settings)
    out = stream or sys.stderr
    handler = logging.StreamHandler(out if isinstance(out, RedactingStream) else RedactingStream(out, known))
    handler.setFormatter((Lines if settings.log_format == "json" else Text)(process, known))
    logging.basicConfig(level=logging.INFO, handlers=[handler], force=True)
    logging.raiseExceptions = False
    for noisy in ("httpx", "httpcore", "alembic"):
        logging.getLogger(noisy).setLevel(logging.WARNING)


@contextmanager
def about(**subjects: Any) -> Iterator[None]:
    """Lines logged inside are about these: `with about(job=job_id, attempt=2): …`."""
    token = _about.set({**_about.get(), **subjects})
    try:
        yield
    finally:
        _about.reset(token)


def subjects() -> dict[str, Any]:
    """What a line logged now is about."""
    return {**_everywhere, **_about.get()}


def message_of(line: str) -> str:
    """What a line of ours says, without its time, level and subjects; any other line as it is."""
    if line.startswith('{"time"'):
        with suppress(ValueError, KeyError, TypeError):
            return str(json.loads(line)["message"])
    return HEAD.sub("", line)


class Text(logging.Formatter):
    """`2026-01-31 12:00:00,123 INFO worker-gpu workers.supervise.attempt [job=1a2b… attempt=2] message`."""

    def __init__(self, process: str, known: list[str]):
        super().__init__("%(asctime)s %(levelname)s %(process_name)s %(name)s%(subjects)s %(message)s")
        self.process, self.known = process, known

    def format(self, record: logging.LogRecord) -> str:
        words = " ".join(f"{name}={value}" for name, value in subjects().items())
        record.subjects = f" [{words}]" if words else ""
        record.process_name = self.process
        return redact(super().format(record), self.known)


class Lines(logging.Formatter):
    """One JSON object a line: time (UTC), level, process, logger, subjects, message, and the traceback if any."""

    def __init__(self, process: str, known: list[str]):
        super().__init__()
        self.process, self.known = process, known

    def format(self, record: logging.LogRecord) -> str:
        fields = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "process": self.process,
            "logger": record.name,
            **subjects(),
            "message": redact(record.getMessage(), self.known),
        }
        if record.exc_info:
            fields["exception"] = redact(self.formatException(record.exc_info), self.known)
        return json.dumps(fields, ensure_ascii=False, default=str)

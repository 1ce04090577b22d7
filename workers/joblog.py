"""The log file of a job: the output of its processes in home/logs/<job>.log, with rotation.

The child writes to the file directly, so its last lines survive a crash of the worker, and no pipe can break. The
worker checks the size: a full file is copied to <job>.log.1 and truncated in place; the child continues to append.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO

from speculoos.files import new_path
from speculoos.logs import message_of
from speculoos.settings import Settings

MAX_BYTES = 10 * 2**20  # maximum size of the log file, and of the older file
TAIL_BYTES = 8192
LONGEST = 300  # maximum length of a last line


def log_path(settings: Settings, job_id: str) -> Path:
    """The log file of a job."""
    return settings.home / "logs" / f"{job_id}.log"


def rotated_log(log: Path) -> Path:
    """The rotated file of a log."""
    return log.with_name(log.name + ".1")


def open_log(log: Path, attempt: int) -> IO[bytes]:
    """Open the log file for an attempt's output, appending. Raises OSError if that fails."""
    log.parent.mkdir(parents=True, exist_ok=True)
    out = log.open("ab", buffering=0)
    with suppress(OSError):  # a job must not fail because of a header line
        out.write(f"--- attempt {attempt} ---\n".encode())
    return out


def rotate_if_full(log: Path, most: int | None = None) -> bool:
    """Rotate a log larger than `most` bytes (MAX_BYTES); returns whether it was. Lines written between copy and
    truncation are lost. If the log grew past the limit, its last bytes are kept."""
    most = most or MAX_BYTES
    try:
        with log.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= most:
                return False
            file.seek(max(0, size - most))
            target = rotated_log(log)
            try:
                with new_path(target) as new, new.open("wb") as out:
                    shutil.copyfileobj(file, out, 1 << 20)
            except OSError:  # the disk is full
                target.unlink(missing_ok=True)
            file.truncate(0)
        return True
    except OSError:
        return False


def last_line(log: Path) -> str:
    """The last non-empty line of a log, without the supervisor's header lines; "" if there is none."""
    lines = _tail(rotated_log(log)) + _tail(log)
    output = [line.strip() for line in lines if line.strip() and not line.startswith("--- attempt")]
    return message_of(output[-1])[:LONGEST] if output else ""


def _tail(file: Path) -> list[str]:
    try:
        with file.open("rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - TAIL_BYTES))
            return handle.read(TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []

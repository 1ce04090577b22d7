"""The log file of a job: everything its processes print, in home/logs/<job>.log, bounded however much that is.

The child writes to the file itself, so nothing it said last is lost with its worker, and no pipe breaks under it. The
worker looks at the size while it watches: a file that is full becomes <job>.log.1 and is emptied in place, where the
child (which only appends) goes on.
"""

import os
import shutil
from contextlib import suppress
from pathlib import Path
from typing import IO

from speculoos.logs import message_of
from speculoos.settings import Settings

MAX_BYTES = 10 * 2**20
"""Bytes of a log file, and of the older one that is kept."""
TAIL_BYTES = 8192
LONGEST = 300
"""Characters of a last line."""


def path(settings: Settings, job_id: str) -> Path:
    """Where everything a job's processes print is kept."""
    return settings.home / "logs" / f"{job_id}.log"


def older(log: Path) -> Path:
    """What was in the log before it was full."""
    return log.with_name(log.name + ".1")


def begin(log: Path, attempt: int) -> IO[bytes]:
    """The file for an attempt's output, open for appending. Raises OSError when it cannot be made."""
    log.parent.mkdir(parents=True, exist_ok=True)
    out = log.open("ab", buffering=0)
    with suppress(OSError):  # the title of a log that has no room is not worth a job
        out.write(f"--- attempt {attempt} ---\n".encode())
    return out


def bound(log: Path, most: int | None = None) -> bool:
    """Rotate a log that has grown over `most` bytes (MAX_BYTES); whether it had.

    Between copy and cut a few lines may be lost; of a flood that outran the worker the last bytes are kept.
    """
    most = most or MAX_BYTES
    try:
        with log.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= most:
                return False
            file.seek(max(0, size - most))
            _keep(file, older(log))
            file.truncate(0)
        return True
    except OSError:
        return False


def last_line(log: Path) -> str:
    """The last non-empty line of a log that was not written by the supervisor."""
    lines = _tail(older(log)) + _tail(log)
    said = [line.strip() for line in lines if line.strip() and not line.startswith("--- attempt")]
    return message_of(said[-1])[:LONGEST] if said else ""


def _tail(file: Path) -> list[str]:
    try:
        with file.open("rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - TAIL_BYTES))
            return handle.read(TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []


def _keep(file: IO[bytes], target: Path) -> None:
    """Copy the rest of `file` in place of `target`; on a full disk the older log is given up."""
    new = target.with_name(target.name + ".new")
    try:
        with new.open("wb") as out:
            shutil.copyfileobj(file, out, 1 << 20)
        new.replace(target)
    except OSError:
        for left in (new, target):
            left.unlink(missing_ok=True)

"""Log files that programs append to: rotation in place, and the last line."""

import contextlib
import os
import shutil
from pathlib import Path

from speculoos.files import new_path
from speculoos.logs import message_of

TAIL_BYTES = 8192
MAX_LINE_LENGTH = 300  # maximum length of a last line


def rotated_log(log: Path, copy: int = 1) -> Path:
    """A rotated file of a log; copy 1 is the newest."""
    return log.with_name(f"{log.name}.{copy}")


def rotate_if_full(log: Path, max_bytes: int, copies: int = 1) -> bool:
    """Copy a log larger than `max_bytes` to NAME.1 and truncate it in place, so that its program continues in the file;
    returns whether it was. `copies` older files are kept. Lines written between copy and truncation are lost. If it
    grew past the limit, its last bytes are kept; on a full disk, none."""
    try:
        with log.open("r+b") as file:
            size = os.fstat(file.fileno()).st_size
            if size <= max_bytes:
                return False
            file.seek(max(0, size - max_bytes))
            for copy in range(copies - 1, 0, -1):
                with contextlib.suppress(FileNotFoundError):
                    os.replace(rotated_log(log, copy), rotated_log(log, copy + 1))
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
    """The last non-empty line of a log, without the header lines of attempts; "" if there is none."""
    lines = _tail(rotated_log(log)) + _tail(log)
    output = [line.strip() for line in lines if line.strip() and not line.startswith("--- attempt")]
    return message_of(output[-1])[:MAX_LINE_LENGTH] if output else ""


def _tail(file: Path) -> list[str]:
    try:
        with file.open("rb") as handle:
            handle.seek(max(0, os.fstat(handle.fileno()).st_size - TAIL_BYTES))
            return handle.read(TAIL_BYTES).decode(errors="replace").splitlines()
    except OSError:
        return []

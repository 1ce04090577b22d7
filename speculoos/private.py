"""Whose files these are: nothing of a home may be read by other users of the machine.

Prompts, answers, logs and secrets lie in it. Every process of ours that writes calls `keep_private` first; a home that
was made before that is tightened once, at the start.
"""

import contextlib
import logging
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from speculoos.errors import Unavailable
from speculoos.settings import Settings

log = logging.getLogger(__name__)
UMASK = 0o077
OTHERS = 0o077
"""Permission bits of everyone but the owner."""


def keep_private() -> None:
    """From now on this process, and those it starts, make files and folders for their owner alone."""
    os.umask(UMASK)


def allowed(mode: int) -> int:
    """`mode` less what the umask of this process takes away: for files whose library chose their permissions itself."""
    mask = os.umask(UMASK)
    os.umask(mask)
    return mode & ~mask


def tighten(settings: Settings) -> None:
    """Take a home that others may enter away from them, every file and folder, itself last: cut off half-way, it is
    done again. A database file outside of the home too. What belongs to someone else is warned of."""
    try:
        if settings.home.is_dir() and settings.home.stat().st_mode & OTHERS:
            for path in (*_below(settings.home), settings.home):
                _take(path)
        for path in _database_files(settings):
            _take(path)
    except PermissionError as error:
        log.warning(
            "%s can be read by other users of this machine and belongs to another one than this process runs as; "
            "its owner can change that with: chmod -R go-rwx %s",
            *(error.filename or settings.home, settings.home),
        )


def private_folder(folder: Path) -> Path:
    """A folder in a place where everyone may write (/tmp), ours and readable by nobody else; made if new. Raises
    Unavailable when someone else made it first, or a link in its place."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise Unavailable(f"{folder} belongs to another user; ask for its removal, or use another SPECULOOS_HOME.")
    if status.st_mode & OTHERS:
        folder.chmod(0o700)
    return folder


def _below(folder: Path) -> Iterator[Path]:
    for place, folders, files in os.walk(folder):
        yield from (Path(place, name) for name in (*folders, *files))


def _take(path: Path) -> None:
    """Links are left alone: what they lead to may be someone's own folder."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if mode & OTHERS and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)


def _database_files(settings: Settings) -> Iterator[Path]:
    if settings.database_url.startswith("sqlite:///"):
        path = settings.database_url.removeprefix("sqlite:///").partition("?")[0]
        yield from (Path(path + end) for end in ("", "-wal", "-shm"))

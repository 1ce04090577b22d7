"""File permissions: other users of the machine must not read the home folder (prompts, responses, logs, secrets).

Every process that writes calls `set_private_umask` first; home folders with wider permissions are restricted at start.
"""

import contextlib
import logging
import os
import stat
from pathlib import Path

from speculoos.errors import Unavailable
from speculoos.settings import Settings

log = logging.getLogger(__name__)
UMASK = 0o077
OTHERS = 0o077  # permission bits of everyone but the owner


def set_private_umask() -> None:
    """Make this process and its children create files and folders that only their owner can access."""
    os.umask(UMASK)


def apply_umask(mode: int) -> int:
    """`mode` without the bits of this process' umask, for files whose library set permissions itself."""
    mask = os.umask(UMASK)
    os.umask(mask)
    return mode & ~mask


def restrict_permissions(settings: Settings) -> None:
    """Remove other users' access to the home folder, its contents and a SQLite database outside of it.

    The home folder itself comes last, so an interrupted run is repeated. Logs a warning for files of another owner.
    """
    try:
        if settings.home.is_dir() and settings.home.stat().st_mode & OTHERS:
            for parent, folders, files in os.walk(settings.home):
                for name in (*folders, *files):
                    _restrict(Path(parent, name))
            _restrict(settings.home)
        if settings.database_url.startswith("sqlite:///"):
            database = settings.database_url.removeprefix("sqlite:///").partition("?")[0]
            for suffix in ("", "-wal", "-shm"):
                _restrict(Path(database + suffix))
    except PermissionError as error:
        log.warning(
            "%s is readable by other users of this machine and is not owned by the user of this process; "
            "its owner can fix that with: chmod -R go-rwx %s",
            *(error.filename or settings.home, settings.home),
        )


def private_folder(folder: Path) -> Path:
    """Create a folder with mode 0700 where everyone may write (/tmp), or reuse it. Raises Unavailable if another user
    owns it or it is a symbolic link."""
    with contextlib.suppress(FileExistsError):
        folder.mkdir(mode=0o700, parents=True)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid():
        raise Unavailable(f"{folder} belongs to another user; ask for its removal, or use another SPECULOOS_HOME.")
    if status.st_mode & OTHERS:
        folder.chmod(0o700)
    return folder


def _restrict(path: Path) -> None:
    """Symbolic links are skipped: their target may be outside of the home folder."""
    with contextlib.suppress(FileNotFoundError):
        mode = path.lstat().st_mode
        if mode & OTHERS and not stat.S_ISLNK(mode):
            path.chmod(stat.S_IMODE(mode) & ~OTHERS)

"""Lock file of a home folder, held by the process that runs its services."""

import fcntl
import json
import os
from contextlib import suppress
from typing import Any

from speculoos.private import private_folder
from speculoos.settings import Settings

UP, COMMAND = "up", "command"


class HomeLock:
    """An advisory lock that the kernel releases when its holder ends, so a killed `up` never blocks the next one."""

    def __init__(self, settings: Settings):
        private_folder(settings.run_dir)
        settings.home.mkdir(parents=True, exist_ok=True)
        self.path = settings.home / "services.lock"
        self._file: Any = None

    def acquire(self, mode: str, programs: tuple[str, ...]) -> bool:
        """Try once without waiting. Writes pid, mode (up or command) and programs of the holder to the lock file."""
        file = open(self.path, "a+")  # noqa: SIM115 - open while the lock is held
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        file.truncate(0)
        file.write(json.dumps({"pid": os.getpid(), "mode": mode, "programs": programs}))
        file.flush()
        self._file = file
        return True

    def release(self) -> None:
        if self._file:
            self._file.truncate(0)
            self._file.close()
            self._file = None

    def holder(self) -> dict[str, Any]:
        """Contents of the lock file: pid, mode and programs; {} when the lock is free."""
        try:
            with open(self.path) as file:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except FileNotFoundError:
            pass
        except BlockingIOError:
            with suppress(ValueError):
                return json.loads(self.path.read_text())
        return {}

"""Ends a server whose device hangs, so that its supervisor starts it again: nothing inside can free a stuck thread."""

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

log = logging.getLogger(__name__)
EVERY_SECONDS = 1.0
PATIENCE = 5.0
"""Between finding it stuck, when /healthz begins to say so, and the end."""
FROZEN = 10.0
"""A watch that woke up this late was stopped together with what it watches."""
EXIT_CODE = 70


class MemoryWatch:
    """A thread that asks `ill` now and then until `close`. `stuck_seconds`: when the interpreter itself hangs (a call
    of C code that keeps its lock), the process is ended by faulthandler, whose clock needs no interpreter. 0: never."""

    def __init__(self, ill: Callable[[], str], stuck_seconds: float, end: Callable[[str], None]):
        self._ill, self._end = ill, end
        self._whole = 2 * stuck_seconds + PATIENCE
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        if stuck_seconds:
            self._thread.start()

    def close(self) -> None:
        """Watch no more: the server ends in order."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def _run(self) -> None:
        since: float | None = None
        last = time.monotonic()
        while not self._done.wait(EVERY_SECONDS):
            faulthandler.dump_traceback_later(self._whole, exit=True)
            frozen, last = time.monotonic() - last > FROZEN, time.monotonic()
            reason = self._ill()
            if not reason or frozen:
                since = None
            elif since is None:
                since = last
            elif last - since > PATIENCE:
                self._end(reason)
                return
        faulthandler.cancel_dump_traceback_later()


def end_process(reason: str) -> None:
    """Leave at once with a line in the log, and where every thread was."""
    log.critical("%s The server ends itself to be started again.", reason)
    faulthandler.dump_traceback()
    sys.stderr.flush()
    os._exit(EXIT_CODE)

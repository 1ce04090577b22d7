"""Two threads beside the requests. `DeviceWatch` ends a server whose device hangs, so that its supervisor restarts it
(a stuck thread cannot be stopped). `Upkeep` sends the heartbeat while the device works, frees a GPU that a job needs,
fails orphaned runs and stores when API keys were used.
"""

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable

from serving.engine import Engine
from serving.live import LiveRuns
from serving.token import ApiKeys
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import processes
from tracking.db import writing

log = logging.getLogger(__name__)
EVERY_SECONDS, UPKEEP_SECONDS = 1.0, 5.0
FAILURE_GRACE_SECONDS = 5.0
"""Seconds between detecting the failure, which /healthz then reports, and ending the process."""
SUSPENDED_SECONDS = 10.0
"""If the watch wakes up this many seconds late, the whole process was suspended and the device is not at fault."""
EXIT_CODE = 70


class DeviceWatch:
    """A thread that calls `failure` periodically until `close`. If the interpreter itself hangs (C code that holds the
    GIL), faulthandler ends the process: its timer needs no interpreter. `stuck_seconds` 0 disables the watch."""

    def __init__(self, failure: Callable[[], str], stuck_seconds: float, end: Callable[[str], None]):
        self._failure, self._end = failure, end
        self._hang_seconds = 2 * stuck_seconds + FAILURE_GRACE_SECONDS
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watch", daemon=True)
        if stuck_seconds:
            self._thread.start()

    def close(self) -> None:
        """Stop watching; called during a regular shutdown."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(timeout=2)

    def _run(self) -> None:
        since: float | None = None
        last = time.monotonic()
        while not self._done.wait(EVERY_SECONDS):
            faulthandler.dump_traceback_later(self._hang_seconds, exit=True)
            suspended, last = time.monotonic() - last > SUSPENDED_SECONDS, time.monotonic()
            reason = self._failure()
            if not reason or suspended:
                since = None
            elif since is None:
                since = last
            elif last - since > FAILURE_GRACE_SECONDS:
                self._end(reason)
                return
        faulthandler.cancel_dump_traceback_later()


def end_process(reason: str) -> None:
    """Log the reason and the tracebacks of all threads, then exit at once."""
    log.critical("%s The server ends so that its supervisor can restart it.", reason)
    faulthandler.dump_traceback()
    sys.stderr.flush()
    os._exit(EXIT_CODE)


class Upkeep:
    """A thread that works every UPKEEP_SECONDS until `close`."""

    def __init__(self, settings: Settings, engine: Engine, live: LiveRuns, keys: ApiKeys):
        self.settings, self.engine, self.live, self.keys = settings, engine, live, keys
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join(timeout=2)
        try:
            with writing(self.settings) as session:
                processes.delete_heartbeat(session, "inference")
        except SpeculoosError as error:
            log.warning("%s", error)

    def _run(self) -> None:
        while True:
            for work in (self._beat, self.engine.unload_for_job, self.live.fail_orphaned, self.keys.store_uses):
                try:
                    work()
                except SpeculoosError as error:  # such as an unavailable database
                    log.warning("%s", error)
                except BaseException:  # the thread must go on
                    log.exception("Unexpected error in upkeep")
            if self._done.wait(UPKEEP_SECONDS):
                return

    def _beat(self) -> None:
        if not self.engine.failure:
            with writing(self.settings) as session:
                processes.beat(session, "inference", device=self.engine.device, warm_models=len(self.engine.pool))

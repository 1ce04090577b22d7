"""Periodic work of the server: heartbeat (while its device works), freeing a GPU that a job needs, failing forgotten
runs, storing when API keys were used. Does not import torch.
"""

import logging
import threading

from serving.engine import Engine
from serving.live import LiveRuns
from serving.token import ApiKeys
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import processes
from tracking.db import writing

log = logging.getLogger(__name__)
EVERY_SECONDS = 5.0


class Upkeep:
    """A thread that works every EVERY_SECONDS until `close`."""

    def __init__(self, settings: Settings, engine: Engine, live: LiveRuns, keys: ApiKeys):
        self.settings, self.engine, self.live, self.keys = settings, engine, live, keys
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop the thread and delete the heartbeat."""
        self._done.set()
        self._thread.join(timeout=2)
        try:
            with writing(self.settings) as session:
                processes.delete_heartbeat(session, "inference")
        except SpeculoosError as error:
            log.warning("%s", error)

    def _run(self) -> None:
        while True:
            for work in (self._beat, self.engine.unload_for_job, self.live.fail_forgotten, self.keys.store_uses):
                try:
                    work()
                except SpeculoosError as error:  # such as an unavailable database
                    log.warning("%s", error)
                except BaseException:  # the thread must go on
                    log.exception("Unexpected error in upkeep")
            if self._done.wait(EVERY_SECONDS):
                return

    def _beat(self) -> None:
        if not self.engine.failure:
            with writing(self.settings) as session:
                processes.beat(session, "inference", device=self.engine.device, warm_models=len(self.engine.pool))

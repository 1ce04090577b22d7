"""What the server does by the clock: says that it lives (while its device does), gives a GPU back that a job needs,
ends forgotten runs, keeps when API keys were used.

No torch.
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
    """A thread that beats until `close`."""

    def __init__(self, settings: Settings, engine: Engine, live: LiveRuns, keys: ApiKeys):
        self.settings, self.engine, self.live, self.keys = settings, engine, live, keys
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, name="upkeep", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop beating and take the heartbeat away."""
        self._done.set()
        self._thread.join(timeout=2)
        try:
            with writing(self.settings) as db:
                processes.leave(db, "inference")
        except SpeculoosError as error:
            log.warning("%s", error)

    def _run(self) -> None:
        while True:
            for work in (self._beat, self.engine.unload_for_job, self.live.fail_forgotten, self.keys.store_uses):
                try:
                    work()
                except SpeculoosError as error:  # the database may be back at the next beat
                    log.warning("%s", error)
                except BaseException:  # nothing ends this thread
                    log.exception("Upkeep met an error it does not know")
            if self._done.wait(EVERY_SECONDS):
                return

    def _beat(self) -> None:
        if not self.engine.ill:
            with writing(self.settings) as db:
                processes.beat(db, "inference", device=self.engine.device, warm_models=len(self.engine.pool))

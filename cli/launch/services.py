"""The services a command needs: those of this home when they are up, else its own, started and stopped again."""

import time
from types import TracebackType

from cli.console import say
from cli.launch.homelock import COMMAND, UP, HomeLock
from cli.launch.programs import BROKER, RECONCILER, programs
from cli.launch.supervision import ProcessSupervisor, end_survivors
from ops import health
from speculoos.errors import SpeculoosError, Unavailable
from speculoos.settings import Settings

BROKER_SECONDS = 30.0


def needed_for(*queues: str) -> tuple[str, ...]:
    """The programs that get jobs of these queues done."""
    return (BROKER, RECONCILER, *(f"worker-{queue}" for queue in dict.fromkeys(queues)))


def stop_services(supervisor: ProcessSupervisor) -> None:
    """Stop everything in order. A job whose worker had to be killed is marked INTERRUPTED here, by its dead owner."""
    from tracking.db import writing
    from workers.supervise.reconcile import interrupt_lost

    supervisor.stop()
    try:
        with writing(supervisor.settings) as rows:
            interrupt_lost(rows)
    except SpeculoosError as error:
        say(str(error))


class Services:
    """A context in which jobs get done. Call `keep` now and then inside it.

    Nobody holds the home: we do, and start what is needed. Someone else does, or workers beat elsewhere: theirs are
    used, and when they end, ours start. `up` asks for the home: ours stop, their jobs go on under `up`.
    """

    def __init__(self, settings: Settings, names: tuple[str, ...]):
        self.settings = settings
        self.names = names
        self._lock = HomeLock(settings)
        self._supervisor: ProcessSupervisor | None = None
        self._told = ""

    def __enter__(self) -> "Services":
        try:
            self.keep()
            self._wait_for_broker()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def ours(self) -> bool:
        """True while this command runs the services itself."""
        return self._supervisor is not None

    def keep(self) -> None:
        """Take, keep or give up the home. Raises Unavailable when a program of ours cannot start."""
        if self._supervisor:
            if self._lock.handover_asked():
                self._tell("`speculoos up` takes over the services of this home.")
                self.stop()
            else:
                self._check(self._supervisor)
        elif self._served_elsewhere():
            return
        elif not self._lock.handover_asked() and self._lock.acquire(COMMAND, self.names):
            self._start()
        else:
            self._remark(self._lock.holder())

    def stop(self) -> None:
        if self._supervisor:
            stop_services(self._supervisor)
            self._supervisor = None
        self._lock.release()

    def _served_elsewhere(self) -> bool:
        """With a broker of its own (REDIS_URL), a home's workers may run in other containers or on other machines."""
        if self.settings.embedded_broker:
            return False
        return all(part.ok for part in health.check(self.settings, self.names).values())

    def _start(self) -> None:
        from speculoos.inference_token import read_inference_token

        end_survivors(self.settings)
        read_inference_token(self.settings)
        self._supervisor = ProcessSupervisor(self.settings, programs(self.settings, self.names))
        self._supervisor.start()

    def _check(self, supervisor: ProcessSupervisor) -> None:
        if not supervisor.alive:
            end_survivors(self.settings)
            supervisor.start()
        else:
            supervisor.check(self.names)

    def _wait_for_broker(self) -> None:
        deadline = time.monotonic() + BROKER_SECONDS
        while not (part := health.check(self.settings, [BROKER])[BROKER]).ok:
            if time.monotonic() > deadline or not self.settings.embedded_broker:
                raise Unavailable(part.detail, part.hint)
            time.sleep(0.1)
            self.keep()

    def _remark(self, holder: dict) -> None:
        """Another command's services may lack our worker; it is worth a word that we wait for its end."""
        missing = set(self.names) - set(holder.get("programs", self.names))
        if holder.get("mode") not in (UP, None) and missing:
            self._tell(f"Another speculoos command (process {holder.get('pid')}) uses this home; waiting for its end …")

    def _tell(self, words: str) -> None:
        if words != self._told:
            say(words)
            self._told = words

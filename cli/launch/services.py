"""Services for a command: those already running for this home, else started and stopped by the command."""

import time
from types import TracebackType

from cli.console import say
from cli.launch.homelock import COMMAND, UP, HomeLock
from cli.launch.programs import BROKER, RECONCILER, programs
from cli.launch.supervision import ProcessSupervisor, end_leftover_processes
from ops import health
from speculoos.errors import SpeculoosError, Unavailable
from speculoos.files import read_inference_token
from speculoos.settings import Settings

BROKER_SECONDS = 30.0


def programs_for(*queues: str) -> tuple[str, ...]:
    """The programs that run jobs of these queues."""
    return (BROKER, RECONCILER, *(f"worker-{queue}" for queue in dict.fromkeys(queues)))


def stop_services(supervisor: ProcessSupervisor) -> None:
    """Stop all programs in order. Jobs whose worker was killed are marked INTERRUPTED."""
    from tracking.db import writing
    from workers.supervise.reconcile import interrupt_lost

    supervisor.stop()
    try:
        with writing(supervisor.settings) as session:
            interrupt_lost(session)
    except SpeculoosError as error:
        say(str(error))


class Services:
    """A context in which jobs run. Call `ensure_running` regularly inside it.

    If no process holds the home's lock, this one takes it and starts the services. If another process holds it, or
    workers on other machines send heartbeats, theirs are used, and own services start when they end.
    """

    def __init__(self, settings: Settings, names: tuple[str, ...]):
        self.settings = settings
        self.names = names
        self._lock = HomeLock(settings)
        self._supervisor: ProcessSupervisor | None = None
        self._reported = False

    def __enter__(self) -> "Services":
        try:
            self.ensure_running()
            self._wait_for_broker()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()

    @property
    def is_owner(self) -> bool:
        """Whether this command runs the services itself."""
        return self._supervisor is not None

    def ensure_running(self) -> None:
        """Restart own services that ended, or take the lock and start them. Raises Unavailable if one cannot start."""
        if self._supervisor:
            self._supervisor.check(self.names)
        elif not self.settings.embedded_broker and all(p.ok for p in health.check(self.settings, self.names).values()):
            return  # workers run in other containers or on other machines
        elif self._lock.acquire(COMMAND, self.names):
            end_leftover_processes(self.settings)
            read_inference_token(self.settings)
            self._supervisor = ProcessSupervisor(self.settings, programs(self.settings, self.names))
            self._supervisor.start()
        elif not self._reported:
            holder = self._lock.holder()
            missing = set(self.names) - set(holder.get("programs", self.names))
            if holder.get("mode") not in (UP, None) and missing:  # another command, without the needed workers
                say(f"Another speculoos command (process {holder.get('pid')}) uses this home; waiting for it …")
                self._reported = True

    def stop(self) -> None:
        if self._supervisor:
            stop_services(self._supervisor)
            self._supervisor = None
        self._lock.release()

    def _wait_for_broker(self) -> None:
        deadline = time.monotonic() + BROKER_SECONDS
        while not (part := health.check(self.settings, [BROKER])[BROKER]).ok:
            if time.monotonic() > deadline or not self.settings.embedded_broker:
                raise Unavailable(part.detail, part.hint)
            time.sleep(0.1)
            self.ensure_running()

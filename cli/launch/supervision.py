"""Run programs as child processes: start, restart, logs, ordered stop, and cleanup after a killed `up`."""

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import psutil

from cli.launch.programs import Program
from speculoos.errors import Unavailable
from speculoos.log_files import last_line, rotate_if_full
from speculoos.resources import update_reserve
from speculoos.settings import PROJECT_ROOT, Settings

HOME_VARIABLE = "SPECULOOS_SUPERVISED"
"""Environment variable with the home folder in all supervised processes, to find those left running."""
STOP_SECONDS = 15.0
MAX_FAILURES = 3
"""Early ends in a row after which `check` gives up."""
STEADY_SECONDS = 60.0
"""A program that ran longer did not end early."""
LONGEST_PAUSE = 30.0
"""Maximum seconds between two restarts."""
LOG_BYTES, LOG_COPIES, ROTATE_SECONDS = 10 * 2**20, 3, 10.0
STOP_TIMES = {"SPECULOOS_STOP_SECONDS": "5", "SPECULOOS_KILL_SECONDS": "1"}
"""Timeouts of a stopping worker for its child; they leave time to mark the job."""
LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None
PR_SET_PDEATHSIG = 1


@dataclass
class RunningProgram:
    """A program with its process, and how often it has ended early in a row."""

    program: Program
    process: subprocess.Popen[bytes] | None = None
    started_at: float = 0.0
    failures: int = 0
    restart_at: float = 0.0


class ProcessSupervisor:
    """Runs programs; the caller holds the lock of the home and calls `poll` or `check` regularly in one thread: on
    Linux, programs get SIGTERM when the thread that started them ends."""

    def __init__(self, settings: Settings, programs: list[Program]):
        self.settings = settings
        self.running = {p.name: RunningProgram(p) for p in sorted(programs, key=lambda p: p.start_order)}
        self._rotated_at = 0.0

    def start(self) -> None:
        """Start all programs in their start order."""
        update_reserve(self.settings)
        for folder in (self.settings.home / "logs", self.settings.home / "broker"):
            folder.mkdir(parents=True, exist_ok=True)
        for each in self.running.values():
            self._launch(each)

    def poll(self) -> None:
        """Restart programs that ended, those that keep ending after a growing pause; rotate large logs."""
        now = time.monotonic()
        for each in self.running.values():
            if each.process and each.process.poll() is not None:
                each.failures = 1 if now - each.started_at > STEADY_SECONDS else each.failures + 1
                each.process, each.restart_at = None, now + min(each.failures - 1, LONGEST_PAUSE)
            if each.process is None and now >= each.restart_at:
                with contextlib.suppress(OSError):  # no memory for a process; the next call tries again
                    self._launch(each)
        if now - self._rotated_at > ROTATE_SECONDS:
            self._rotated_at = now
            for name in self.running:
                rotate_if_full(self._log(name), LOG_BYTES, LOG_COPIES)

    def check(self, names: Iterable[str]) -> None:
        """`poll`; raise Unavailable, with the last log line, when one of `names` keeps ending early."""
        self.poll()
        for name in names:
            if name in self.running and self.running[name].failures > MAX_FAILURES:
                reason = last_line(self._log(name)).removeprefix("speculoos.errors.") or "its log is empty"
                raise Unavailable(f"{name} does not start: {reason}", self.log_hint)

    @property
    def log_hint(self) -> str:
        return f"The logs are in {self.settings.home / 'logs'}."

    def stop(self) -> None:
        """Stop the programs in reverse start order, each group within its stop time; kill all that remain."""
        started = [each for each in self.running.values() if each.process]
        for order in sorted({each.program.start_order for each in started}, reverse=True):
            group = [each for each in started if each.program.start_order == order]
            for each in group:
                each.process.terminate()
            deadline = time.monotonic() + max(each.program.stop_seconds for each in group)
            for each in group:
                try:
                    each.process.wait(max(0.0, deadline - time.monotonic()))
                except subprocess.TimeoutExpired:
                    with contextlib.suppress(ProcessLookupError):
                        os.killpg(each.process.pid, signal.SIGKILL)
                    each.process.wait()
        end_leftover_processes(self.settings, timeout=1)

    def _log(self, name: str) -> Path:
        return self.settings.home / "logs" / f"{name}.log"

    def _launch(self, each: RunningProgram) -> None:
        home = str(self.settings.home)
        own = {"SPECULOOS_HOME": home, HOME_VARIABLE: home, **each.program.environment}
        with _output(self._log(each.program.name)) as output:
            each.process = subprocess.Popen(
                each.program.command,
                stdout=output,
                stderr=output,
                stdin=subprocess.DEVNULL,
                cwd=PROJECT_ROOT,
                env={**STOP_TIMES, **os.environ, **own},
                start_new_session=True,  # Ctrl-C reaches only this process, which stops the programs in order
                preexec_fn=_end_with_parent,
            )
        each.started_at = time.monotonic()


def _end_with_parent() -> None:
    """In a new process on Linux: get SIGTERM when the parent dies. On other systems the next `up` ends it."""
    if LIBC:
        LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


def _output(log: Path) -> IO[bytes]:
    """A program's log; /dev/null when the disk is full."""
    try:
        return log.open("ab")
    except OSError:
        return open(os.devnull, "wb")


def leftover_processes(settings: Settings) -> list[psutil.Process]:
    """Other processes of this home, left running by a killed `up`."""
    home, own = str(settings.home), os.getpid()
    processes = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.pid != own and process.environ().get(HOME_VARIABLE) == home and process.status() != "zombie":
                processes.append(process)
    return processes


def end_leftover_processes(settings: Settings, timeout: float = STOP_SECONDS) -> int:
    """End the processes left by a killed `up` with TERM, after `timeout` seconds with KILL. Returns their number.
    Raises Unavailable when one does not end."""
    count = len(leftover_processes(settings))
    for number, seconds in ((signal.SIGTERM, timeout), (signal.SIGKILL, 5.0)):
        left = leftover_processes(settings)
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.send_signal(number)
        psutil.wait_procs(left, timeout=seconds)
    if left := leftover_processes(settings):
        raise Unavailable(f"Process {left[0].pid} of an earlier start does not end; end it and try again.")
    return count

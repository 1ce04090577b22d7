"""One real `speculoos up` for drills: its home and ports, its parts by name, killing one and seeing it come back."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from cli.launch.programs import programs
from cli.launch.supervision import end_leftover_processes, leftover_processes
from ops import health
from speculoos.settings import Settings, load
from tests.tools.ports import free_ports
from tracking.db import writing

CLONE = Path(__file__).resolve().parents[2]
COMMAND = [sys.executable, "-m", "cli.main"]
START_SECONDS = 300.0


class Up:
    """Everything of one home under `speculoos up`. `settings` are those its processes see."""

    def __init__(self, home: Path, **environment: str):
        port, inference_port = free_ports(2)
        outside = ("SPECULOOS_", "DATABASE_URL", "REDIS_URL")
        kept = {k: v for k, v in os.environ.items() if not k.startswith(outside)}
        own = {
            "SPECULOOS_HOME": str(home),
            "SPECULOOS_PORT": str(port),
            "SPECULOOS_INFERENCE_PORT": str(inference_port),
            "SPECULOOS_STARTER": str(home / "no-starter"),
            "SPECULOOS_DEVICE": "cpu",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(CLONE),
        }
        self.environment = {**kept, **own, **environment}
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)

    @property
    def settings(self) -> Settings:
        """Read anew: the inference token is made at the first start."""
        return load(self.environment)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}"

    @property
    def output(self) -> str:
        """What it printed, for the message of a test that fails."""
        return self.words()

    def words(self, which: str = "") -> str:
        """What one of several starts printed."""
        file = self._words(which)
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self) -> "Up":
        """Start and wait until it says that it is up."""
        self.begin()
        wait_for(lambda: "Speculoos is up" in self.output or self.process.poll() is not None, "the start")
        assert self.process.poll() is None, self.output
        return self

    def begin(self, which: str = "") -> subprocess.Popen[bytes]:
        """Start without waiting."""
        with self._words(which).open("wb") as file:
            self.process = subprocess.Popen(
                [*COMMAND, "up"], stdout=file, stderr=file, env=self.environment, cwd=CLONE, start_new_session=True
            )
        return self.process

    def command(self, *words: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """A `speculoos` command in this home."""
        full = [*COMMAND, *words]
        return subprocess.run(full, capture_output=True, text=True, timeout=seconds, env=self.environment, cwd=CLONE)

    def add(self, row: Any) -> str:
        """Store a row; returns its id."""
        with writing(self.settings) as session:
            session.add(row)
            session.flush()
            return row.id

    def pid(self, name: str) -> int:
        """Process of one part now; 0 when it has none."""
        return program_pids(self.settings).get(name, 0)

    def kill(self, name: str) -> int:
        """SIGKILL one part; returns the process that was killed, 0 when there was none just then."""
        if pid := self.pid(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid

    def is_back(self, name: str, before: int) -> bool:
        """Whether another process does its work and is well."""
        return self.pid(name) not in (0, before) and health.check(self.settings, [name])[name].ok

    def end(self) -> None:
        """Stop it in order, and make sure that nothing is left."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        end_leftover_processes(self.settings, timeout=0)

    def _words(self, which: str = "") -> Path:
        """Beside the home; where that is a disk's top folder, on the disk above."""
        return Path(f"{self.home}{which}.out")


def program_pids(settings: Settings) -> dict[str, int]:
    """Processes of the programs of `up`, by name."""
    names = {program.command: program.name for program in programs(settings)}
    found = {}
    for process in leftover_processes(settings):
        with contextlib.suppress(psutil.Error):
            if name := names.get(tuple(process.cmdline())):
                found[name] = process.pid
    return found


def wait_for(claim: Callable[[], object], what: str, seconds: float = START_SECONDS, every: float = 0.1) -> float:
    """Poll until true; returns the seconds it took, fails with what was waited for."""
    began = time.monotonic()
    while not claim():
        assert time.monotonic() - began < seconds, f"waited {seconds:g} s in vain for {what}"
        time.sleep(every)
    return time.monotonic() - began

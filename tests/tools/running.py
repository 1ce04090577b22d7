"""A real `speculoos up` for drills: its home and ports, its parts by name, killing a part and checking its recovery."""

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
    """The `speculoos up` of one home. `settings` are those that its processes see."""

    def __init__(self, home: Path, **environment: str):
        port, inference_port = free_ports(2)
        removed = ("SPECULOOS_", "DATABASE_URL", "REDIS_URL")
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(removed)}
        defaults = {
            "SPECULOOS_HOME": str(home),
            "SPECULOOS_PORT": str(port),
            "SPECULOOS_INFERENCE_PORT": str(inference_port),
            "SPECULOOS_STARTER": str(home / "no-starter"),
            "SPECULOOS_DEVICE": "cpu",
            "OMP_NUM_THREADS": "1",
            "HF_HUB_OFFLINE": "1",
            "PYTHONPATH": str(CLONE),
        }
        self.environment = {**inherited, **defaults, **environment}
        self.home = home
        self.process: subprocess.Popen[bytes] | None = None
        home.mkdir(parents=True, exist_ok=True)

    @property
    def settings(self) -> Settings:
        """Loaded at each access, since the first start creates the inference token."""
        return load(self.environment)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}"

    @property
    def output(self) -> str:
        """What it printed, for messages of failing tests."""
        return self.words()

    def words(self, suffix: str = "") -> str:
        """What the start with this `suffix` printed."""
        file = self._output_file(suffix)
        return file.read_text(errors="replace") if file.exists() else ""

    def start(self) -> "Up":
        """Start and wait until it prints that it is up."""
        self.begin()
        wait_for(lambda: "Speculoos is up" in self.output or self.process.poll() is not None, "the start")
        assert self.process.poll() is None, self.output
        return self

    def begin(self, suffix: str = "") -> subprocess.Popen[bytes]:
        """Start without waiting."""
        with self._output_file(suffix).open("wb") as file:
            self.process = subprocess.Popen(
                [*COMMAND, "up"], stdout=file, stderr=file, env=self.environment, cwd=CLONE, start_new_session=True
            )
        return self.process

    def command(self, *arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a `speculoos` command in this home."""
        command = [*COMMAND, *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=seconds, env=self.environment, cwd=CLONE)

    def add(self, row: Any) -> str:
        """Store a row; returns its id."""
        with writing(self.settings) as session:
            session.add(row)
            session.flush()
            return row.id

    def pid(self, name: str) -> int:
        """Current process id of a part; 0 if it has none."""
        return program_pids(self.settings).get(name, 0)

    def kill(self, name: str) -> int:
        """Send SIGKILL to a part; returns the killed process id, or 0 if there was none."""
        if pid := self.pid(name):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return pid

    def is_back(self, name: str, before: int) -> bool:
        """Whether the part has a process other than `before` and is healthy."""
        return self.pid(name) not in (0, before) and health.check(self.settings, [name])[name].ok

    def end(self) -> None:
        """Stop it gracefully, and end all leftover processes."""
        if self.process and self.process.poll() is None:
            self.process.terminate()
            try:
                self.process.wait(40)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        end_leftover_processes(self.settings, timeout=0)

    def _output_file(self, suffix: str = "") -> Path:
        """The output file beside the home, so not on a disk that is mounted at the home."""
        return Path(f"{self.home}{suffix}.out")


def program_pids(settings: Settings) -> dict[str, int]:
    """Process ids of the programs of `up`, by name."""
    names = {program.command: program.name for program in programs(settings)}
    pids = {}
    for process in leftover_processes(settings):
        with contextlib.suppress(psutil.Error):
            if name := names.get(tuple(process.cmdline())):
                pids[name] = process.pid
    return pids


def wait_for(condition: Callable[[], object], what: str, seconds: float = START_SECONDS, every: float = 0.1) -> float:
    """Poll until `condition()` is true; returns the seconds it took. On timeout, fails and names `what`."""
    began = time.monotonic()
    while not condition():
        assert time.monotonic() - began < seconds, f"waited {seconds:g} s in vain for {what}"
        time.sleep(every)
    return time.monotonic() - began

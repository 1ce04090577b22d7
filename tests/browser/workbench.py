"""A real workbench for browser tests: a temporary home with a tiny base and Medusa heads, and its processes."""

import os
import subprocess
import sys
import time
import urllib.request
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from cli.launch.programs import programs
from speculoos.private import private_folder
from speculoos.settings import Settings, load
from tests.tools import zygote
from tests.tools.databases import migrate
from tests.tools.homes import skip_speed_probe
from tests.tools.ports import free_ports
from tracking import processes
from tracking.db import reading, writing
from tracking.states import FINISHED
from tracking.tables import Base, Checkpoint, Job, new_id, now

CLONE = Path(__file__).resolve().parents[2]
START_SECONDS = 240.0
SERVICES = ("broker", "reconciler", "worker-io", "worker-gpu")
QUICK = {
    "SPECULOOS_POLL_SECONDS": "0.2",
    "SPECULOOS_LEASE_SECONDS": "10",
    "SPECULOOS_GRACE_SECONDS": "10",
    "SPECULOOS_STOP_SECONDS": "3",
    "SPECULOOS_KILL_SECONDS": "1",
    "SPECULOOS_RECONCILE_SECONDS": "0.5",
}
"""Timing of workers for tests."""


@dataclass
class Workbench:
    """Processes of one home, started and stopped by name. Their output goes to `home/test-logs`."""

    settings: Settings
    env: dict[str, str]
    processes: dict[str, subprocess.Popen[bytes] | zygote.Forked] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.settings.port}"

    def start(self, *names: str) -> None:
        """Start processes by their names in `cli.launch.programs` and wait until they answer."""
        private_folder(self.settings.run_dir)
        (self.settings.home / "broker").mkdir(exist_ok=True)
        for program in programs(self.settings, names):
            with self.log(program.name).open("ab") as log:
                self.processes[program.name] = self._begin(list(program.command), log)
        for name in names:
            self._wait(name)

    def kill(self, name: str) -> None:
        """End a process as a crash would."""
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def end(self, *names: str) -> None:
        """End processes at once, all of them by default."""
        for name in names or list(self.processes)[::-1]:
            self.kill(name)

    def stop(self, *names: str) -> None:
        """Ask processes to end, all at the same time, and wait for it."""
        ending = [self.processes.pop(name) for name in names]
        for process in ending:
            process.terminate()
        for process in ending:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    @contextmanager
    def without(self, name: str):
        """Stop a process for the duration of the block."""
        self.stop(name)
        try:
            yield
        finally:
            self.start(name)

    @contextmanager
    def with_workers(self):
        """Broker, reconciler and workers run in the block. Queued jobs are cancelled before and after it."""
        self._cancel_jobs()
        self.start(*SERVICES)
        try:
            yield self
        finally:
            self.stop(*SERVICES[1:])
            self.stop(SERVICES[0])  # workers say goodbye to the broker
            self._cancel_jobs()

    def _cancel_jobs(self) -> None:
        with writing(self.settings) as rows:
            for job in rows.query(Job).where(Job.state.not_in(FINISHED)):
                job.state, job.finished_at, job.version = "CANCELLED", now(), job.version + 1

    def log(self, name: str) -> Path:
        folder = self.settings.home / "test-logs"
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{name}.log"

    def add(self, row: Any) -> str:
        """Store a row; returns its id."""
        with writing(self.settings) as rows:
            rows.add(row)
            rows.flush()
            return row.id

    def _begin(self, command: list[str], log: BinaryIO) -> subprocess.Popen[bytes] | zygote.Forked:
        if command[:2] == [sys.executable, "-m"]:
            return zygote.begin(command[2], command[3:], self.env, log.fileno())
        return subprocess.Popen(command, env=self.env, stdout=log, stderr=log)

    def _wait(self, name: str) -> None:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            if self.processes[name].poll() is not None:
                break
            if self._ready(name):
                return
            time.sleep(0.1)
        raise AssertionError(f"{name} did not start:\n{self.log(name).read_text()[-3000:]}")

    def _ready(self, name: str) -> bool:
        if name == "broker":
            return (self.settings.run_dir / "redis.sock").exists()
        if name in ("web", "inference"):
            port = self.settings.port if name == "web" else self.settings.inference_port
            return _answers(f"http://127.0.0.1:{port}/healthz")
        with reading(self.settings) as rows:
            return any(row.key.endswith(f":{self.processes[name].pid}") for row in processes.alive(rows, name))


def make_workbench(home: Path, **env: str) -> Workbench:
    """A migrated home with its own ports; nothing is started yet."""
    port, inference_port = free_ports(2)
    overrides = {
        "SPECULOOS_HOME": str(home),
        "SPECULOOS_PORT": str(port),
        "SPECULOOS_INFERENCE_PORT": str(inference_port),
        "SPECULOOS_INFERENCE_TOKEN": "token-for-tests",
        "SPECULOOS_DEVICE": "cpu",
        "SPECULOOS_STARTER": str(home / "no-starter"),
        "OMP_NUM_THREADS": "1",
        "HF_HUB_OFFLINE": "1",
        "PYTHONPATH": str(CLONE),
        **QUICK,
        **env,
    }
    inherited = {k: v for k, v in os.environ.items() if not k.startswith(("SPECULOOS_", "DATABASE_URL", "REDIS_URL"))}
    settings = load(inherited | overrides)
    migrate(settings)
    skip_speed_probe(settings.home)
    return Workbench(settings, inherited | overrides)


def add_base(bench: Workbench, name: str = "tiny", seed: int = 0) -> str:
    """A tiny random base in the home; returns its row's id."""
    from models.identity import weights_sha256
    from tests.tiny import make_tiny_base

    row_id = new_id()
    folder = make_tiny_base(bench.settings.home / "models" / row_id, seed=seed, max_position_embeddings=4096)
    sha = weights_sha256(folder)
    row = Base(id=row_id, name=name, source="folder", location=str(folder), path=str(folder), state="ready")
    row.weights_sha256, row.card = sha, {"architecture": "llama", "parameters": 1000, "layers": 4}
    return bench.add(row)


def add_heads(bench: Workbench, base_id: str, name: str, **values: Any) -> str:
    """Medusa heads that repeat the base's own next token, saved as a real checkpoint; returns its row's id."""
    from models.base import load_base
    from models.checkpoints import save_draft
    from models.medusa import MedusaConfig, MedusaHeads

    with writing(bench.settings) as rows:
        base_row = rows.get_one(Base, base_id)
    base = load_base(base_row.path)
    shape = MedusaConfig(hidden_size=base.hidden_size, vocab_size=base.vocab_size, medusa_num_heads=3)
    row_id = new_id()
    folder = bench.settings.home / "checkpoints" / row_id / "attempt-1"
    info = {"base": base_row.name, "base_sha256": base_row.weights_sha256, "notes": "made by a test"}
    save_draft(folder, MedusaHeads.from_base(shape, base), info)
    row = Checkpoint(id=row_id, name=name, method="medusa", state="ready", base_id=base_id, path=str(folder), attempt=1)
    row.base_sha256 = base_row.weights_sha256
    for key, value in ({"size_bytes": _bytes(folder), "step": 10} | values).items():
        setattr(row, key, value)
    return bench.add(row)


def _bytes(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.iterdir())


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as response:
            return response.status == 200
    except OSError:
        return False

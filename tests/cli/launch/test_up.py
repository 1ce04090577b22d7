"""`speculoos up` end to end: one start, everything healthy, killed parts come back, and neither a kill of `up` nor
Ctrl-C loses work."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from cli.launch.supervision import end_leftover_processes, leftover_processes
from cli.main import main
from ops.health import check
from speculoos.settings import Settings, load
from tests.tools.homes import add_answers, add_base, skip_speed_probe
from tests.tools.ports import free_ports
from tests.tools.running import program_pids
from tracking import db, jobs

pytestmark = pytest.mark.integration

COMMAND = [sys.executable, "-m", "cli.main"]
START_SECONDS = 300


@dataclass
class Running:
    """One `speculoos up` and the file of its output."""

    settings: Settings
    process: subprocess.Popen[str]
    output: Path

    def wait_until_up(self) -> None:
        wait_until(lambda: "Speculoos is up" in self.output.read_text() or self.process.poll() is not None)
        assert self.process.poll() is None, self.output.read_text()

    def pid(self, name: str) -> int:
        return program_pids(self.settings).get(name, 0)


def wait_until(condition: Callable[[], object], seconds: float = START_SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def start(settings: Settings) -> Running:
    output = settings.home / "up.out"
    with output.open("w") as file:
        process = subprocess.Popen([*COMMAND, "up"], stdout=file, stderr=file, text=True, env=os.environ)
    return Running(settings, process, output)


@pytest.fixture
def own_ports(home: Settings, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A home with free ports. After the test its processes are ended and signal handlers restored."""
    handlers = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    port, inference_port = free_ports(2)
    monkeypatch.setenv("SPECULOOS_PORT", str(port))
    monkeypatch.setenv("SPECULOOS_INFERENCE_PORT", str(inference_port))
    monkeypatch.setenv("SPECULOOS_DEVICE", "cpu")
    settings = load()
    skip_speed_probe(settings.home)
    yield settings
    end_leftover_processes(settings, timeout=0)
    for number, handler in handlers.items():
        signal.signal(number, handler)


@pytest.fixture
def starter(tmp_path: Path, tiny_base: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tiny starter, so that `doctor` finds every part."""
    from models.card import make_card

    folder = tmp_path / "starter"
    folder.mkdir()
    for file in tiny_base.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    (folder / "card.json").write_text(json.dumps(make_card(folder)))
    monkeypatch.setenv("SPECULOOS_STARTER", str(folder))
    return folder


@pytest.mark.timeout(900)
def test_up_from_start_to_ctrl_c_and_on_again(
    own_ports: Settings, starter: Path, tiny_base: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = own_ports
    running = start(settings)
    try:
        running.wait_until_up()
        url = f"http://127.0.0.1:{settings.port}"
        assert url in running.output.read_text()
        assert httpx.get(f"{url}/healthz", trust_env=False).status_code == 200
        check_all_parts_healthy(capsys)
        check_socket_and_token_private(settings)
        check_second_up_names_the_first(url, capsys)
        check_killed_parts_come_back(running)
        job_id = start_a_job(settings, tiny_base, capsys)
        check_killed_up_ends_everything(running)
        running = start(settings)
        check_job_goes_on(running, job_id)
        check_ctrl_c_interrupts_the_job(running, job_id)
        check_no_file_readable_by_others(settings)
    finally:
        running.process.kill()
        running.process.wait()
    assert "Traceback" not in running.output.read_text()


def check_all_parts_healthy(capsys: pytest.CaptureFixture[str]) -> None:
    status = main(["doctor", "--json"])
    report = json.loads(capsys.readouterr().out.strip().splitlines()[-1])
    assert report["healthy"] is True and status == 0, report
    assert len(report["parts"]) >= 14


def check_socket_and_token_private(settings: Settings) -> None:
    assert settings.run_dir.stat().st_mode & 0o777 == 0o700
    assert (settings.run_dir / "redis.sock").is_socket()
    token = settings.home / "secrets" / "inference-token"
    assert token.stat().st_mode & 0o777 == 0o600 and token.parent.stat().st_mode & 0o777 == 0o700
    broker = next(p for p in leftover_processes(settings) if "valkey" in p.name())
    assert not [c for c in broker.net_connections("inet") if c.status == psutil.CONN_LISTEN]
    command_lines = " ".join(" ".join(p.cmdline()) for p in leftover_processes(settings))
    assert token.read_text().strip() not in command_lines


def check_second_up_names_the_first(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["up"]) == 0 and f"running already: {url}" in capsys.readouterr().out


def check_killed_parts_come_back(running: Running) -> None:
    for name in ("worker-gpu", "broker"):
        before = running.pid(name)
        assert before, name
        os.kill(before, signal.SIGKILL)
        wait_until(lambda name=name, before=before: running.pid(name) not in (0, before))
    wait_until(lambda: check(running.settings, ["broker"])["broker"].ok)


def start_a_job(settings: Settings, tiny_base: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """Start a training that does not end; returns its id once it has saved a state."""
    add_answers(settings, add_base(settings, tiny_base), rows=60)
    command = ["train", "medusa", "--model", "tiny", "--data", "answers", "--name", "heads", "--json"]
    sizes = ["--set", "max_length=128", "--set", "batch_tokens=256", "--set", "save_every=5", "--set", "eval_every=0"]
    steps = ["--set", "max_steps=100000", "--set", "epochs=0"]
    status, captured = main([*command, *sizes, *steps]), capsys.readouterr()
    assert status == 0, captured.err
    job_id = json.loads(captured.out.strip().splitlines()[-1])["job"]
    wait_until(lambda: state(settings, job_id)[0] == "RUNNING" and state(settings, job_id)[1] > 10)
    return job_id


def check_killed_up_ends_everything(running: Running) -> None:
    running.process.send_signal(signal.SIGKILL)
    running.process.wait()
    wait_until(lambda: not leftover_processes(running.settings))


def check_job_goes_on(running: Running, job_id: str) -> None:
    running.wait_until_up()
    before = state(running.settings, job_id)[1]
    assert before > 10
    wait_until(lambda: state(running.settings, job_id)[0] == "RUNNING" and state(running.settings, job_id)[1] > before)


def check_ctrl_c_interrupts_the_job(running: Running, job_id: str) -> None:
    running.process.send_signal(signal.SIGINT)
    assert running.process.wait(30) == 0
    assert state(running.settings, job_id)[0] == "INTERRUPTED"
    assert not leftover_processes(running.settings)


def check_no_file_readable_by_others(settings: Settings) -> None:
    """Check that other users can read neither the home and database, made with the usual umask, nor later files.

    Datasets are left out, since this test wrote them itself.
    """
    written = [path for path in settings.home.rglob("*") if "datasets" not in path.parts]
    assert {"speculoos.db", "logs", "checkpoints", "broker", "web.log"} <= {path.name for path in written}
    readable = [
        f"{path} {path.lstat().st_mode:o}" for path in (settings.home, *written) if path.lstat().st_mode & 0o077
    ]
    readable = [line for line in readable if not line.endswith(" 120777")]  # links have no permissions of their own
    assert not readable


def state(settings: Settings, job_id: str) -> tuple[str, int]:
    with db.reading(settings) as session:
        job = jobs.get(session, job_id)
        return job.state, job.done


def test_a_port_in_use_is_one_sentence_that_names_who_and_what_to_set(
    own_ports: Settings, capsys: pytest.CaptureFixture[str]
) -> None:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", own_ports.port))
        taken.listen()
        assert main(["up"]) == 1
    message = capsys.readouterr().err.strip().splitlines()[-1]
    assert f"Port {own_ports.port}" in message and f"(process {os.getpid()})" in message and "SPECULOOS_PORT" in message
    assert not leftover_processes(own_ports)


def test_pages_for_others_need_a_password(
    own_ports: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("SPECULOOS_HOST", "0.0.0.0")
    assert main(["up"]) == 2
    errors = capsys.readouterr().err
    assert len(errors.strip().splitlines()) == 1 and "set SPECULOOS_PASSWORD" in errors
    assert not leftover_processes(own_ports)

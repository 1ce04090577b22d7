"""`speculoos up` on a disk that fills to the last byte, and on one that is full at the start (`make drills`)."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from cli.launch.supervision import end_leftover_processes
from speculoos import resources
from speculoos.settings import Settings, load
from tests.cli.launch.test_up import start, wait_until
from tests.speculoos.test_resources import fill
from tests.tools.ports import free_ports
from tests.tools.running import program_pids
from tracking import db, jobs
from tracking.tables import Job
from workers.jobs.requests import ImportPrompts
from workers.jobs.submit import submit

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1200)]
PAGES = ("/", "/runs", "/data", "/settings", "/healthz")
FULL_SECONDS = 60


@pytest.fixture
def small(small_disk: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    port, inference_port = free_ports(2)
    values = {"HOME": small_disk / "home", "PORT": port, "INFERENCE_PORT": inference_port, "DEVICE": "cpu"}
    for name, value in {**values, "MIN_DISK_MB": 3}.items():
        monkeypatch.setenv(f"SPECULOOS_{name}", str(value))
    settings = load()
    settings.home.mkdir()
    yield settings
    end_leftover_processes(settings, timeout=0)
    shutil.rmtree(settings.run_dir, ignore_errors=True)


def test_the_pages_stay_and_everything_goes_on_when_there_is_room(
    small: Settings, small_disk: Path, tmp_path: Path
) -> None:
    """The disk is full for a minute while every process writes logs and heartbeats; then it has room again."""
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "hi"}\n')
    running = start(small)
    try:
        running.wait_until_up()
        wait_until((small.home / resources.RESERVE).exists)
        before = program_pids(small)
        fill(small_disk, 2 * 2**20)
        wait_until(lambda: "Paused: " in paused(small), 60)
        job = submit(ImportPrompts(path=str(prompts), original_name="p.jsonl"), name="p", settings=small)
        end = time.monotonic() + FULL_SECONDS
        while time.monotonic() < end:
            fill(small_disk)
            check_pages_answer(small)
            time.sleep(1)
        assert program_pids(small) == before, "no process had to be replaced"
        assert state(small, job) == "QUEUED"
        (small_disk / "ballast").unlink()
        wait_until(lambda: state(small, job) == "SUCCEEDED", 120)
        wait_until((small.home / resources.RESERVE).exists, 60)
        assert program_pids(small) == before
        running.process.send_signal(signal.SIGINT)
        assert running.process.wait(30) == 0
    finally:
        running.process.kill()
        running.process.wait()


def test_a_start_on_a_full_disk_is_one_sentence(small: Settings, small_disk: Path) -> None:
    fill(small_disk)
    command = [sys.executable, "-m", "cli.main", "up"]
    completed = subprocess.run(command, capture_output=True, text=True, timeout=240, env=os.environ)
    assert completed.returncode == 1 and "Traceback" not in completed.stderr
    assert "is full" in completed.stderr.splitlines()[-1], completed.stderr


def check_pages_answer(settings: Settings) -> None:
    for path in PAGES:
        response = httpx.get(f"http://127.0.0.1:{settings.port}{path}", trust_env=False, timeout=30)
        assert response.status_code == 200, path


def paused(settings: Settings) -> str:
    from tracking import processes

    with db.reading(settings) as session:
        return processes.paused(session, "io")


def state(settings: Settings, job: Job) -> str:
    with db.reading(settings) as session:
        return jobs.get(session, job.id).state

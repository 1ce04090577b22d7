"""`python -m serving.main` as a process: its token, its port, its end by signal and by kill."""

import os
import signal
import socket
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from serving.main import main
from speculoos.settings import Settings, load
from tests.serving.conftest import CYCLE_TEXT, register, serve, until
from tests.tools import zygote
from tests.tools.homes import skip_speed_probe
from tests.tools.ports import free_ports
from tests.tools.stored_runs import step_count
from tracking import processes, runs
from tracking.db import reading, writing

pytestmark = pytest.mark.integration

PROMPT = [{"role": "user", "content": "Say it"}]


class Server:
    """The server as a child process."""

    def __init__(self, settings: Settings):
        self.settings, self.log = settings, settings.home / "serving.log"
        self.url = f"http://127.0.0.1:{settings.inference_port}"
        environment = {"SPECULOOS_HOME": str(settings.home), "SPECULOOS_INFERENCE_PORT": str(settings.inference_port)}
        environment |= {"SPECULOOS_DEVICE": "cpu", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(zygote.CLONE)}
        with self.log.open("ab") as out:
            self.process = zygote.begin("serving.main", [], {**os.environ, **environment}, out.fileno())

    def ready(self) -> "Server":
        until(self._answers, 180)
        return self

    def _answers(self) -> bool:
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"{self.url}/healthz").status_code == 200
        except httpx.TransportError:
            return False

    def client(self) -> httpx.Client:
        token = (self.settings.home / "secrets" / "inference-token").read_text().strip()
        return httpx.Client(base_url=self.url, headers={"Authorization": f"Bearer {token}"}, timeout=120)

    def end(self, signal_number: int = signal.SIGTERM) -> float:
        """Seconds until it has ended."""
        start = time.monotonic()
        self.process.send_signal(signal_number)
        self.process.wait(timeout=60)
        return time.monotonic() - start


@pytest.fixture
def settings(home: Settings, model_files: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("SPECULOOS_INFERENCE_PORT", str(free_ports(1)[0]))
    settings = load()
    skip_speed_probe(settings.home)
    register(settings, model_files)
    return settings


def start_long_run(server: Server) -> str:
    """Start a run, and wait until it is in the middle of its answer."""
    request = {"messages": PROMPT, "max_tokens": 8000}
    with writing(server.settings) as db:
        run_id = runs.create_run(db, "chat", "cycle", request).id
    with server.client() as client:
        assert client.post(f"/v1/runs/{run_id}").status_code == 202
    until(lambda: stored_steps(server.settings, run_id) > 3)
    return run_id


def has_heartbeat(settings: Settings) -> bool:
    with reading(settings) as db:
        return processes.last_seen(db, "inference") is not None


def stored_steps(settings: Settings, run_id: str) -> int:
    with reading(settings) as db:
        return step_count(db, run_id)


def test_a_server_generates_a_token_beats_recovers_from_a_kill_and_ends_quickly(settings: Settings) -> None:
    server = Server(settings).ready()
    token = settings.home / "secrets" / "inference-token"
    assert stat.S_IMODE(token.stat().st_mode) == 0o600 and len(token.read_text().strip()) >= 32
    until(lambda: has_heartbeat(settings))  # it answers a moment before its first heartbeat is in the database
    with server.client() as client:
        response = client.post("/v1/chat/completions", json={"model": "cycle@right", "messages": PROMPT})
        assert response.json()["choices"][0]["message"]["content"].startswith(CYCLE_TEXT)

    killed = start_long_run(server)
    server.end(signal.SIGKILL)
    with reading(settings) as db:
        assert runs.get_run(db, killed).state == "RUNNING"

    server = Server(settings).ready()
    with reading(settings) as db:
        run = runs.get_run(db, killed)
        assert run.state == "FAILED" and run.error == runs.LEFT_OVER
        records = runs.steps_after(db, killed)
    assert len(records) > 3 and [r["index"] for r in records] == list(range(len(records)))

    stopped = start_long_run(server)
    assert server.end() < 10, "before its supervisor would kill it"
    assert server.process.returncode in (0, -signal.SIGTERM)
    with reading(settings) as db:
        run = runs.get_run(db, stopped)
    assert run.state == "FAILED" and "stopped" in run.error
    log = server.log.read_text()
    assert "Traceback" not in log and token.read_text().strip() not in log


def test_a_server_others_can_reach_needs_a_chosen_token(
    settings: Settings, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.setenv("SPECULOOS_INFERENCE_HOST", "0.0.0.0")
    assert main() == 2
    assert "SPECULOOS_INFERENCE_TOKEN" in capsys.readouterr().err


def test_a_second_server_ends_with_a_sentence_and_leaves_the_firsts_runs_alone(
    settings: Settings, capsys: pytest.CaptureFixture
) -> None:
    with writing(settings) as db:
        run_id = runs.create_run(db, "chat", "cycle", {"messages": PROMPT}).id
        runs.start_run(db, run_id)
    with socket.create_server(("127.0.0.1", settings.inference_port)):
        assert main() == 1
    assert "SPECULOOS_INFERENCE_PORT" in capsys.readouterr().err
    with reading(settings) as db:
        assert runs.get_run(db, run_id).state == "RUNNING"


def test_a_full_queue_answers_429_with_retry_after(tmp_path: Path, model_files: Path) -> None:
    serving: Iterator = serve(tmp_path, model_files, max_waiting=1)
    served = next(serving)
    with served.client() as client:
        request = {**served.chat_request("cycle", max_tokens=8000), "stream": True}
        with client.stream("POST", "/v1/chat/completions", json=request) as running:
            lines = running.iter_lines()  # a reference is kept: without it the stream is closed
            next(lines)
            waiting = served.engine.queue.submit("api", lambda _: None)
            refused = client.post("/v1/chat/completions", json=served.chat_request())
            waiting.cancel()
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) >= 1
    assert refused.json()["error"]["type"] == "rate_limit_error" and refused.json()["error"]["code"] == "device_busy"
    next(serving, None)

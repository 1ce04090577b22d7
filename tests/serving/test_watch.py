"""A device whose thread hangs or has died: /healthz reports it, the server ends, the next one fails its runs."""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from serving import watch
from serving.queueing import DeviceQueue, Heartbeat
from serving.watch import EXIT_CODE, DeviceWatch, Upkeep
from speculoos.errors import BadInput
from speculoos.settings import PROJECT_ROOT, Settings, load
from tests.serving.conftest import Served, serve, until
from tracking import processes
from tracking.db import reading

pytestmark = pytest.mark.integration

STUCK = 3


def test_a_heartbeat_is_overdue_after_the_limit_of_its_work() -> None:
    heartbeat = Heartbeat(60)
    assert not heartbeat.overdue
    heartbeat.beat("decoding", 0.05)
    assert heartbeat.doing == "decoding" and not heartbeat.overdue
    until(lambda: bool(heartbeat.overdue))
    assert "while decoding" in heartbeat.overdue
    with heartbeat.during("loading a base model", 60):
        assert heartbeat.doing == "loading a base model" and not heartbeat.overdue
    assert heartbeat.doing == "decoding" and heartbeat.age < 1


def test_a_limit_below_zero_is_refused() -> None:
    with pytest.raises(BadInput, match="SPECULOOS_STUCK_SECONDS: expected a whole number, 0 or more"):
        load({"SPECULOOS_STUCK_SECONDS": "-1"})


def test_an_idle_thread_beats(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("serving.queueing.IDLE_BEAT", 0.02)
    queue = DeviceQueue("test", limit=60)
    first = queue.heartbeat._last.at
    until(lambda: queue.heartbeat._last.at > first + 0.05)
    assert queue.heartbeat.doing == "idle" and not queue.failure
    queue.close()


def test_work_without_a_heartbeat_is_a_failure_until_it_beats() -> None:
    queue, gate, beaten = DeviceQueue("test", limit=0.1), threading.Event(), threading.Event()

    def work(_: object) -> None:
        gate.wait(20)
        with queue.heartbeat.during("loading a base model", 60):
            beaten.wait(20)

    queue.submit("a", work)
    until(lambda: "no heartbeat" in queue.failure)
    gate.set()
    until(lambda: queue.heartbeat.doing == "loading a base model")
    assert not queue.failure
    beaten.set()
    until(lambda: not queue.busy)
    assert not queue.failure
    queue.close()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_died_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceQueue, "_next", lambda self: (_ for _ in ()).throw(SystemExit))
    queue = DeviceQueue("test", limit=60)
    until(lambda: not queue._thread.is_alive())
    assert queue.failure == "its thread has ended"


@pytest.fixture(scope="module")
def hanging(model_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(tmp_path_factory.mktemp("home"), model_files, stuck_seconds=STUCK)


def test_health_and_readiness_report_a_hanging_device(hanging: Served) -> None:
    gate = threading.Event()
    until(lambda: hanging.engine.heartbeat.doing == "idle")
    with httpx.Client(base_url=hanging.url, timeout=60) as client:
        assert client.get("/healthz").json()["doing"] == "idle"
        assert client.get("/readyz").status_code == 200
        hanging.engine.queue.submit("api", lambda _: gate.wait(60))
        until(lambda: client.get("/healthz").status_code == 503)
        health, ready = client.get("/healthz").json(), client.get("/readyz")
        assert "The thread of the device cpu does not work: no heartbeat" in health["status"]
        assert ready.status_code == 503 and ready.json()["ready"] is False
        assert "does not work" in ready.json()["device"] and ready.json()["database"] == "ok"
        assert hanging.client().get("/metrics").text.count("speculoos_inference_device_alive 0.0") == 1
        gate.set()
        until(lambda: client.get("/healthz").status_code == 200)


def test_a_hanging_device_gives_no_heartbeat_as_a_row(home: Settings) -> None:
    """`doctor` and the pages use it."""

    class Stub:
        failure, device, pool = "It hangs.", "cpu", ()

        def __getattr__(self, name: str) -> Any:
            return lambda: None

    def beats() -> bool:
        with reading(home) as db:
            return processes.last_seen(db, "inference") is not None

    engine, uses = Stub(), threading.Semaphore(0)
    keys = Stub()
    keys.store_uses = uses.release  # the last call of each round
    upkeep = Upkeep(home, engine, Stub(), keys)
    assert uses.acquire(timeout=60) and not beats()
    engine.failure = ""
    upkeep._beat()
    assert beats()
    upkeep.close()


def test_readiness_reports_a_missing_database(hanging: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    missing = load({"SPECULOOS_HOME": str(hanging.settings.home / "nowhere")})
    monkeypatch.setattr("serving.main.reading", lambda settings: reading(missing))
    response = httpx.get(f"{hanging.url}/readyz")
    assert response.status_code == 503 and "database" in response.json()["database"]
    assert response.json()["device"] == "ok"


def test_the_watch_ends_a_failing_server_and_spares_one_that_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.02)
    monkeypatch.setattr(watch, "FAILURE_GRACE_SECONDS", 3.0)
    monkeypatch.setattr(watch.faulthandler, "dump_traceback_later", lambda *a, **k: None)  # pytest uses it
    monkeypatch.setattr(watch.faulthandler, "cancel_dump_traceback_later", lambda: None)
    ended: list[str] = []
    failure, calls = ["It hangs."], []

    def record_failure() -> str:
        calls.append((failure[0], time.monotonic()))
        return calls[-1][0]

    watching = DeviceWatch(record_failure, 60, ended.append)
    until(lambda: len(calls) > 10)
    failure[0] = ""
    until(lambda: calls[-1][0] == "")
    failure[0] = "It hangs again."
    until(lambda: bool(ended))
    recovered = max(at for reason, at in calls if not reason)
    assert ended == ["It hangs again."] and calls[-1][1] - recovered > watch.FAILURE_GRACE_SECONDS
    watching.close()


def test_an_interpreter_that_hangs_is_ended_from_outside_it() -> None:
    """A call of C code that keeps the interpreter's lock: no thread of Python runs, not even the watch."""
    code = (
        "import re, time\nfrom serving import watch\nwatch.FAILURE_GRACE_SECONDS = 0.5\nwatch.EVERY_SECONDS = 0.1\n"
        "watch.DeviceWatch(lambda: '', 0.5, print)\ntime.sleep(1)\nprint('hangs', flush=True)\n"
        f"re.match('(a+)+$', {'a' * 64 + 'b'!r})"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == 1 and result.stdout == "hangs\n"
    assert "Timeout" in result.stderr and "re" in result.stderr


def test_the_process_is_ended_with_its_reason() -> None:
    """test_process checks what happens to its runs."""
    code = "from serving.watch import end_process; end_process('It hangs.')"
    result = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=240)
    assert result.returncode == EXIT_CODE and "It hangs. The server ends so that its supervisor" in result.stderr
    assert "Current thread" in result.stderr, "the tracebacks of all threads"

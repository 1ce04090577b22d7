"""A device whose thread hangs or died: /healthz says so, the server ends, the next one fails what it left."""

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


def test_a_heart_is_late_after_the_limit_of_what_it_does() -> None:
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


def test_work_that_is_silent_for_too_long_is_ill_until_it_beats() -> None:
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
def test_a_thread_that_died_is_ill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(DeviceQueue, "_next", lambda self: (_ for _ in ()).throw(SystemExit))
    queue = DeviceQueue("test", limit=60)
    until(lambda: not queue._thread.is_alive())
    assert queue.failure == "its thread has ended"


@pytest.fixture(scope="module")
def hanging(model_files: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    yield from serve(tmp_path_factory.mktemp("home"), model_files, stuck_seconds=STUCK)


def test_health_and_readiness_say_that_the_device_hangs(hanging: Served) -> None:
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
    """`doctor` and the pages go by it."""

    class Stand:
        failure, device, pool = "It hangs.", "cpu", ()

        def __getattr__(self, name: str) -> Any:
            return lambda: None

    def beats() -> bool:
        with reading(home) as db:
            return processes.last_seen(db, "inference") is not None

    engine, uses = Stand(), threading.Semaphore(0)
    keys = Stand()
    keys.store_uses = uses.release  # the last thing of each round
    upkeep = Upkeep(home, engine, Stand(), keys)
    assert uses.acquire(timeout=60) and not beats()
    engine.failure = ""
    upkeep._beat()
    assert beats()
    upkeep.close()


def test_readiness_says_that_the_database_is_away(hanging: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    away = load({"SPECULOOS_HOME": str(hanging.settings.home / "nowhere")})
    monkeypatch.setattr("serving.main.reading", lambda settings: reading(away))
    answer = httpx.get(f"{hanging.url}/readyz")
    assert answer.status_code == 503 and "database" in answer.json()["database"]
    assert answer.json()["device"] == "ok"


def test_the_watch_ends_what_stays_ill_and_spares_what_recovers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "EVERY_SECONDS", 0.02)
    monkeypatch.setattr(watch, "FAILURE_GRACE_SECONDS", 3.0)
    monkeypatch.setattr(watch.faulthandler, "dump_traceback_later", lambda *a, **k: None)  # it is pytest's here
    monkeypatch.setattr(watch.faulthandler, "cancel_dump_traceback_later", lambda: None)
    ended: list[str] = []
    ill, began = ["It hangs."], time.monotonic()
    watching = DeviceWatch(lambda: ill[0] if time.monotonic() - began > 0.1 else "", 60, ended.append)
    until(lambda: time.monotonic() - began > 0.2)
    ill[0] = ""
    time.sleep(0.05)
    ill[0] = "It hangs again."
    again = time.monotonic()
    until(lambda: bool(ended))
    assert ended == ["It hangs again."] and time.monotonic() - again > 2.5
    watching.close()


def test_an_interpreter_that_hangs_is_ended_from_outside_it() -> None:
    """A call of C code that keeps the interpreter's lock: no thread of Python runs, not even the watch."""
    code = (
        "import re, time\nfrom serving import watch\nwatch.FAILURE_GRACE_SECONDS = 0.5\nwatch.EVERY_SECONDS = 0.1\n"
        "watch.DeviceWatch(lambda: '', 0.5, print)\ntime.sleep(1)\nprint('hangs', flush=True)\n"
        f"re.match('(a+)+$', {'a' * 64 + 'b'!r})"
    )
    made = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=240)
    assert made.returncode == 1 and made.stdout == "hangs\n"
    assert "Timeout" in made.stderr and "re" in made.stderr


def test_the_process_is_ended_with_its_reason() -> None:
    """What becomes of its runs is in test_process."""
    code = "from serving.watch import end_process; end_process('It hangs.')"
    made = subprocess.run([sys.executable, "-c", code], cwd=PROJECT_ROOT, capture_output=True, text=True, timeout=240)
    assert made.returncode == EXIT_CODE and "It hangs. The server ends so that its supervisor" in made.stderr
    assert "Current thread" in made.stderr, "the tracebacks of all threads"

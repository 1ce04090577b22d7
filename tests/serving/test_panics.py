"""Faults that are no Exception, real panics of Rust code among them: one request ends, its thread goes on."""

import json
import shutil
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import update

from models.identity import weights_sha256
from serving import watch
from serving.errors import UNEXPECTED
from serving.live import RunWriter
from serving.watch import Upkeep
from tests.serving.conftest import SAYING, Served, more_bases, ready_base, until
from tests.serving.test_live import ended, look, make_run, post
from tracking import leases, runs
from tracking.db import writing
from tracking.tables import DeviceLease

pytestmark = pytest.mark.integration


class Panic(BaseException):
    """As pyo3's PanicException, which cannot be made here."""


def change_tokenizer(folder: Path, **parts: Any) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **parts}))


def cracked_base(root: Path, cycle: Path) -> Path:
    """The cycle base, whose decoder panics in Rust (tokenizers/src/decoders/strip.rs: index out of bounds) at the
    second of the four tokens of the emoji that it always says first."""
    folder = root / "cracked"
    shutil.copytree(cycle, folder)
    pieces = json.loads((folder / "tokenizer.json").read_text())
    strip = {"type": "Strip", "content": "Ł", "start": 9, "stop": 9}
    change_tokenizer(folder, decoder={"type": "Sequence", "decoders": [strip, pieces["decoder"]]})
    return folder


@pytest.fixture(scope="module")
def cracked(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server with a base called `cracked`."""
    folder = cracked_base(tmp_path_factory.mktemp("cracked"), served.root / "cycle")
    with more_bases(served, ready_base("cracked", folder, weights_sha256(folder))):
        yield served


def says(served: Served, model: str) -> str:
    with served.client() as client:
        answer = client.post("/v1/chat/completions", json=served.ask(model))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]["message"]["content"]


def test_the_panic_is_a_real_one(cracked: Served, model_files: Path, tmp_path: Path) -> None:
    from models.base import load_tokenizer

    tokenizer = load_tokenizer(cracked_base(tmp_path, model_files / "cycle"))
    with pytest.raises(BaseException, match="index out of bounds") as panic:
        tokenizer.decode(tokenizer.encode(SAYING, add_special_tokens=False))
    assert type(panic.value).__name__ == "PanicException" and not isinstance(panic.value, Exception)


@pytest.mark.timeout(120)
def test_a_panic_on_the_devices_thread_is_a_500_and_the_next_request_works(cracked: Served) -> None:
    before = cracked.engine.metrics.panics._value.get()
    with cracked.client() as client:
        answer = client.post("/v1/chat/completions", json=cracked.ask("cracked"))
        assert answer.status_code == 500 and answer.json()["error"]["message"] == UNEXPECTED
        assert says(cracked, "cycle").startswith(SAYING)
        with client.stream("POST", "/v1/chat/completions", json=cracked.ask("cracked", stream=True)) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert UNEXPECTED in lines[-1] and "Panic" not in "".join(lines)
        assert client.get("/healthz").json()["status"] == "ok"
    assert says(cracked, "cycle").startswith(SAYING)
    until(lambda: cracked.engine.metrics.panics._value.get() == before + 2)


@pytest.mark.timeout(120)
def test_a_run_that_panics_is_failed_and_the_next_one_works(cracked: Served) -> None:
    broken, whole = make_run(cracked, "cracked"), make_run(cracked, "cycle")
    post(cracked, broken)
    post(cracked, whole)
    assert ended(cracked, broken).state == "FAILED" and look(cracked, broken).error == UNEXPECTED
    assert ended(cracked, whole).state == "SUCCEEDED"


def test_what_a_panic_left_half_done_is_not_used_again(cracked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache and the tokenizer, whose locks the panic may still hold."""
    assert says(cracked, "cycle").startswith(SAYING)
    warm = cracked.engine.pool._bases.values()
    target = next(base.target for base in warm if Path(base.key[0]).name == "cycle")
    tokenizer, verify = target.base.tokenizer, target.forward_tree
    monkeypatch.setattr(target, "forward_tree", lambda *a, **k: (verify(*a, **k), (_ for _ in ()).throw(Panic("half"))))
    with cracked.client() as client:
        assert client.post("/v1/chat/completions", json=cracked.ask("cycle")).status_code == 500
    monkeypatch.undo()
    assert says(cracked, "cycle").startswith(SAYING)
    assert target.base.tokenizer is not tokenizer


def test_a_panic_while_steps_are_stored_fails_the_run_alone(cracked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: Any) -> None:
        raise Panic("no rows")

    monkeypatch.setattr(runs, "add_steps", panic)
    broken = make_run(cracked, "cycle", max_tokens=3000)
    post(cracked, broken)
    assert ended(cracked, broken).state == "FAILED"
    monkeypatch.undo()
    whole = make_run(cracked, "cycle")
    post(cracked, whole)
    assert ended(cracked, whole).state == "SUCCEEDED"


def test_a_writer_whose_thread_panicked_says_so(cracked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "add_steps", lambda *_: (_ for _ in ()).throw(Panic("no rows")))
    writer = RunWriter(cracked.settings, "x" * 32)
    writer.step({"index": 0})
    with pytest.raises(Panic):
        writer.close()


def test_upkeep_goes_on_whatever_it_meets(cracked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "UPKEEP_SECONDS", 0.01)
    calls: list[str] = []

    class Faulty:
        """Everything that upkeep works with."""

        failure, device, pool = "", "cpu", ()

        def unload_for_job(self) -> None:
            calls.append("unload")
            raise Panic("a driver")

        def fail_orphaned(self) -> None:
            calls.append("fail")
            raise RuntimeError("a bug")

        def store_uses(self) -> None:
            calls.append("store")

    made = Upkeep(cracked.settings, Faulty(), Faulty(), Faulty())
    until(lambda: calls.count("store") > 2)
    made.close()
    assert calls[:6] == ["unload", "fail", "store"] * 2


def test_a_lease_that_cannot_be_renewed_is_said_whatever_the_reason(
    cracked: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    cracked.wait_idle()
    monkeypatch.setattr(leases, "RENEW_EVERY", 0.01)
    failed = threading.Event()

    def panic(*_: Any) -> None:
        failed.set()
        raise Panic("a driver")

    monkeypatch.setattr(leases, "renew", panic)
    with leases.exclusive_device(cracked.settings, "cpu", "r" * 32) as sharing:
        assert failed.wait(20)
        until(lambda: sharing.shared_with == leases.UNKNOWN_HOLDER)


def test_an_answer_is_not_lost_for_a_lease_that_cannot_be_given_back(
    cracked: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    from speculoos.errors import Unavailable

    cracked.wait_idle()
    monkeypatch.setattr(leases, "release", lambda *_: (_ for _ in ()).throw(Unavailable("The database is away.")))
    with leases.exclusive_device(cracked.settings, "cpu", "r" * 32):
        pass
    monkeypatch.undo()
    with writing(cracked.settings) as session:
        session.execute(update(DeviceLease).values(holder="", until=None))


def test_a_run_whose_end_cannot_be_written_is_marked_later(cracked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    from speculoos.errors import Unavailable

    live_session = writing

    @contextmanager
    def away(settings: Any) -> Iterator[Any]:
        raise Unavailable("The database is away.")
        yield

    run_id = make_run(cracked, "cycle", max_tokens=3000)
    post(cracked, run_id)
    until(lambda: look(cracked, run_id).state == "RUNNING")
    monkeypatch.setattr("serving.live.writing", away)
    cracked.wait_idle(60)
    assert look(cracked, run_id).state == "RUNNING"
    monkeypatch.setattr("serving.live.writing", live_session)
    assert ended(cracked, run_id).state == "FAILED"
    assert "away" in look(cracked, run_id).error

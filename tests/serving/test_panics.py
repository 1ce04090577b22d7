"""Faults that are no Exception, such as panics of Rust code: one request fails, and its thread goes on."""

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
from tests.serving.conftest import CYCLE_TEXT, Served, more_bases, ready_base, until
from tests.serving.test_live import make_run, post, read_run, wait_until_ended
from tracking import leases, runs
from tracking.db import writing
from tracking.tables import DeviceLease

pytestmark = pytest.mark.integration


class Panic(BaseException):
    """Like pyo3's PanicException, which cannot be created here."""


def change_tokenizer(folder: Path, **fields: Any) -> None:
    path = folder / "tokenizer.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def cracked_base(root: Path, cycle: Path) -> Path:
    """The cycle base, whose decoder panics in Rust (tokenizers/src/decoders/strip.rs: index out of bounds) at the
    second of the four tokens of the emoji that it always generates first."""
    folder = root / "cracked"
    shutil.copytree(cycle, folder)
    tokenizer = json.loads((folder / "tokenizer.json").read_text())
    strip = {"type": "Strip", "content": "Ł", "start": 9, "stop": 9}
    change_tokenizer(folder, decoder={"type": "Sequence", "decoders": [strip, tokenizer["decoder"]]})
    return folder


@pytest.fixture(scope="module")
def cracked(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """The server with a base called `cracked`."""
    folder = cracked_base(tmp_path_factory.mktemp("cracked"), served.root / "cycle")
    with more_bases(served, ready_base("cracked", folder, weights_sha256(folder))):
        yield served


def complete(served: Served, model: str) -> str:
    with served.client() as client:
        response = client.post("/v1/chat/completions", json=served.chat_request(model))
    assert response.status_code == 200, response.text
    return response.json()["choices"][0]["message"]["content"]


def test_the_panic_is_a_real_one(cracked: Served, model_files: Path, tmp_path: Path) -> None:
    from models.base import load_tokenizer

    tokenizer = load_tokenizer(cracked_base(tmp_path, model_files / "cycle"))
    with pytest.raises(BaseException, match="index out of bounds") as error:
        tokenizer.decode(tokenizer.encode(CYCLE_TEXT, add_special_tokens=False))
    assert type(error.value).__name__ == "PanicException" and not isinstance(error.value, Exception)


@pytest.mark.timeout(120)
def test_a_panic_on_the_devices_thread_is_a_500_and_the_next_request_works(cracked: Served) -> None:
    before = cracked.engine.metrics.panics._value.get()
    with cracked.client() as client:
        response = client.post("/v1/chat/completions", json=cracked.chat_request("cracked"))
        assert response.status_code == 500 and response.json()["error"]["message"] == UNEXPECTED
        assert complete(cracked, "cycle").startswith(CYCLE_TEXT)
        with client.stream("POST", "/v1/chat/completions", json=cracked.chat_request("cracked", stream=True)) as stream:
            lines = [line for line in stream.iter_lines() if line]
        assert UNEXPECTED in lines[-1] and "Panic" not in "".join(lines)
        assert client.get("/healthz").json()["status"] == "ok"
    assert complete(cracked, "cycle").startswith(CYCLE_TEXT)
    until(lambda: cracked.engine.metrics.panics._value.get() == before + 2)


@pytest.mark.timeout(120)
def test_a_run_that_panics_is_failed_and_the_next_one_works(cracked: Served) -> None:
    broken, whole = make_run(cracked, "cracked"), make_run(cracked, "cycle")
    post(cracked, broken)
    post(cracked, whole)
    assert wait_until_ended(cracked, broken).state == "FAILED" and read_run(cracked, broken).error == UNEXPECTED
    assert wait_until_ended(cracked, whole).state == "SUCCEEDED"


def test_what_a_panic_left_half_done_is_not_used_again(cracked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache and the tokenizer are replaced: the panic may still hold their locks."""
    assert complete(cracked, "cycle").startswith(CYCLE_TEXT)
    warm = cracked.engine.pool._bases.values()
    target = next(base.target for base in warm if Path(base.key[0]).name == "cycle")
    tokenizer, verify = target.base.tokenizer, target.forward_tree
    monkeypatch.setattr(target, "forward_tree", lambda *a, **k: (verify(*a, **k), (_ for _ in ()).throw(Panic("half"))))
    with cracked.client() as client:
        assert client.post("/v1/chat/completions", json=cracked.chat_request("cycle")).status_code == 500
    monkeypatch.undo()
    assert complete(cracked, "cycle").startswith(CYCLE_TEXT)
    assert target.base.tokenizer is not tokenizer


def test_a_panic_while_steps_are_stored_fails_the_run_alone(cracked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def panic(*_: Any) -> None:
        raise Panic("no rows")

    monkeypatch.setattr(runs, "add_steps", panic)
    broken = make_run(cracked, "cycle", max_tokens=3000)
    post(cracked, broken)
    assert wait_until_ended(cracked, broken).state == "FAILED"
    monkeypatch.undo()
    whole = make_run(cracked, "cycle")
    post(cracked, whole)
    assert wait_until_ended(cracked, whole).state == "SUCCEEDED"


def test_a_writer_whose_thread_panicked_raises_the_panic(cracked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "add_steps", lambda *_: (_ for _ in ()).throw(Panic("no rows")))
    writer = RunWriter(cracked.settings, "x" * 32)
    writer.step({"index": 0})
    with pytest.raises(Panic):
        writer.close()


def test_upkeep_continues_after_any_fault(cracked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch, "UPKEEP_SECONDS", 0.01)
    calls: list[str] = []

    class Faulty:
        """The engine, the live runs and the keys of upkeep."""

        failure, device, pool = "", "cpu", ()

        def unload_for_job(self) -> None:
            calls.append("unload")
            raise Panic("a driver")

        def fail_orphaned(self) -> None:
            calls.append("fail")
            raise RuntimeError("a bug")

        def store_uses(self) -> None:
            calls.append("store")

    upkeep = Upkeep(cracked.settings, Faulty(), Faulty(), Faulty())
    until(lambda: calls.count("store") > 2)
    upkeep.close()
    assert calls[:6] == ["unload", "fail", "store"] * 2


def test_a_lease_that_cannot_be_renewed_is_reported_whatever_the_reason(
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


def test_an_answer_is_not_lost_if_a_lease_cannot_be_released(cracked: Served, monkeypatch: pytest.MonkeyPatch) -> None:
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
    def fail(settings: Any) -> Iterator[Any]:
        raise Unavailable("The database is away.")
        yield

    run_id = make_run(cracked, "cycle", max_tokens=3000)
    post(cracked, run_id)
    until(lambda: read_run(cracked, run_id).state == "RUNNING")
    monkeypatch.setattr("serving.live.writing", fail)
    cracked.wait_idle(60)
    assert read_run(cracked, run_id).state == "RUNNING"
    monkeypatch.setattr("serving.live.writing", live_session)
    assert wait_until_ended(cracked, run_id).state == "FAILED"
    assert "away" in read_run(cracked, run_id).error

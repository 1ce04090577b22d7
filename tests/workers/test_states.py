"""A training goes on from its last state on a machine that has nothing of it but what the store has."""

import json
import signal
import uuid
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from sqlalchemy import func, select

from speculoos.settings import Settings
from speculoos.store import Store
from tests.workers.conftest import Bench
from tests.workers.training_bench import submit_training
from tests.workers.two_machines import row, second
from tracking import db
from tracking.tables import Checkpoint, Metric
from training.resume_points import latest_resume_point
from workers.child.states import UploadedCheckpoints

pytestmark = pytest.mark.integration

STEPS = 400


@pytest.fixture
def store() -> Store:
    return Store(f"memory://{uuid.uuid4().hex}")


def made(folder: Path, step: int) -> Path:
    state = folder / f"state-{step}"
    state.mkdir(parents=True)
    (state / "draft.safetensors").write_text(f"weights of step {step}")
    (state / "state.json").write_text("{}")
    return state


def test_the_newest_state_is_kept_with_the_best_draft(store: Store, tmp_path: Path) -> None:
    kept, folder = UploadedCheckpoints(store, "c"), tmp_path / "one" / "attempt-1"
    assert kept.note() == {} and not kept.download(tmp_path / "none")
    kept.put(1, made(folder, 10))
    (folder / "best").mkdir()
    (folder / "best" / "model.safetensors").write_text("best")
    kept.put(1, made(folder, 20))
    assert {name.split("/")[0] for name in store.names(kept.prefix)} == {"1-state-20", "newest.json"}
    assert kept.download(tmp_path / "other")
    there = tmp_path / "other" / "attempt-1"
    assert latest_resume_point(there) == there / "state-20" and (there / "best" / "model.safetensors").exists()
    assert (there / "state-20" / "draft.safetensors").read_text() == "weights of step 20"


def test_another_attempt_takes_nothing_from_the_one_before(store: Store, tmp_path: Path) -> None:
    """An attempt that was fenced out may still be putting its state: what it has put stays."""
    kept = UploadedCheckpoints(store, "c")
    kept.put(1, made(tmp_path / "attempt-1", 10))
    kept.put(2, made(tmp_path / "attempt-2", 20))
    assert {name.split("/")[0] for name in store.names(kept.prefix)} == {"1-state-10", "2-state-20", "newest.json"}
    store.write(f"{kept.prefix}/newest.json", b"half")
    assert kept.note() == {}


@pytest.mark.parametrize(
    "changes",
    [
        {"attempt": "1/../../../elsewhere"},
        {"folders": {"../../../elsewhere": "ab"}},
        {"folders": []},
        {"place": ""},
        {"place": "checkpoints/other/states/1-state-10"},
        {"place": "checkpoints/c/states/../../other"},
        {"place": None},
    ],
)
def test_a_note_that_leads_elsewhere_is_none(store: Store, tmp_path: Path, changes: dict[str, Any]) -> None:
    kept = UploadedCheckpoints(store, "c")
    kept.put(1, made(tmp_path / "attempt-1", 10))
    assert kept.note()
    store.write(f"{kept.prefix}/newest.json", json.dumps({**kept.note(), **changes}).encode())
    assert kept.note() == {} and not kept.download(tmp_path / "other")
    assert not (tmp_path / "other").exists() and not (tmp_path / "elsewhere").exists()


@pytest.fixture
def pair(home: Settings, broker: str, tmp_path: Path) -> Iterator[tuple[Bench, Bench]]:
    store = f"file://{tmp_path}/store"
    more = {"SPECULOOS_STORE": store}
    first = Bench(replace(home, redis_url=f"{broker}?virtual_host=10", store=store), forked=True, **more)
    other = second(first, tmp_path / "other", **more)
    yield first, other
    other.end()
    first.end()


def test_a_training_goes_on_where_a_machine_that_is_gone_left_it(pair: tuple[Bench, Bench], tiny_base: Path) -> None:
    first, other = pair
    first.reconciler()
    worker = other.worker("gpu")
    job = submit_training(first, tiny_base, STEPS, 20)
    checkpoint = job.request["checkpoint_id"]
    kept = UploadedCheckpoints(Store(first.settings.store), checkpoint)
    first.wait_for(job.id, lambda _: bool(kept.note()), "a state in the store", 240)
    family = psutil.Process(worker.pid).children(recursive=True)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    psutil.wait_procs(family)  # before its files go, as those of a machine do
    other.settings.home.rename(other.settings.home.with_name("gone"))
    first.worker("gpu")
    done = first.wait(job.id, "SUCCEEDED", 180)
    assert done.attempt == 2
    with db.reading(first.settings) as session:
        steps = select(func.min(Metric.step)).where(Metric.job_id == job.id, Metric.attempt == 2)
        assert session.scalar(steps) > 1, "it did not begin anew"
    assert Path(row(first, Checkpoint, checkpoint).path).exists() and kept.note() == {}, "states go when it is done"

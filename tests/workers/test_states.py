"""A training resumes from its last state on a machine that has only the files of the store."""

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
    uploaded, folder = UploadedCheckpoints(store, "c"), tmp_path / "one" / "attempt-1"
    assert uploaded.note() == {} and not uploaded.download(tmp_path / "none")
    uploaded.put(1, made(folder, 10))
    (folder / "best").mkdir()
    (folder / "best" / "model.safetensors").write_text("best")
    uploaded.put(1, made(folder, 20))
    assert {name.split("/")[0] for name in store.names(uploaded.prefix)} == {"1-state-20", "newest.json"}
    assert uploaded.download(tmp_path / "other")
    target = tmp_path / "other" / "attempt-1"
    assert latest_resume_point(target) == target / "state-20" and (target / "best" / "model.safetensors").exists()
    assert (target / "state-20" / "draft.safetensors").read_text() == "weights of step 20"


def test_another_attempt_takes_nothing_from_the_one_before(store: Store, tmp_path: Path) -> None:
    """A fenced attempt may still be uploading its state, so what it has uploaded stays."""
    uploaded = UploadedCheckpoints(store, "c")
    uploaded.put(1, made(tmp_path / "attempt-1", 10))
    uploaded.put(2, made(tmp_path / "attempt-2", 20))
    assert {name.split("/")[0] for name in store.names(uploaded.prefix)} == {"1-state-10", "2-state-20", "newest.json"}
    store.write(f"{uploaded.prefix}/newest.json", b"half")
    assert uploaded.note() == {}


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
def test_a_note_that_leads_elsewhere_is_ignored(store: Store, tmp_path: Path, changes: dict[str, Any]) -> None:
    uploaded = UploadedCheckpoints(store, "c")
    uploaded.put(1, made(tmp_path / "attempt-1", 10))
    assert uploaded.note()
    store.write(f"{uploaded.prefix}/newest.json", json.dumps({**uploaded.note(), **changes}).encode())
    assert uploaded.note() == {} and not uploaded.download(tmp_path / "other")
    assert not (tmp_path / "other").exists() and not (tmp_path / "elsewhere").exists()


@pytest.fixture
def pair(home: Settings, broker: str, tmp_path: Path) -> Iterator[tuple[Bench, Bench]]:
    store = f"file://{tmp_path}/store"
    environment = {"SPECULOOS_STORE": store, "SPECULOOS_LEASE_SECONDS": "3"}
    first = Bench(replace(home, redis_url=f"{broker}?virtual_host=10", store=store), forked=True, **environment)
    other = second(first, tmp_path / "other", **environment)
    yield first, other
    other.end()
    first.end()


def test_a_training_goes_on_where_a_machine_that_is_gone_left_it(pair: tuple[Bench, Bench], tiny_base: Path) -> None:
    first, other = pair
    worker = other.worker("gpu")
    job = submit_training(first, tiny_base, STEPS, 20)
    checkpoint = job.request["checkpoint_id"]
    uploaded = UploadedCheckpoints(Store(first.settings.store), checkpoint)
    first.wait_for(job.id, lambda _: bool(uploaded.note()), "a state in the store", 240)
    children = psutil.Process(worker.pid).children(recursive=True)
    worker.send_signal(signal.SIGKILL)
    worker.wait()
    psutil.wait_procs(children)  # they must end before the files are moved away
    other.settings.home.rename(other.settings.home.with_name("gone"))
    first.worker("gpu")
    reconciler = first.reconciler()
    first.wait_for(job.id, lambda j: j.attempt == 2, "the next attempt")
    reconciler.kill()  # it would also take the job from this worker if it were slow
    done = first.wait(job.id, "SUCCEEDED", 180)
    assert done.attempt == 2
    with db.reading(first.settings) as session:
        steps = select(func.min(Metric.step)).where(Metric.job_id == job.id, Metric.attempt == 2)
        assert session.scalar(steps) > 1, "it did not begin anew"
    assert Path(row(first, Checkpoint, checkpoint).path).exists() and uploaded.note() == {}, "states go when it is done"

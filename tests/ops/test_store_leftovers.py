"""A cleanup on request removes from the store what no row refers to; what a row or a job needs stays."""

import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from ops import retention, storage, verify
from ops.backup import back_up
from speculoos.errors import Unavailable
from speculoos.settings import Settings
from speculoos.store import Store, open_store
from tests.tools.homes import write_answers
from tests.workers.test_states import made
from tracking import db, jobs, retention_rules, stored
from tracking.stored import RowFiles
from tracking.tables import Base, Checkpoint, Dataset, now
from workers.child.states import UploadedCheckpoints

LATER = timedelta(days=2)


@pytest.fixture
def settings(home: Settings) -> Iterator[Settings]:
    yield replace(home, store=f"memory://{uuid.uuid4().hex}")


def data_set(settings: Settings, name: str, **values: object) -> Dataset:
    folder = write_answers(settings.home / "datasets" / name, 3, 8)
    with db.writing(settings) as session:
        row = Dataset(name=name, kind="conversations", state="ready", path=str(folder), rows=3, **values)
        session.add(row)
    return row


def upload(settings: Settings, row: Dataset) -> None:
    folder = RowFiles(settings).upload("datasets", row.id, Path(row.path))
    with db.writing(settings) as session:
        stored.save_stored(session, "datasets", row.id, folder)


def store_of(settings: Settings) -> Store:
    store = open_store(settings.store)
    assert store
    return store


def test_missing_files_are_reported_without_the_store_s_password(home: Settings) -> None:
    settings = replace(home, store=f"memory://me:sesame-0815@{uuid.uuid4().hex}")
    row = Dataset(id="gone", name="one", path=str(home.home / "datasets" / "gone"))
    with pytest.raises(Unavailable, match="neither on this machine nor in the store memory://") as error:
        RowFiles(settings).download(row, None)
    assert "sesame" not in str(error.value)


def test_only_what_a_row_refers_to_stays(settings: Settings) -> None:
    row, store = data_set(settings, "one"), store_of(settings)
    upload(settings, row)
    (Path(row.path) / "dataset.json").write_text("{}")
    upload(settings, row)
    store.write("datasets/gone/files/0815", b"of a row that was deleted while the store was away")
    store.write(f"datasets/{row.id}/parts/half.jsonl", b"of a job that ended badly")
    left = storage.store_leftovers(settings, now() + LATER)
    assert len(left) == 4, "a deleted row's, a part, an older list and an older dataset.json"
    assert storage.store_leftovers(settings) == {}, "nothing that is younger than a day"
    removed = retention.clean(settings, leftovers=True, dry_run=True, at=now() + LATER)
    assert removed["leftovers"].count == 4 and len(store.names()) == 7
    retention.clean(settings, leftovers=True, at=now() + LATER)
    assert len(store.names()) == 3 and storage.store_leftovers(settings, now() + LATER) == {}
    with db.reading(settings) as session:
        entry = stored.stored_entry(session, row.id)
    assert set(store.listed(f"datasets/{row.id}", entry.key)) == {"dataset.json", "shard-00000.jsonl"}


def test_what_a_job_works_on_is_left_alone(settings: Settings) -> None:
    with db.writing(settings) as session:
        job = jobs.create(session, kind="generate_data", queue="gpu", request={}, name="at work")
    row = data_set(settings, "two", job_id=job.id)
    store_of(settings).write(f"datasets/{row.id}/parts/half.jsonl", b"finished, and not yet put together")
    assert storage.store_leftovers(settings, now() + LATER) == {}


@pytest.fixture
def trained(settings: Settings) -> Callable[..., Checkpoint]:
    """trained(state, days, published): a checkpoint whose training ended `days` days ago, with a state in the store.
    The checkpoint itself is in the store if `published`."""

    def make(state: str, days: float, published: bool) -> Checkpoint:
        with db.writing(settings) as session:
            session.add(Base(id="base", name="base", source="folder", location="/x", path="/x", state="ready"))
            job = jobs.create(session, kind="train", queue="gpu", request={}, name="heads")
            job.state, job.finished_at = state, now() - timedelta(days=days)
            row = Checkpoint(name="heads", method="medusa", base_id="base", state="ready", job_id=job.id)
            session.add(row)
            session.flush()
            folder = settings.home / "checkpoints" / row.id / "attempt-1"
            folder.mkdir(parents=True)
            (folder / "model.safetensors").write_text("weights")
            row.path = str(folder)
        if published:  # before a tuning of its tree
            stored_folder = RowFiles(settings).upload("checkpoints", row.id, folder)
            with db.writing(settings) as session:
                stored.save_stored(session, "checkpoints", row.id, stored_folder)
        UploadedCheckpoints(store_of(settings), row.id).put(1, made(folder, 10))
        return row

    return make


@pytest.mark.parametrize("published", [True, False], ids=["after it was published", "before"])
@pytest.mark.parametrize(
    ("state", "days", "stay"),
    [("FAILED", 3, True), ("CANCELLED", 13, True), ("FAILED", 15, False), ("CANCELLED", 15, False)]
    + [("SUCCEEDED", 3, False), ("INTERRUPTED", 15, True)],
)
def test_states_stay_as_long_as_in_a_home(
    state: str, days: float, stay: bool, published: bool, settings: Settings, trained: Callable[..., Checkpoint]
) -> None:
    row, store = trained(state, days - 2, published), store_of(settings)
    removed = retention.clean(settings, leftovers=True, at=now() + LATER)
    assert bool(UploadedCheckpoints(store, row.id).note()) == stay and bool(removed["leftovers"].count) != stay
    assert not list(store.names(UploadedCheckpoints(store, row.id).prefix)) or stay, "whole or not at all"
    here = retention.states_of(settings.home / "checkpoints" / row.id)
    assert bool(here) == (stay or state == "SUCCEEDED"), "the home's rule"
    if published:
        with db.reading(settings) as session:
            entry = stored.stored_entry(session, row.id)
        assert "model.safetensors" in store.listed(f"checkpoints/{row.id}", entry.key)


def test_states_stay_for_good_where_the_rule_says_so(settings: Settings, trained: Callable[..., Checkpoint]) -> None:
    row = trained("FAILED", 400, True)
    retention_rules.save_rules(settings, {"keep_states_days": 0})
    retention.clean(settings, leftovers=True, at=now() + LATER)
    assert UploadedCheckpoints(store_of(settings), row.id).note()


def test_states_of_a_training_that_is_retried_meanwhile_stay(
    settings: Settings, trained: Callable[..., Checkpoint]
) -> None:
    row = trained("FAILED", 400, True)
    left = storage.store_leftovers(settings, now() + LATER, now())
    assert any("/states/" in name for name in left)
    with db.writing(settings) as session:
        jobs.retry(session, row.job_id)
    storage.remove_from_store(settings, left)
    assert UploadedCheckpoints(store_of(settings), row.id).note()


def test_what_only_the_store_has_is_neither_damaged_nor_forgotten(settings: Settings, tmp_path: Path) -> None:
    row = data_set(settings, "three")
    upload(settings, row)
    other = replace(settings, home=tmp_path / "other")
    other.home.mkdir()
    (finding,) = verify.check(other)
    assert finding.damage == {} and finding.path == "the store"
    report = back_up(other, tmp_path / "backup.tar")
    assert report.wrong == [] and report.outside == [f"three (in the store {settings.store})"]
    (finding,) = verify.check(settings)
    assert finding.damage == {} and finding.path == row.path

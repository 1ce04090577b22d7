"""Machines share a database, a broker and a store but no folder; each fetches the other's files."""

import json
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from corpus.shards import read_rows
from models.archive import checkpoint_problems
from models.damage import dataset_problems
from models.starter import STARTER_HEAD
from ops import retention
from speculoos.checksums import read_checksums
from speculoos.errors import Unavailable
from speculoos.settings import Settings
from speculoos.store import open_store, read_key
from tests.workers.conftest import Bench
from tests.workers.two_machines import (
    files,
    generation,
    is_here,
    prompts,
    row,
    second,
    tiny,
    training,
    upload,
)
from tracking import changes, db, stored
from tracking.tables import Base, Checkpoint, Dataset, Stored
from workers import identity
from workers.child import files as child_files
from workers.child.context import JobContext
from workers.jobs.submit import retry, submit
from workers.timing import job_timing

pytestmark = pytest.mark.integration

TEXTS = [f"number {n}" for n in range(10)]


@pytest.fixture
def pair(home: Settings, broker: str, tmp_path: Path) -> Iterator[tuple[Bench, Bench]]:
    """The machine with the pages, and one with workers; nothing runs yet."""
    url = f"{broker}?virtual_host=9"
    store = f"file://{tmp_path}/store"
    first = Bench(replace(home, redis_url=url, store=store), forked=True, SPECULOOS_STORE=store)
    other = second(first, tmp_path / "other", SPECULOOS_STORE=store)
    yield first, other
    other.end()
    first.end()


def test_another_machine_makes_data_and_heads_and_the_first_reads_them(pair: tuple[Bench, Bench]) -> None:
    first, other = pair
    base = tiny(first)
    for queue in ("gpu", "io"):
        other.worker(queue)
    first.reconciler()
    source = prompts(first, TEXTS)
    assert is_here(other, Dataset, source) and not is_here(first, Dataset, source)
    generated = generation(first, base, source, 5)
    first.wait(generated.id, "SUCCEEDED", 300)
    data = row(first, Dataset, generated.request["dataset_id"])
    assert data.rows == len(TEXTS) and not Path(data.path).exists()
    trained = training(first, base, data.id)
    first.wait(trained.id, "SUCCEEDED", 300)
    heads = row(first, Checkpoint, trained.request["checkpoint_id"])
    assert not Path(heads.path).exists(), "the first machine has nothing of it yet"
    check_first_reads(first, other, data, heads)
    store = open_store(first.settings.store)
    assert not store.names(f"datasets/{data.id}/parts"), "shards that were put together are not kept twice"
    assert not store.names("uploads") and not list((other.settings.home / "uploads").glob("*"))


def check_first_reads(first: Bench, other: Bench, data: Dataset, heads: Checkpoint) -> None:
    for each, find_problems in (
        (data, dataset_problems),
        (heads, lambda path: checkpoint_problems(path, heads.sha256)),
    ):
        assert find_problems(Path(files(first).local(each))) == {}
    assert Path(heads.path).is_relative_to(first.settings.home)
    messages = {json.dumps(line["messages"]) for line in read_rows(data.path)}
    assert messages == {
        json.dumps(line["messages"]) for line in read_rows(files(other).path(row(other, Dataset, data.id)))
    }


def test_a_deleted_row_goes_from_the_store_too(pair: tuple[Bench, Bench]) -> None:
    first, _ = pair
    base = tiny(first)
    store = open_store(first.settings.store)
    deliver_files(first, Base, base, row(first, Base, base).path)
    assert store.names(f"models/{base}")
    with db.writing(first.settings) as session:
        paths = changes.delete(session, first.settings, session.get_one(Base, base))
    changes.remove_files(paths)
    assert store.names() == {}
    with db.reading(first.settings) as session:
        assert session.query(Stored).count() == 0


def deliver_files(bench: Bench, table: type, row_id: str, folder: str) -> None:
    """Upload files and record them, as a job does when it publishes."""
    entry = job_files(bench).upload(table, row_id, folder)
    with db.writing(bench.settings) as session:
        stored.save_stored(session, stored.KINDS[table], row_id, entry)


def job_files(bench: Bench) -> child_files.JobFiles:
    return JobContext(bench.settings, "job", 1, job_timing()).files


def test_a_kill_between_delivery_and_publishing_loses_nothing(pair: tuple[Bench, Bench]) -> None:
    """The row does not refer to the delivered files yet; the next attempt delivers them again and publishes them."""
    first, other = pair
    base = tiny(first)
    path = row(first, Base, base).path
    job_files(first).upload(Base, base, path)  # and the process is killed here
    with db.reading(first.settings) as session:
        assert stored.stored_entry(session, base) is None
    with pytest.raises(Unavailable, match="neither on this machine nor in the store"):
        files(other).local(row(other, Base, base))
    deliver_files(first, Base, base, path)
    assert Path(files(other).local(row(other, Base, base))).is_relative_to(other.settings.home)


def test_a_base_outside_of_the_home_comes_into_the_other_home(pair: tuple[Bench, Bench], tmp_path: Path) -> None:
    first, other = pair
    base = tiny(first)
    outside = tmp_path / "elsewhere" / "tiny"
    shutil.copytree(row(first, Base, base).path, outside)
    with db.writing(first.settings) as session:
        session.get_one(Base, base).path = str(outside)
    deliver_files(first, Base, base, str(outside))
    assert read_key(outside) == "", "someone's own folder is left as it is"
    assert files(first).local(row(first, Base, base)) == str(outside)
    shutil.rmtree(outside)
    assert files(other).local(row(other, Base, base)) == str(other.settings.home / "models" / base)


def test_a_path_that_ends_above_itself_comes_into_a_folder_of_its_own(
    pair: tuple[Bench, Bench], tmp_path: Path
) -> None:
    first, other = pair
    path = tmp_path / "elsewhere" / "folder" / ".."
    (tmp_path / "elsewhere" / "folder").mkdir(parents=True)
    (path / "config.json").write_text("{}")
    path_id = stored.path_id(first.settings, path)
    entry = files(first).upload(stored.UPLOADS, path_id, path)
    with db.writing(first.settings) as session:
        stored.save_stored(session, stored.UPLOADS, path_id, entry)
    shutil.rmtree(tmp_path / "elsewhere")
    other_upload = other.settings.home / "uploads" / "someone" / "texts.jsonl"
    other_upload.parent.mkdir(parents=True)
    other_upload.write_text("{}")
    downloaded = Path(job_files(other).download_path(str(path)))
    assert (downloaded / "config.json").exists() and downloaded.parent.name == path_id
    assert other_upload.exists(), "another's upload is not of that folder"


def test_the_shipped_head_is_compared_and_never_travels(pair: tuple[Bench, Bench]) -> None:
    first, other = pair
    base = tiny(first)
    with db.writing(first.settings) as session:
        sum_of_head = read_checksums(STARTER_HEAD)["model.safetensors"]
        elsewhere = {"method": "eagle3", "state": "ready", "path": "/another/installation/starter_head"}
        session.add(Checkpoint(id="c" * 32, name="starter", base_id=base, sha256=sum_of_head, **elsewhere))
        session.add(Checkpoint(id="d" * 32, name="older", base_id=base, sha256="0" * 64, **elsewhere))
    assert files(other).local(row(other, Checkpoint, "c" * 32)) == str(STARTER_HEAD)
    with pytest.raises(Unavailable, match="has no starter model with the weights"):
        files(other).local(row(other, Checkpoint, "d" * 32))


def test_a_store_that_is_away_for_a_moment_is_waited_for(
    pair: tuple[Bench, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, _ = pair
    base = tiny(first)
    monkeypatch.setattr(child_files, "PAUSE", 0.05)
    jobs_files, tries = job_files(first), []
    real = jobs_files.store.put_folder

    def away_at_first(*arguments: object) -> object:
        tries.append(1)
        if len(tries) < 3:
            raise child_files.StoreUnavailable("The store does not answer.")
        return real(*arguments)

    monkeypatch.setattr(jobs_files.store, "put_folder", away_at_first)
    assert jobs_files.upload(Base, base, row(first, Base, base).path) and len(tries) == 3
    tries.clear()
    monkeypatch.setattr(child_files, "STORE_TIMEOUT", 0.0)
    with pytest.raises(Unavailable, match="does not answer"):
        jobs_files.upload(Base, base, row(first, Base, base).path)


def test_uploads_of_jobs_that_ended_badly_go_from_the_store_with_time(pair: tuple[Bench, Bench]) -> None:
    first, _ = pair
    job = submit(upload(first, TEXTS), settings=first.settings)
    assert open_store(first.settings.store).names("uploads")
    with db.writing(first.settings) as session:
        entry = session.query(Stored).one()
        entry.created_at = entry.created_at.replace(year=2020)
    assert retention.clean(first.settings)["uploads"].count == 0, "its job waits"
    with db.writing(first.settings) as session:
        session.get_one(type(job), job.id).state = "FAILED"
    assert retention.clean(first.settings)["uploads"].count == 1
    assert open_store(first.settings.store).names("uploads") == {}


def test_machines_do_not_judge_each_others_processes(
    pair: tuple[Bench, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = pair
    other.settings.home.mkdir(exist_ok=True)
    monkeypatch.setenv("SPECULOOS_HOME", str(other.settings.home))
    theirs, lasting = identity.worker_id(), identity.process_identity(1)
    gone = theirs.rpartition("/")[0] + "/1"
    assert identity.worker_is_dead(gone) and identity.is_alive(lasting)
    monkeypatch.setenv("SPECULOOS_HOME", str(first.settings.home))
    assert not identity.worker_is_dead(gone), "only its lease can tell"
    assert not identity.is_alive(lasting) and not identity.end_group(lasting, 0)


def test_a_retry_delivers_what_was_not_there_at_first(pair: tuple[Bench, Bench]) -> None:
    first, _ = pair
    job = submit(upload(first, TEXTS), settings=replace(first.settings, store=""))
    with db.writing(first.settings) as session:
        session.get_one(type(job), job.id).state = "FAILED"
    retry(job.id, first.settings)
    assert open_store(first.settings.store).names("uploads")


def test_processes_that_need_the_same_files_fetch_them_once(
    pair: tuple[Bench, Bench], monkeypatch: pytest.MonkeyPatch
) -> None:
    first, other = pair
    base = tiny(first)
    deliver_files(first, Base, base, row(first, Base, base).path)
    fetched, store = [], open_store(first.settings.store)
    real = store.get_folder

    def slowly(*arguments: object) -> None:
        fetched.append(arguments)
        time.sleep(0.3)
        real(*arguments)

    monkeypatch.setattr(store, "get_folder", slowly)
    with ThreadPoolExecutor(4) as pool:
        paths = list(pool.map(lambda _: files(other).local(row(other, Base, base)), range(4)))
    assert len(fetched) == 1 and len(set(paths)) == 1

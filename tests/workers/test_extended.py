"""An extension that fails or is stopped leaves the data set as it was: ready, with its old rows; a retry mends it.

Real workers and endpoints, for a set of one job and for one in shards.
"""

from dataclasses import replace
from pathlib import Path

import pytest

from corpus.shards import read_rows
from models.damage import dataset_problems
from speculoos.settings import Settings
from tests.workers.conftest import Bench
from tests.workers.generation_bench import Servers, dataset, echoes, prompts, sums
from tracking import db
from tracking.tables import Dataset, Job
from workers.jobs.extend import extend
from workers.jobs.requests import GenerateData
from workers.jobs.submit import request_cancel, retry, submit

pytestmark = pytest.mark.integration

FORKED = True
TEXTS = [f"number {n}" for n in range(24)]
ROWS = {"one job": None, "shards": 5}


@pytest.fixture(params=ROWS)
def generated(bench: Bench, request: pytest.FixtureRequest) -> tuple[Servers, Job]:
    """Answers to 12 of 24 prompts, made by one job or in three shards, the last of two rows."""
    servers = echoes(bench, 0.3)
    request.addfinalizer(servers.end)
    bench.worker()
    bench.reconciler()
    source, rows = prompts(bench, TEXTS), ROWS[request.param]
    given = {"source_id": source, "endpoint": "pair", "max_tokens": 8, "limit": 12, "shard_rows": rows}
    job = submit(GenerateData(**given), settings=bench.settings)
    bench.wait(job.id, "SUCCEEDED")
    return servers, job


def more_of(bench: Bench, job: Job) -> Job:
    return extend(job.request["dataset_id"], limit=24, settings=bench.settings)


def seen(bench: Bench, job: Job) -> tuple[object, ...]:
    """What people and trainings see of the set."""
    data = dataset(bench, job)
    assert data.state == "ready" and dataset_problems(Path(data.path)) == {}
    assert data.rows == len(list(read_rows(data.path)))
    return data.rows, data.report, data.config["limit"], sums(bench, job)


def check_extended(bench: Bench, job: Job) -> None:
    assert {row["id"] for row in read_rows(dataset(bench, job).path)} == {f"line-{n:07d}" for n in range(1, 25)}
    rows, _, limit, _ = seen(bench, job)
    assert (rows, limit) == (24, 24) and not (Path(dataset(bench, job).path) / "parts").exists()


def test_a_failed_extension_leaves_what_there_was(bench: Bench, generated: tuple[Servers, Job]) -> None:
    _, job = generated
    before, known = seen(bench, job), bench.settings.home / "settings.toml"
    endpoints = known.read_text()
    known.write_text("")
    more = more_of(bench, job)
    failed = bench.wait(more.id, "FAILED")
    assert "no endpoint named 'pair'" in failed.error
    assert seen(bench, job) == before
    known.write_text(endpoints)
    retry(more.id, bench.settings)
    bench.wait(more.id, "SUCCEEDED")
    check_extended(bench, job)


def test_a_stopped_extension_leaves_what_there_was(bench: Bench, generated: tuple[Servers, Job]) -> None:
    _, job = generated
    before = seen(bench, job)
    more = more_of(bench, job)
    bench.wait_for(more.id, lambda j: j.done >= 14 or j.shards and j.done >= 1, "first further answers")
    request_cancel(more.id, bench.settings)
    stopped = bench.wait(more.id, "CANCELLED")
    assert stopped.error.startswith("Stopped at your request")
    assert seen(bench, job) == before
    again = more_of(bench, job)  # asked anew, not retried
    bench.wait(again.id, "SUCCEEDED")
    check_extended(bench, again)


def test_an_extension_that_never_began_leaves_what_there_was(home: Settings, broker: str) -> None:
    settings = replace(home, redis_url=broker)
    with db.writing(settings) as session:
        source = Dataset(name="p", kind="prompts", state="ready", rows=9, path="/x")
        session.add(source)
        session.flush()
        config = GenerateData(source_id=source.id, endpoint="pair", limit=5).to_json()
        data = Dataset(name="a", kind="conversations", state="ready", rows=5, path="/y", config=config)
        data.source_id = source.id
        session.add(data)
    job = extend(data.id, limit=9, settings=settings)
    with db.reading(settings) as session:
        assert session.get_one(Dataset, data.id).state == "pending"
    request_cancel(job.id, settings)
    with db.reading(settings) as session:
        found = session.get_one(Dataset, data.id)
        assert (found.state, found.rows, found.config["limit"]) == ("ready", 5, 5)

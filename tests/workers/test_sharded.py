"""Generations in shards with real processes: workers and endpoints are killed, nothing is lost or doubled.

Longer drills are in tests/drills.
"""

import os
import random
import signal
import time
from dataclasses import replace
from pathlib import Path

import pytest

from corpus.shards import read_rows, read_summary
from models.identity import weights_sha256
from speculoos.settings import Settings
from tests.workers.conftest import Bench, Broker, wait_until
from tests.workers.generation_bench import (
    check_whole,
    dataset,
    echoes,
    ended_well,
    generate,
    parts,
    prompts,
)
from tests.workers.holds import ANSWERS, MERGE, hold
from tracking import db, listing, reports
from tracking.tables import Base
from workers.jobs.requests import GenerateData
from workers.jobs.submit import request_cancel, retry, submit

pytestmark = pytest.mark.integration

FORKED = True
TEXTS = [f"number {n}" for n in range(36)]
"""Six at a time they are more shards than a worker takes at once, so that some have not begun when one has ended."""


def test_killed_workers_and_a_killed_endpoint_lose_and_double_no_answer(bench: Bench) -> None:
    servers = echoes(bench, 0.15)
    workers = [bench.worker() for _ in range(3)]
    bench.reconciler()
    try:
        source = prompts(bench, TEXTS)
        job = generate(bench, source, 9)
        bench.wait_for(job.id, lambda j: j.done >= 4, "first answers")
        victim = random.Random(3).randrange(3)
        workers[victim].kill()
        servers.kill(0)
        workers[victim] = bench.worker()
        wait_until(lambda: len(ended_well(bench, job)) >= 1, 180, "a shard", lambda: bench.output(job.id))
        workers[(victim + 1) % 3].kill()
        servers.start(0)
        bench.wait(job.id, "SUCCEEDED")
        check_whole(bench, job, 4)
        messages = [[m["content"] for m in row["messages"]] for row in read_rows(dataset(bench, job).path)]
        assert messages == [[text, f"you said: {text}"] for text in TEXTS]
        with db.reading(bench.settings) as session:
            assert {each.kind for each in listing.jobs(session)} == {"import_prompts", "generate_data"}
    finally:
        servers.end()


def test_a_home_that_was_killed_whole_goes_on_and_makes_no_finished_shard_again(home: Settings) -> None:
    broker = Broker()
    bench = Bench(replace(home, redis_url=broker.url), forked=True)
    servers = echoes(bench, 0.1)
    try:
        processes = [bench.worker(), bench.reconciler()]
        with hold(bench.settings.home, ANSWERS, 6):
            job = generate(bench, prompts(bench, TEXTS), 6)
            wait_until(lambda: len(ended_well(bench, job)) == 1, 180, "a shard", lambda: bench.output(job.id))
            for process in processes:
                process.kill()
            broker.kill()
        finished = {part.number: (part.attempt, part.finished_at) for part in ended_well(bench, job)}
        assert len(finished) == 1, "it was killed in mid-run"
        broker.start()
        bench.worker()
        bench.reconciler()
        bench.wait(job.id, "SUCCEEDED")
        check_whole(bench, job, 6)
        after = {part.number: (part.attempt, part.finished_at) for part in parts(bench, job)}
        assert finished.items() <= after.items(), "a finished shard was made again"
    finally:
        bench.end()
        servers.end()
        broker.end()


@pytest.mark.parametrize("killed", [False, True])
def test_a_stopped_generation_keeps_what_is_there_and_resumes_the_rest(bench: Bench, killed: bool) -> None:
    """Also if merging the shards takes longer than the grace period of a stopped job, or its process is killed."""
    servers = echoes(bench, 0.1)
    bench.environment["SPECULOOS_GRACE_SECONDS"] = "0.1"
    try:
        bench.worker()
        bench.reconciler()
        with hold(bench.settings.home, ANSWERS, 8), hold(bench.settings.home, MERGE):
            job = generate(bench, prompts(bench, TEXTS), 6)
            wait_until(lambda: len(ended_well(bench, job)) == 1, 180, "a shard", lambda: bench.output(job.id))
            divided = bench.job(job.id).child
            request_cancel(job.id, bench.settings)
            merging = bench.wait_for(job.id, lambda j: j.child != divided, "a second child")
            if killed:
                os.kill(merging.child["pid"], signal.SIGKILL)
            else:
                time.sleep(1)  # ten times the grace period
        stopped = bench.wait(job.id, "CANCELLED")
        assert stopped.attempt == (3 if killed else 2)
        data = dataset(bench, job)
        assert data.state == "ready" and 6 <= data.rows < len(TEXTS) and not data.report["complete"]
        assert f"the {data.rows} finished rows can be used" in stopped.error
        assert {part.state for part in parts(bench, job)} <= {"SUCCEEDED", "CANCELLED"}
        retry(job.id, bench.settings)
        bench.wait(job.id, "SUCCEEDED")
        check_whole(bench, job, 6)
    finally:
        servers.end()


def test_one_worker_is_enough_for_a_local_base_and_the_last_shard_leads_to_the_whole(
    bench: Bench, tiny_base: Path
) -> None:
    """The divided job holds no worker while its shards wait for one. No reconciler runs."""
    with db.writing(bench.settings) as session:
        base = Base(name="tiny", source="folder", location=str(tiny_base), path=str(tiny_base), state="ready")
        base.weights_sha256 = weights_sha256(tiny_base)
        session.add(base)
    bench.worker("io")
    source = prompts(bench, TEXTS[:10])
    request = GenerateData(source_id=source, base_id=base.id, max_tokens=6, batch_size=4, shard_rows=5)
    job = submit(request, settings=bench.settings)
    bench.worker("gpu")
    done = bench.wait(job.id, "SUCCEEDED")
    data = dataset(bench, job)
    assert (done.attempt, done.shards, data.rows, data.state) == (2, 2, 10, "ready")
    rows = list(read_rows(data.path))
    assert [row["messages"][0]["content"] for row in rows] == TEXTS[:10]
    assert data.report["tokens"] == sum(end - start for row in rows for start, end in row["loss_spans"])
    assert read_summary(data.path)["base_sha256"] == base.weights_sha256
    assert (Path(data.path) / "preview.json").is_file()
    with db.reading(bench.settings) as session:
        assert [log.message.partition(":")[0] for log in reports.logs(session, job.id)][-2:] == [
            "Shard 1 of 2",
            "Shard 2 of 2",
        ]

"""The stores fail under running jobs: Redis is restarted and emptied, PostgreSQL restarted, SQLite has many writers."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import redis
from sqlalchemy import func, select

from speculoos.settings import Settings
from tests.tools.databases import Missing, Postgres
from tests.tools.figures import Figures, spread
from tests.tools.running import wait_for
from tests.workers.conftest import Bench, Broker, valkey_binary
from tests.workers.drill_work import Count
from tracking import db, jobs
from tracking.states import FINISHED
from tracking.tables import Job, JobLog, Preference
from workers.celery_app import publish

ROUNDS = int(os.environ.get("DRILLS_ROUNDS", "10"))
"""How often a store goes away in the long form."""
STEPS = 40
WRITERS = 8


@pytest.fixture
def redis_server() -> Iterator[Broker]:
    """Debian's Redis where it is installed, else the embedded server."""
    server = Broker(shutil.which("redis-server") or valkey_binary())
    yield server
    server.end()


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_redis_restarted_and_flushed(home: Settings, redis_server: Broker, tmp_path: Path, figures: Figures) -> None:
    bench = Bench(replace(home, redis_url=redis_server.url))
    rng, seconds = random.Random(3), []
    try:
        start_workers(bench)
        submitted = []
        for number in range(2 * ROUNDS):
            submitted += [order(bench, tmp_path / f"job-{number}-{n}") for n in range(3)]
            time.sleep(rng.uniform(0, 1))
            flush(redis_server) if number % 2 else restart(redis_server, rng)
            late = order(bench, tmp_path / f"late-{number}", steps=1)
            seconds.append(wait_for(lambda late=late: state(bench, late) in FINISHED, "a job after it", 120))
            submitted.append(late)
        lost, doubled = count_lost_and_doubled(bench, submitted, tmp_path)
    finally:
        bench.end()
    figures.record(
        kills=ROUNDS,
        flushes=ROUNDS,
        jobs=len(submitted),
        lost=lost,
        doubled=doubled,
        recovery={"broker": spread(seconds)},
    )
    assert (lost, doubled) == (0, 0)


def flush(server: Broker) -> None:
    redis.Redis(unix_socket_path=str(server.socket)).flushall()


def restart(server: Broker, rng: random.Random) -> None:
    server.kill()
    time.sleep(rng.uniform(0, 3))
    server.start()


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_postgresql_restarted(home: Settings, broker: str, tmp_path: Path, figures: Figures) -> None:
    """Every second stop is immediate, like a crash; the others are orderly, like a package upgrade."""
    server = postgresql()
    settings = replace(home, database_url=server.new(), redis_url=f"{broker}?virtual_host=5")
    bench = Bench(settings, SPECULOOS_LEASE_SECONDS="3")
    db.upgrade(bench.settings)
    rng, seconds, slow = random.Random(5), [], []
    try:
        start_workers(bench)
        submitted = [order(bench, tmp_path / f"job-{n}") for n in range(20)]
        for number in range(ROUNDS):
            time.sleep(rng.uniform(1, 3))
            server.stop(signal.SIGQUIT if number % 2 else signal.SIGINT)
            slow.append(rng.uniform(0, 8))
            time.sleep(slow[-1])
            server.start()
            late = order(bench, tmp_path / f"late-{number}", steps=1)
            seconds.append(wait_for(lambda late=late: state(bench, late) in FINISHED, "a job after it", 120))
            submitted.append(late)
        lost, doubled = count_lost_and_doubled(bench, submitted, tmp_path)
    finally:
        bench.end()
        server.end()
    figures.record(
        kills=ROUNDS,
        away_seconds=spread(slow),
        jobs=len(submitted),
        lost=lost,
        doubled=doubled,
        recovery={"postgresql": spread(seconds)},
    )
    assert (lost, doubled) == (0, 0)


@pytest.mark.integration
@pytest.mark.timeout(180)
def test_postgresql_restarted_once(home: Settings, broker: str, tmp_path: Path) -> None:
    """The short form: the server is away for two seconds. A restart that outlasts the lease resumes the job once."""
    server = postgresql()
    settings = replace(home, database_url=server.new(), redis_url=f"{broker}?virtual_host=5")
    bench = Bench(settings, SPECULOOS_LEASE_SECONDS="3")
    db.upgrade(bench.settings)
    try:
        bench.worker("io")
        bench.reconciler()
        job = order(bench, tmp_path / "job", steps=50)
        bench.wait_for(job.id, lambda j: j.done >= 3, "three steps")
        server.stop()
        time.sleep(2)
        server.start()
        assert count_lost_and_doubled(bench, [job], tmp_path) == (0, 0)
        assert bench.job(job.id).attempt <= 2
    finally:
        bench.end()
        server.end()


def postgresql() -> Postgres:
    """Start a PostgreSQL server that the test may stop."""
    try:
        return Postgres()
    except Missing as reason:
        pytest.skip(str(reason))


def start_workers(bench: Bench) -> None:
    bench.worker("io")
    bench.worker("io")
    bench.reconciler()


def order(bench: Bench, folder: Path, steps: int = STEPS) -> Job:
    """Create a counting job and publish it once: these drills test the row, not the publishing."""
    request = Count(folder=str(folder), steps=steps).to_json()
    with db.writing(bench.settings) as session:
        job = jobs.create(session, kind="count", queue="io", request=request, name=folder.name)
        job.attempt_cap = 100
    publish(bench.settings, [job])
    return job


def state(bench: Bench, job: Job) -> str:
    return bench.job(job.id).state


def count_lost_and_doubled(bench: Bench, submitted: list[Job], folder: Path) -> tuple[int, int]:
    """(number of jobs that did not succeed with all steps, number on which two processes worked in turns)."""
    wait_for(lambda: all(state(bench, job) in FINISHED for job in submitted), "the end of all jobs", 400, every=0.5)
    lost = doubled = 0
    for job in submitted:
        row, notes = bench.job(job.id), (folder / job.name / "notes").read_text().splitlines()
        done = [line.split() for line in notes if line.startswith("step")]
        whole = sorted({int(note[1]) for note in done}) == list(range(row.total or 0)) and row.done == row.total
        lost += row.state != "SUCCEEDED" or not whole
        turns = [note[2] for i, note in enumerate(done) if i == 0 or done[i - 1][2] != note[2]]
        doubled += len(turns) != len(set(turns))
    return lost, doubled


WRITER = """
import json, sys, time
from speculoos.settings import load
from tracking import db
from tracking.tables import JobLog, Preference

settings, number, seconds, job_id = load(), int(sys.argv[1]), float(sys.argv[2]), sys.argv[3]
waits, errors, rows, end = [], [], 0, time.monotonic() + seconds
while time.monotonic() < end:
    began = time.monotonic()
    try:
        with db.writing(settings) as session:
            row = session.get(Preference, "shared", with_for_update=True)
            row.value = {"n": row.value["n"] + 1}
            session.add(JobLog(job_id=job_id, attempt=number, message="row " + str(rows)))
        rows += 1
    except Exception as error:
        errors.append(str(error))
    waits.append(time.monotonic() - began)
print(json.dumps({"rows": rows, "errors": errors[:3], "failed": len(errors), "waits": waits}))
"""
"""A process that writes as fast as it can: each time it reads a shared row, changes it and adds a row of its own."""


@pytest.mark.drill
@pytest.mark.sqlite
@pytest.mark.timeout(300)
def test_sqlite_under_eight_writers(home: Settings, figures: Figures) -> None:
    result = write_at_once(home, WRITERS, 30.0)
    figures.record(**result)
    assert (result["failed"], result["lost"]) == (0, 0)


@pytest.mark.integration
@pytest.mark.sqlite
def test_sqlite_under_eight_writers_for_a_moment(home: Settings, figures: Figures) -> None:
    """The short form."""
    result = write_at_once(home, WRITERS, 1.0)
    figures.record(**result)
    assert (result["failed"], result["lost"]) == (0, 0), result


def write_at_once(home: Settings, writers: int, seconds: float) -> dict[str, object]:
    """Let many processes write for some seconds; returns counts of written and missing rows and waiting times."""
    with db.writing(home) as session:
        job = jobs.create(session, kind="count", queue="io", request={}, name="rows")
        session.add(Preference(key="shared", value={"n": 0}))
    environment = {**os.environ, "SPECULOOS_HOME": str(home.home)}
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(number), str(seconds), job.id],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for number in range(writers)
    ]
    results = [json.loads(process.communicate(timeout=seconds + 120)[0]) for process in started]
    rows = sum(result["rows"] for result in results)
    return {
        "writers": writers,
        "rows": rows,
        "rows_per_second": round(rows / seconds),
        "failed": sum(result["failed"] for result in results),
        "errors": [error for result in results for error in result["errors"]],
        "lost": 2 * rows - count_stored(home, job.id),
        "waiting_ms": spread((1000 * wait for result in results for wait in result["waits"]), 1),
    }


def count_stored(home: Settings, job_id: str) -> int:
    """The shared count plus the number of rows."""
    with db.reading(home) as session:
        rows = session.scalar(select(func.count()).select_from(JobLog).where(JobLog.job_id == job_id)) or 0
        return rows + session.get_one(Preference, "shared").value["n"]

"""Random kills for minutes (`make drills`), with a fixed seed and real processes: no job is lost or doubled."""

import contextlib
import hashlib
import os
import random
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import redis

from speculoos.settings import Settings
from tests.tools.figures import Figures
from tests.workers.conftest import Bench, wait_until
from tests.workers.drill_work import Count
from tests.workers.training_bench import Watch, submit_training
from tracking import db, jobs, reports
from tracking.tables import Checkpoint, Job
from workers.celery_app import publish

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1200)]
STEPS = 400
ROUNDS = 8
STORM = 45


def wait_succeeded(bench: Bench, job_id: str, seconds: float) -> Job:
    return bench.wait(job_id, "SUCCEEDED", seconds)


def weights(settings: Settings, job: Job) -> str:
    with db.reading(settings) as session:
        path = Path(session.get_one(Checkpoint, job.request["checkpoint_id"]).path)
    return hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()


def test_a_training_killed_again_and_again_equals_one_that_was_not(
    home: Settings,
    broker: str,
    tiny_base: Path,
    tmp_path: Path,
    figures: Figures,
) -> None:
    """Its process, its worker and the reconciler are killed in turn; the weights are bit-identical."""
    bench = Bench(replace(home, redis_url=f"{broker}?virtual_host=2"), SPECULOOS_WORK_MODULES="")
    quiet_bench = Bench(replace(home, home=tmp_path / "quiet", database_url=f"sqlite:///{tmp_path}/quiet/q.db"))
    quiet_bench.settings = replace(quiet_bench.settings, redis_url=f"{broker}?virtual_host=3")
    quiet_bench.environment |= {"REDIS_URL": quiet_bench.settings.redis_url}
    db.upgrade(quiet_bench.settings)
    try:
        quiet_bench.worker("gpu")
        undisturbed = submit_training(quiet_bench, tiny_base, STEPS, 10)
        undisturbed = wait_succeeded(quiet_bench, undisturbed.id, 600)
        quiet_bench.end()
        killed = kill_again_and_again(bench, tiny_base)
        same = weights(bench.settings, killed) == weights(quiet_bench.settings, undisturbed)
        figures.record(
            kills=ROUNDS, jobs=2, lost=0, doubled=0, attempts=killed.attempt, different_weights=int(not same)
        )
        assert same
    finally:
        bench.end()
        quiet_bench.end()


def kill_again_and_again(bench: Bench, tiny_base: Path) -> Job:
    job = submit_training(bench, tiny_base, STEPS, 10)
    reconciler, worker = bench.reconciler(), bench.worker("gpu")
    with Watch(job.id) as watch:
        for round_ in range(ROUNDS):
            step = (round_ + 1) * STEPS // (ROUNDS + 2)
            running = bench.wait_for(job.id, lambda j, n=step: j.done >= n, f"step {step}", 300)
            if running.state != "RUNNING":
                continue
            if round_ % 3 == 0:
                os.kill(running.child["pid"], signal.SIGKILL)
            elif round_ % 3 == 1:
                worker.kill()
                worker = bench.worker("gpu")
            else:
                reconciler.kill()
                worker.terminate()
                assert worker.wait(15) == 0
                reconciler, worker = bench.reconciler(), bench.worker("gpu")
        ended = wait_succeeded(bench, job.id, 600)
    assert watch.most == 1, "never two trainers at once"
    assert (ended.done, ended.total) == (STEPS, STEPS) and ended.attempt > ROUNDS // 2
    with db.reading(bench.settings) as session:
        assert [s for s, _ in reports.metrics(session, job.id)["train/loss"]] == list(range(1, STEPS + 1))
    return ended


def test_many_jobs_survive_a_storm(database: Settings, broker: str, tmp_path: Path, figures: Figures) -> None:
    """Forty jobs and three workers, with a random kill or loss of messages every second: each job completes."""
    bench = Bench(replace(database, redis_url=f"{broker}?virtual_host=4"))
    rng = random.Random(7)
    submitted = [order(bench, tmp_path / f"job-{n}") for n in range(40)]
    workers = [bench.worker("io") for _ in range(3)]
    reconciler = bench.reconciler()
    try:
        for _ in range(STORM):
            time.sleep(1)
            reconciler = disturb(bench, rng, workers, reconciler)
        for job in submitted:
            wait_succeeded(bench, job.id, 300)
        for number, job in enumerate(submitted):
            check_whole(tmp_path / f"job-{number}", bench.job(job.id))
        figures.record(kills=STORM, jobs=len(submitted), lost=0, doubled=0)
    finally:
        bench.end()


def order(bench: Bench, folder: Path) -> Job:
    request = Count(folder=str(folder), steps=40).to_json()
    with db.writing(bench.settings) as session:
        job = jobs.create(session, kind="count", queue="io", request=request, name=folder.name)
        job.attempt_cap = 100  # the storm is worse than the cap allows for
    publish(bench.settings, [job])
    return job


def disturb(
    bench: Bench, rng: random.Random, workers: list[subprocess.Popen[bytes]], reconciler: subprocess.Popen[bytes]
) -> subprocess.Popen[bytes]:
    """Kill a child, worker or reconciler, terminate a worker, or lose all messages. Returns the reconciler."""
    kind = rng.choice(["child", "child", "worker", "stop", "reconciler", "messages"])
    if kind == "child":
        with db.reading(bench.settings) as session:
            children = [job.child["pid"] for job in jobs.running(session) if job.child]
        if children:
            with contextlib.suppress(ProcessLookupError):
                os.kill(rng.choice(children), signal.SIGKILL)
    elif kind in ("worker", "stop"):
        index = rng.randrange(len(workers))
        workers[index].send_signal(signal.SIGKILL if kind == "worker" else signal.SIGTERM)
        wait_until(lambda: workers[index].poll() is not None, 20, "the worker's end")
        workers[index] = bench.worker("io")
    elif kind == "reconciler":
        reconciler.kill()
        return bench.reconciler()
    else:
        path, _, number = bench.settings.redis_url.removeprefix("redis+socket://").partition("?virtual_host=")
        redis.Redis(unix_socket_path=path, db=int(number)).flushdb()
    return reconciler


def check_whole(folder: Path, job: Job) -> None:
    notes = [line.split() for line in (folder / "notes").read_text().splitlines()]
    done = [note for note in notes if note[0] == "step"]
    assert sorted({int(note[1]) for note in done}) == list(range(40))
    owners = [note[2] for i, note in enumerate(done) if i == 0 or done[i - 1][2] != note[2]]
    assert len(owners) == len(set(owners)), f"{folder.name}: two processes worked in turns: {owners}"
    assert (job.done, job.total) == (40, 40)

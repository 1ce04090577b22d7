"""A generation in shards by several processes through two of our inference servers, while they are killed at
random."""

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from models.identity import weights_sha256
from speculoos.settings import PROJECT_ROOT, Settings
from tests.tiny import make_tiny_base
from tests.tools.figures import Figures
from tests.workers.conftest import Bench, Broker, wait_until
from tests.workers.generation_bench import (
    Servers,
    check_whole,
    ended_well,
    generate,
    parts,
    sums,
)
from tracking import db
from tracking.tables import Base, Job
from workers.jobs.requests import ImportPrompts
from workers.jobs.submit import submit

pytestmark = [pytest.mark.drill, pytest.mark.timeout(3600)]
PROMPTS, ROWS, WORKERS = 2000, 250, 3
FEWER, FEW_ROWS = 360, 15
"""Where everything is killed at once: the servers take half a minute to be there again."""
KILLS = int(os.environ.get("DRILLS_KILLS", "20"))
TOKEN = "inference-0815"
LONG = 1 << 15
"""Tokens the tiny base takes: real prompts are long in its bytes."""


@pytest.fixture
def stage(home: Settings, tmp_path: Path) -> Iterator[tuple[Bench, Broker, Servers]]:
    """A home with its own broker, a tiny base, and two inference servers that serve it."""
    broker = Broker()
    bench = Bench(replace(home, redis_url=broker.url), SPECULOOS_INFERENCE_TOKEN=TOKEN, SPECULOOS_DEVICE="cpu")
    base = make_tiny_base(tmp_path / "tiny", max_position_embeddings=LONG)
    with db.writing(home) as session:
        columns = {"source": "folder", "location": "x", "path": str(base), "state": "ready"}
        session.add(Base(name="tiny", weights_sha256=weights_sha256(base), **columns))
    servers = Servers(bench, lambda port: inference(bench, port), "tiny", TOKEN)
    yield bench, broker, servers
    bench.end()
    servers.end()
    broker.end()


def inference(bench: Bench, port: int) -> subprocess.Popen[bytes]:
    """Start the project's inference server and wait until it answers."""
    environment = {**bench.environment, "SPECULOOS_INFERENCE_PORT": str(port)}
    with (bench.settings.home / f"inference-{port}.log").open("ab") as out:
        process = subprocess.Popen(
            [sys.executable, "-m", "serving.main"], cwd=PROJECT_ROOT, env=environment, stdout=out, stderr=out
        )
    wait_until(lambda: answers(port), 120, "the inference server", bench.output)
    return process


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def real_prompts(bench: Bench, shared_data: Path, count: int = PROMPTS) -> str:
    request = ImportPrompts(path=str(shared_data / "prompts_train.jsonl"), limit=count)
    job = submit(request, settings=bench.settings)
    bench.wait(job.id, "SUCCEEDED", 120)
    return job.request["dataset_id"]


def start_all(bench: Bench) -> list[subprocess.Popen[bytes]]:
    return [*(bench.worker() for _ in range(WORKERS)), bench.reconciler()]


def test_shards_survive_killed_workers_and_endpoints(
    stage: tuple[Bench, Broker, Servers], shared_data: Path, figures: Figures
) -> None:
    """Workers and a server are killed at random while 2,000 prompts are answered; a second time nothing is killed."""
    bench, _, servers = stage
    rng, kills, began = random.Random(11), 0, time.monotonic()
    workers = start_all(bench)[:WORKERS]
    source = real_prompts(bench, shared_data)
    job = generate(bench, source, ROWS)
    away, started = -1, 0
    while bench.job(job.id).state not in ("SUCCEEDED", "FAILED", "CANCELLED"):
        time.sleep(rng.uniform(2, 5))
        if kills >= KILLS or bench.job(job.id).done == 0:
            continue
        kills += 1
        if kills % 4 == 0:
            started += away >= 0
            away = change_servers(servers, away, rng)
        else:
            index = rng.randrange(WORKERS)
            workers[index].kill()
            workers[index].wait()
            workers[index] = bench.worker()
    if away >= 0:
        servers.start(away)
    seconds = time.monotonic() - began
    bench.wait(job.id, "SUCCEEDED", 1)
    check_whole(bench, job, PROMPTS // ROWS)
    assert bench.job(job.id).total == PROMPTS
    again = generate(bench, source, ROWS)
    bench.wait(again.id, "SUCCEEDED", 1800)
    check_whole(bench, again, PROMPTS // ROWS)
    different = sum(
        digest != other_digest for digest, other_digest in zip(sums(bench, job), sums(bench, again), strict=True)
    )
    attempts = sum(part.attempt for part in parts(bench, job))
    figures.record(
        **{"kills": kills - started, "jobs": PROMPTS // ROWS, "lost": 0, "doubled": 0},
        **{"rows": PROMPTS, "attempts": attempts},
        **{"different_files": different, "killed_run_seconds": round(seconds)},
    )
    assert different == 0


def change_servers(servers: Servers, away: int, rng: random.Random) -> int:
    """Kill one server, or restart the killed one; returns the number of the killed server (-1: none)."""
    if away >= 0:
        servers.start(away)
        return -1
    away = rng.randrange(2)
    servers.kill(away)
    return away


def test_everything_killed_in_a_generation(
    stage: tuple[Bench, Broker, Servers], shared_data: Path, figures: Figures
) -> None:
    """Workers, reconciler, broker and servers are killed at once, several times; the job goes on by itself."""
    bench, broker, servers = stage
    processes = start_all(bench)
    job = generate(bench, real_prompts(bench, shared_data, FEWER), FEW_ROWS)
    kills = repeated = 0
    recovery: list[float] = []
    while bench.job(job.id).state not in ("SUCCEEDED", "FAILED", "CANCELLED"):
        before = len(ended_well(bench, job))
        wait_until(lambda n=before: ended(bench, job) or len(ended_well(bench, job)) > n + 5, 900, "six shards more")
        if ended(bench, job):
            break
        finished = done(bench, job)
        for process in processes:
            process.kill()
        broker.kill()
        servers.end()
        kills += len(processes) + 3
        assert done(bench, job).items() >= finished.items()
        broker.start()
        for number in range(2):
            servers.start(number)
        processes, began = start_all(bench), time.monotonic()
        at = bench.job(job.id).done
        wait_until(lambda n=at: ended(bench, job) or bench.job(job.id).done > n, 120, "going on", bench.output)
        recovery.append(time.monotonic() - began)
        repeated += sum(done(bench, job).get(number) != attempt for number, attempt in finished.items())
    check_whole(bench, job, FEWER // FEW_ROWS)
    figures.record(
        **{
            "kills": kills,
            "jobs": FEWER // FEW_ROWS,
            "lost": 0,
            "doubled": 0,
            "finished_shards_made_again": repeated,
        },
        goes_on_seconds=[round(value, 1) for value in recovery],
    )
    assert repeated == 0 and kills


def ended(bench: Bench, job: Job) -> bool:
    return bench.job(job.id).state in ("SUCCEEDED", "FAILED", "CANCELLED")


def done(bench: Bench, job: Job) -> dict[int, tuple[int, object]]:
    """{number: (attempt, end)} of the finished shards."""
    return {part.number: (part.attempt, part.finished_at) for part in ended_well(bench, job)}

"""The disk of the home is full: while a checkpoint is written, and while all processes write their logs."""

import asyncio
import contextlib
import os
import random
import re
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from ops import health
from speculoos.settings import load
from tests.conftest import disk
from tests.drills.trainings import SETTINGS
from tests.tiny import make_tiny_base
from tests.tools.figures import Figures
from tests.tools.homes import add_answers, add_base
from tests.tools.loops import run_async
from tests.tools.page_client import PageClient
from tests.tools.running import Up, wait_for
from tests.workers.conftest import Bench
from tests.workers.drill_work import Count
from tracking import db, jobs
from tracking.states import FINISHED
from tracking.tables import Job
from workers.celery_app import publish
from workers.jobs.requests import Train
from workers.jobs.submit import retry, submit

ROUNDS = int(os.environ.get("DRILLS_ROUNDS", "10"))
FULL_SECONDS = 20.0
PAGES = ("/", "/runs", "/settings")
DISK_FULL_ERROR = re.compile("disk is full|MB free, this checkpoint needs")
DISK_FULL_STRIP = re.compile(r"\bfull\b|\b0 (B|bytes|MB|KB|kB) free", re.IGNORECASE)


@pytest.fixture
def roomier_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk with room for a home and several copies of a draft and its states."""
    with disk(tmp_path / "disk", 32) as path:
        yield path


@pytest.mark.drill
@pytest.mark.timeout(1200)
def test_disk_full_in_a_checkpoint(broker: str, roomier_disk: Path, tmp_path: Path, figures: Figures) -> None:
    """Too little room is left for the draft or one of its states. The amount changes each round."""
    bench = Bench(
        load({"SPECULOOS_HOME": str(roomier_disk / "home"), "REDIS_URL": f"{broker}?virtual_host=10"}),
        SPECULOOS_WORK_MODULES="",
        SPECULOOS_MIN_DISK_MB="0",  # a floor would pause the job before it met the full disk
    )
    db.upgrade(bench.settings)
    wide = make_tiny_base(tmp_path / "wide", hidden_size=256, intermediate_size=64)
    base_id = add_base(bench.settings, wide, "wide")
    dataset_id = add_answers(bench.settings, base_id)
    rng, reported, halves, lost = random.Random(43), 0, 0, 0
    try:
        bench.worker("gpu")
        bench.reconciler()
        for number in range(ROUNDS):
            ballast = roomier_disk / "ballast"
            free = shutil.disk_usage(roomier_disk).free
            ballast.write_bytes(b"0" * max(0, free - rng.randrange(2**20, 5 * 2**19)))
            settings = {**SETTINGS, "max_steps": 8, "save_every": 2 + number % 3, "held_out": 0.0}
            job = submit(Train("medusa", base_id, dataset_id, settings), name=f"h{number}", settings=bench.settings)
            bench.wait_for(job.id, lambda current: current.state in FINISHED, "an end", 180)
            ended = bench.job(job.id)
            reported += (
                ended.state == "FAILED" and DISK_FULL_ERROR.search(ended.error) is not None and "\n" not in ended.error
            )
            halves += any(not whole(path) for path in bench.settings.home.rglob("*.safetensors"))
            ballast.unlink()
            if ended.state == "FAILED":
                retry(job.id, bench.settings)
            lost += bench.wait(job.id, "SUCCEEDED", 180).done != 8
            shutil.rmtree(bench.settings.home / "checkpoints")
    finally:
        bench.end()
    figures.record(jobs=ROUNDS, full=reported, half_written=halves, lost=lost, doubled=0)
    assert (halves, lost) == (0, 0) and reported > 0


def whole(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as tensors:
            return bool(list(tensors.keys()))
    except (SafetensorError, FileNotFoundError):
        return not path.exists()


@pytest.fixture
def up_on_small_disk(small_disk: Path, clean_environment: None) -> Iterator[Up]:
    workbench = Up(small_disk / "home", SPECULOOS_WORK_MODULES="tests.workers.drill_work")
    workbench.start()
    yield workbench
    workbench.end()
    shutil.rmtree(workbench.settings.run_dir, ignore_errors=True)


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_disk_full_in_a_log(up_on_small_disk: Up, small_disk: Path, tmp_path: Path, figures: Figures) -> None:
    """For a while no process can write. The pages still respond and report it; with room again everything goes on."""
    up = up_on_small_disk
    before = {name: up.pid(name) for name in ("web", "inference")}
    jobs_before = [order(up, tmp_path / f"job-{n}", steps=400) for n in range(3)]
    wait_for(lambda: row(up, jobs_before[0]).done > 5, "a job that takes steps")
    with filled_disk(small_disk):
        answered, requested, reported = look_at_pages(up, FULL_SECONDS)
        alive = up.process.poll() is None
    freed = time.monotonic()
    wait_for(lambda: all(part.ok for part in health.check(up.settings, PARTS).values()), "all parts to be well", 120)
    back = time.monotonic() - freed
    for job in jobs_before:
        wait_for(lambda job=job: row(up, job).state in FINISHED, "the end of the jobs", 120)
        if (current := row(up, job)).state == "FAILED":
            assert "disk" in current.error and "\n" not in current.error, current.error
            retry(job.id, up.settings)
    late = order(up, tmp_path / "late", steps=3)
    wait_for(lambda: all(row(up, job).state == "SUCCEEDED" for job in [*jobs_before, late]), "jobs that end well", 120)
    same = sum(up.pid(name) == pid for name, pid in before.items())
    figures.record(
        full_seconds=FULL_SECONDS,
        pages_asked=requested,
        pages_answered=answered,
        pages_that_said_so=reported,
        jobs=len(jobs_before) + 1,
        lost=0,
        same_processes=f"{same} of {len(before)}",
        recovery={"all parts": {"count": 1, "median": round(back, 2), "max": round(back, 2)}},
    )
    assert alive and "Traceback" not in up.output
    assert answered == requested and reported > 0 and same == len(before)


PARTS = ("web", "inference", "broker", "reconciler", "worker-io", "worker-gpu", "database")


def order(up: Up, folder: Path, steps: int) -> Job:
    request = Count(folder=str(folder), steps=steps).to_json()
    with db.writing(up.settings) as session:
        job = jobs.create(session, kind="count", queue="io", request=request, name=folder.name)
    publish(up.settings, [job])
    return job


def row(up: Up, job: Job) -> Job:
    with db.reading(up.settings) as session:
        return jobs.get(session, job.id)


@contextlib.contextmanager
def filled_disk(disk: Path) -> Iterator[None]:
    """Keep the disk full for the duration of the block: freed bytes are filled at once."""
    ended = threading.Event()

    def fill() -> None:
        with (disk / "ballast").open("ab", buffering=0) as ballast:
            while not ended.wait(0.05):
                with contextlib.suppress(OSError):
                    while True:
                        ballast.write(b"0" * 4096)

    thread = threading.Thread(target=fill, daemon=True)
    thread.start()
    wait_for(lambda: shutil.disk_usage(disk).free == 0, "a full disk")
    try:
        yield
    finally:
        ended.set()
        thread.join()
        (disk / "ballast").unlink()


def look_at_pages(up: Up, seconds: float) -> tuple[int, int, int]:
    """(pages that answered, pages that were requested, pages whose strip reported the full disk)."""

    async def look() -> tuple[int, int, int]:
        answered = requested = reported = 0
        end = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=up.url, timeout=30, trust_env=False) as client:
            while time.monotonic() < end:
                for path in PAGES:
                    page, requested = PageClient(client, path), requested + 1
                    with contextlib.suppress(httpx.HTTPError):
                        await page.open()
                        answered += 1
                        reported += bool(DISK_FULL_STRIP.search(page.strip))
                    await asyncio.sleep(0.2)
        return answered, requested, reported

    return run_async(look())

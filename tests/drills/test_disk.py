"""The disk that holds the whole home is full: while a checkpoint is written, and while everything writes its logs."""

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
TOLD = re.compile("disk is full|MB free, this checkpoint needs")
SAID = re.compile(r"\bfull\b|\b0 (B|bytes|MB|KB|kB) free", re.IGNORECASE)


@pytest.fixture
def roomier_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for a home, a draft and its states, more than once."""
    with disk(tmp_path / "disk", 32) as place:
        yield place


@pytest.mark.drill
@pytest.mark.timeout(1200)
def test_disk_full_in_a_checkpoint(broker: str, roomier_disk: Path, tmp_path: Path, figures: Figures) -> None:
    """So little room is left that the draft, or a state on the way to it, has none: at another place each time."""
    bench = Bench(
        load({"SPECULOOS_HOME": str(roomier_disk / "home"), "REDIS_URL": f"{broker}?virtual_host=10"}),
        SPECULOOS_WORK_MODULES="",
        SPECULOOS_MIN_DISK_MB="0",  # a floor would pause the job before it met the full disk
    )
    db.upgrade(bench.settings)
    wide = make_tiny_base(tmp_path / "wide", hidden_size=256, intermediate_size=64)
    base_id = add_base(bench.settings, wide, "wide")
    dataset_id = add_answers(bench.settings, base_id)
    chance, said, halves, lost = random.Random(43), 0, 0, 0
    try:
        bench.worker("gpu")
        bench.reconciler()
        for number in range(ROUNDS):
            ballast = roomier_disk / "ballast"
            free = shutil.disk_usage(roomier_disk).free
            ballast.write_bytes(b"0" * max(0, free - chance.randrange(2**20, 5 * 2**19)))
            wanted = {**SETTINGS, "max_steps": 8, "save_every": 2 + number % 3, "held_out": 0.0}
            job = submit(Train("medusa", base_id, dataset_id, wanted), name=f"h{number}", settings=bench.settings)
            bench.wait_for(job.id, lambda found: found.state in FINISHED, "an end", 180)
            found = bench.job(job.id)
            said += found.state == "FAILED" and TOLD.search(found.error) is not None and "\n" not in found.error
            halves += any(not whole(path) for path in bench.settings.home.rglob("*.safetensors"))
            ballast.unlink()
            if found.state == "FAILED":
                retry(job.id, bench.settings)
            lost += bench.wait(job.id, "SUCCEEDED", 180).done != 8
            shutil.rmtree(bench.settings.home / "checkpoints")
    finally:
        bench.end()
    figures.record(jobs=ROUNDS, full=said, half_written=halves, lost=lost, doubled=0)
    assert (halves, lost) == (0, 0) and said > 0


def whole(path: Path) -> bool:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as tensors:
            return bool(list(tensors.keys()))
    except (SafetensorError, FileNotFoundError):
        return not path.exists()


@pytest.fixture
def cramped(small_disk: Path, clean_environment: None) -> Iterator[Up]:
    made = Up(small_disk / "home", SPECULOOS_WORK_MODULES="tests.workers.drill_work")
    made.start()
    yield made
    made.end()
    shutil.rmtree(made.settings.run_dir, ignore_errors=True)


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_disk_full_in_a_log(cramped: Up, small_disk: Path, tmp_path: Path, figures: Figures) -> None:
    """Nothing can be written for a while, by anybody. The pages stay and say so; with room again everything goes on."""
    up = cramped
    before = {name: up.pid(name) for name in ("web", "inference")}
    jobs_before = [order(up, tmp_path / f"job-{n}", steps=400) for n in range(3)]
    wait_for(lambda: row(up, jobs_before[0]).done > 5, "a job that takes steps")
    with kept_full(small_disk):
        answered, asked, said = look_at_pages(up, FULL_SECONDS)
        alive = up.process.poll() is None
    freed = time.monotonic()
    wait_for(lambda: all(part.ok for part in health.check(up.settings, PARTS).values()), "all parts to be well", 120)
    back = time.monotonic() - freed
    for job in jobs_before:
        wait_for(lambda job=job: row(up, job).state in FINISHED, "the end of the jobs", 120)
        if (found := row(up, job)).state == "FAILED":
            assert "disk" in found.error and "\n" not in found.error, found.error
            retry(job.id, up.settings)
    late = order(up, tmp_path / "late", steps=3)
    wait_for(lambda: all(row(up, job).state == "SUCCEEDED" for job in [*jobs_before, late]), "jobs that end well", 120)
    same = sum(up.pid(name) == pid for name, pid in before.items())
    figures.record(
        full_seconds=FULL_SECONDS,
        pages_asked=asked,
        pages_answered=answered,
        pages_that_said_so=said,
        jobs=len(jobs_before) + 1,
        lost=0,
        same_processes=f"{same} of {len(before)}",
        recovery={"all parts": {"count": 1, "median": round(back, 2), "max": round(back, 2)}},
    )
    assert alive and "Traceback" not in up.output
    assert answered == asked and said > 0 and same == len(before)


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
def kept_full(disk: Path) -> Iterator[None]:
    """The disk has not a byte left: whatever is freed in between is taken too."""
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
    """(pages that answered, pages that were asked for, pages whose strip said that the disk is full)."""

    async def look() -> tuple[int, int, int]:
        answered = asked = said = 0
        end = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=up.url, timeout=30, trust_env=False) as client:
            while time.monotonic() < end:
                for path in PAGES:
                    page, asked = PageClient(client, path), asked + 1
                    with contextlib.suppress(httpx.HTTPError):
                        await page.open()
                        answered += 1
                        said += bool(SAID.search(page.strip))
                    await asyncio.sleep(0.2)
        return answered, asked, said

    return run_async(look())

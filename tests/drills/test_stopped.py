"""Processes that are stopped for a minute (SIGSTOP), and a database that another program locks, while a training
runs."""

import contextlib
import os
import signal
import sqlite3
import threading
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import httpx
import pytest

from tests.drills.test_device import ask, text
from tests.drills.test_kills import CHILD
from tests.drills.trainings import Trainings
from tests.tools.figures import Figures, spread
from tests.tools.homes import add_answers
from tests.tools.homes import add_base as add_tiny_base
from tests.tools.running import Up, wait_for

PARTS = ("worker-gpu", CHILD, "inference")
ROUNDS = int(os.environ.get("DRILLS_STOPS", "5"))
"""How often each part is stopped, and the database locked."""
STOP_SECONDS = float(os.environ.get("DRILLS_STOP_SECONDS", "60"))
LOCK_SECONDS = float(os.environ.get("DRILLS_LOCK_SECONDS", "30"))
BACK_SECONDS = 120.0
STEPS, SAVE_EVERY = 6000, 25
PAGES = ("/", "/runs", "/data", "/runs/new", "/models/drafts", "/healthz")


@pytest.fixture
def trainings(up: Up, tiny_base: Path) -> Trainings:
    """Trainings in a running workbench, after one undisturbed training."""
    up.start()
    base_id = add_tiny_base(up.settings, tiny_base, "tiny")
    prepared = Trainings(up.settings, base_id, add_answers(up.settings, base_id), STEPS, SAVE_EVERY)
    prepared.submit_next()
    prepared.wait_ended()
    return prepared


@pytest.mark.drill
@pytest.mark.timeout(3600)
def test_processes_stopped_for_a_minute(up: Up, trainings: Trainings, figures: Figures) -> None:
    reference = text(ask(up))
    assert reference
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    unanswered = 0
    for part in PARTS * ROUNDS:
        job = trainings.ensure_running()
        answers: list[httpx.Response | None] = []
        request = threading.Thread(target=lambda a=answers: a.append(ask(up, STOP_SECONDS + BACK_SECONDS)))
        with stopped(job.child["pid"] if part == CHILD else up.pid(part)):
            if part == "inference":
                request.start()
            time.sleep(STOP_SECONDS)
            before = trainings.current().done
        began = time.monotonic()
        wait_for(
            lambda b=before: goes_on(trainings, b), f"the training to go on after {part} was stopped", BACK_SECONDS
        )
        wait_for(lambda: text(ask(up, 10)) == reference, "an answer", BACK_SECONDS)
        seconds[part].append(time.monotonic() - began)
        if request.ident is not None:
            request.join(STOP_SECONDS + BACK_SECONDS)
            unanswered += not answers
    trainings.wait_ended()
    trainings.check_steps()
    different = len(set(trainings.weights())) - 1
    figures.record(
        stops=len(PARTS) * ROUNDS,
        jobs=len(trainings.ids),
        lost=0,
        doubled=int(trainings.most_at_once > 1),
        different_weights=different,
        left_hanging=unanswered,
        recovery={part: spread(durations) for part, durations in seconds.items()},
    )
    assert (different, unanswered, trainings.most_at_once) == (0, 0, 1)
    assert "Traceback" not in up.output


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_the_database_locked_by_another_program(up: Up, trainings: Trainings, figures: Figures) -> None:
    seconds, pages, failed = [], 0, 0
    for _ in range(ROUNDS):
        trainings.ensure_running()
        end = time.monotonic() + LOCK_SECONDS
        with locked(up.home / "speculoos.db"):
            while time.monotonic() < end:
                for path in PAGES:
                    response = httpx.get(up.url + path, timeout=60, trust_env=False)
                    pages, failed = pages + 1, failed + (response.status_code >= 500 or "Traceback" in response.text)
                time.sleep(1)
            before = trainings.current().done
        began = time.monotonic()
        wait_for(lambda b=before: goes_on(trainings, b), "the training to go on", BACK_SECONDS)
        seconds.append(time.monotonic() - began)
    trainings.wait_ended()
    trainings.check_steps()
    different = len(set(trainings.weights())) - 1
    figures.record(
        locks=ROUNDS,
        jobs=len(trainings.ids),
        lost=0,
        doubled=int(trainings.most_at_once > 1),
        different_weights=different,
        pages_asked=pages,
        pages_answered=pages - failed,
        recovery={"training": spread(seconds)},
    )
    assert (different, failed, trainings.most_at_once) == (0, 0, 1)


def goes_on(trainings: Trainings, before: int) -> bool:
    job = trainings.current()
    assert job.state not in ("FAILED", "CANCELLED"), f"{job.error} {job.hint}"
    return job.done > before or job.state == "SUCCEEDED"


@contextlib.contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the duration of the block. It may be killed meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


@contextlib.contextmanager
def locked(database: Path) -> Iterator[None]:
    """Hold a write lock on the database for the duration of the block."""
    with closing(sqlite3.connect(database, timeout=60, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("ROLLBACK")

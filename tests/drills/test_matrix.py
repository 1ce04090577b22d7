"""A matrix of three checkpoints, four suites, two temperatures and two trees is killed repeatedly: it goes on, no cell
is measured twice, and the leaderboard's CSV equals the rows."""

import csv
import io
import os
import random
import time
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import downloads
from tests.tools.figures import Figures
from tests.workers.conftest import Bench
from tests.workers.matrix_bench import (
    FILES,
    add_model,
    add_suites,
    cells,
    check_whole,
    kill_a_child,
    matrix,
    measured,
    wait_measured,
)

pytestmark = [pytest.mark.drill, pytest.mark.timeout(3600)]
KILLS = int(os.environ.get("DRILLS_KILLS", "20"))
CELLS = 3 * 4 * 2 * 2
EVERY = 2
"""Cells measured between two kills, at least."""


def test_a_matrix_killed_again_and_again(bench: Bench, tiny_base: Path, figures: Figures) -> None:
    base_id, heads = add_model(bench.settings, tiny_base, 3)
    bench.worker("io")
    suites = add_suites(bench, list(FILES), 8)
    workers, reconciler = [bench.worker("gpu")], bench.reconciler()
    trees = [{}, {"tree": [[0, 0], [1, 0]]}]
    options = {"limit": 5, "max_tokens": 12, "temperatures": [0.0, 1.0], "drafting": trees}
    job = matrix(bench, base_id, heads, suites, **options)
    rng, kills, before = random.Random(17), 0, {}
    began = time.monotonic()
    while kills < KILLS and len(measured(bench, job)) + EVERY < CELLS:
        wait_measured(bench, job, len(measured(bench, job)) + EVERY, 300)
        if rng.random() < 0.5:
            kills += kill_a_child(bench, job, rng)
        else:
            for process in (workers.pop(), *([reconciler] if rng.random() < 0.5 else [])):
                process.kill()
                process.wait()
                kills += 1
            workers.append(bench.worker("gpu"))
            if reconciler.poll() is not None:
                reconciler = bench.reconciler()
        now = {row.id: (row.result, row.job_id) for row in measured(bench, job)}
        assert before.items() <= now.items(), "a measured cell was measured again"
        before = now
    bench.wait(job.id, "SUCCEEDED", 1200)
    check_whole(bench, job, CELLS)
    rows = csv_of(bench, job.id)
    assert {row["id"] for row in rows} == {row.id for row in measured(bench, job)} and len(rows) == CELLS
    by_id = {row.id: row for row in measured(bench, job)}
    for line in rows:
        for key in ("speedup", "tau", "temperature", "tree", "questions"):
            assert line[key] == str(getattr(by_id[line["id"]], key)), key
    attempts = sum(cell.attempt for cell in cells(bench, job))
    matrix_seconds = round(time.monotonic() - began)
    figures.record(kills=kills, jobs=CELLS, lost=0, doubled=0, attempts=attempts, matrix_seconds=matrix_seconds)


def csv_of(bench: Bench, matrix_id: str) -> list[dict[str, str]]:
    """The rows of the CSV that the page offers for a matrix."""
    app = FastAPI()
    app.include_router(downloads.routes(bench.settings))
    with TestClient(app) as client:
        text = client.get(f"/api/evaluations.csv?matrix={matrix_id}").content.decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text)))

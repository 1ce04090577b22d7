"""The clock of the machine is stepped while jobs run. The short form is tests/workers/test_clock_steps.py."""

import os
import random
import time
from dataclasses import replace
from pathlib import Path

import pytest

from speculoos.settings import Settings
from tests.drills.test_stores import count_lost_and_doubled, order
from tests.tools.clock import Clock
from tests.tools.figures import Figures
from tests.workers.conftest import Bench

STEPS = int(os.environ.get("DRILLS_CLOCK_STEPS", "30"))
SMALL, LARGE = (-2.0, -1.0, 1.0, 2.0), (-86_400.0, -3600.0, 60.0, 3600.0, 86_400.0)


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_the_clock_stepped_while_jobs_run(home: Settings, broker: str, tmp_path: Path, figures: Figures) -> None:
    bench = Bench(replace(home, redis_url=f"{broker}?virtual_host=6"))
    clock, ahead, rng, submitted = Clock(bench, tmp_path), 0.0, random.Random(23), []
    try:
        bench.worker("io")
        bench.reconciler()
        for number in range(STEPS):
            submitted.append(order(bench, tmp_path / f"job-{number}"))
            bench.wait_for(submitted[-1].id, lambda job: job.done >= 3, "three steps", 120)
            ahead += rng.choice(SMALL if number % 2 else LARGE)
            clock.step(ahead)
            time.sleep(rng.uniform(0, 1))
        lost, doubled = count_lost_and_doubled(bench, submitted, tmp_path)
        restarted = sum(bench.job(job.id).attempt > 1 for job in submitted)
    finally:
        bench.end()
    figures.record(clock_steps=STEPS, jobs=len(submitted), lost=lost, doubled=doubled, begun_again=restarted)
    assert (lost, doubled, restarted) == (0, 0, 0)

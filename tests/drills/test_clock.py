"""The clock of the machine is stepped while jobs run. The short form is tests/workers/test_clock_steps.py."""

import os
import random
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from speculoos.settings import Settings
from tests.drills.test_stores import count_lost_and_doubled, order
from tests.tools import clock
from tests.tools.figures import Figures
from tests.workers.conftest import Bench

STEPS = int(os.environ.get("DRILLS_CLOCK_STEPS", "30"))
SMALL, LARGE = (-2.0, -1.0, 1.0, 2.0), (-86_400.0, -3600.0, 60.0, 3600.0, 86_400.0)


class SteppedBench(Bench):
    """A bench whose processes see a simulated clock."""

    def __init__(self, settings: Settings, clock_: clock.Clock):
        super().__init__(settings, **clock_.environment)
        self.clock = clock_

    def start(self, module: str, *arguments: str) -> subprocess.Popen[bytes]:
        command = self.clock.command([sys.executable, "-m", module, *arguments])
        with (self.settings.home / f"{module}.log").open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=self.environment)
        self.processes.append(process)
        return process


@pytest.mark.drill
@pytest.mark.timeout(900)
def test_the_clock_stepped_while_jobs_run(home: Settings, broker: str, tmp_path: Path, figures: Figures) -> None:
    if reason := clock.missing():
        pytest.skip(reason)
    bench = SteppedBench(replace(home, redis_url=f"{broker}?virtual_host=6"), clock.Clock(tmp_path))
    rng, submitted = random.Random(23), []
    try:
        bench.worker("io")
        bench.reconciler()
        for number in range(STEPS):
            submitted.append(order(bench, tmp_path / f"job-{number}"))
            bench.wait_for(submitted[-1].id, lambda job: job.done >= 3, "three steps", 120)
            bench.clock.step(rng.choice(SMALL if number % 2 else LARGE))
            time.sleep(rng.uniform(0, 1))
        lost, doubled = count_lost_and_doubled(bench, submitted, tmp_path)
        restarted = sum(bench.job(job.id).attempt > 1 for job in submitted)
    finally:
        bench.end()
    figures.record(clock_steps=STEPS, jobs=len(submitted), lost=lost, doubled=doubled, begun_again=restarted)
    assert (lost, doubled, restarted) == (0, 0, 0)


@pytest.mark.integration
def test_the_clock_of_real_processes_is_stepped(tmp_path: Path) -> None:
    """The tool of the drill: a process sees the step, and the boot time of the machine moves along."""
    if reason := clock.missing():
        pytest.skip(reason)
    stepped = clock.Clock(tmp_path)
    code = "import datetime, psutil; print(datetime.datetime.now().timestamp(), psutil.boot_time())"

    def read_clock() -> tuple[float, float]:
        command = stepped.command([sys.executable, "-c", code])
        completed = subprocess.run(command, env={**os.environ, **stepped.environment}, capture_output=True, check=True)
        now, boot = map(float, completed.stdout.split())
        return now - time.time(), boot

    ahead, boot = read_clock()
    assert abs(ahead) < 30
    stepped.step(86_400)
    ahead, later = read_clock()
    assert abs(ahead - 86_400) < 30 and later - boot == 86_400

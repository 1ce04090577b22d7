"""Two starts of one home at the same moment, and a training that has too little memory."""

import os
import time
from dataclasses import replace
from pathlib import Path

import pytest

from cli.launch.supervision import leftover_processes
from speculoos.settings import Settings
from tests.drills.trainings import SETTINGS
from tests.tools.figures import Figures, spread
from tests.tools.homes import add_answers, add_base
from tests.tools.running import Up, wait_for
from tests.workers.conftest import Bench
from workers.jobs.requests import Train
from workers.jobs.submit import submit

ROUNDS = int(os.environ.get("DRILLS_ROUNDS", "10"))
MODULES = (
    "app.main",
    "serving.main",
    "workers.supervise.reconcile",
    "workers.supervise.worker gpu",
    "workers.supervise.worker io",
    "valkey-server",
)


@pytest.mark.drill
@pytest.mark.timeout(1800)
def test_two_starts_at_once(up: Up, figures: Figures) -> None:
    """One of two starts runs everything once; the other one says that it is running already."""
    seconds, doubled = [], 0
    for _ in range(ROUNDS):
        began = time.monotonic()
        pair = [up.begin(str(number)) for number in range(2)]
        wait_for(lambda pair=pair: any(one.poll() is not None for one in pair), "one of two to leave")
        (left,) = [number for number, one in enumerate(pair) if one.poll() is not None]
        assert pair[left].returncode == 0 and "running already" in up.words(str(left)), up.words(str(left))
        wait_for(lambda left=left: "Speculoos is up" in up.words(str(1 - left)), "the other one to be up")
        seconds.append(time.monotonic() - began)
        doubled += sum(count > 1 for count in parts(up.settings).values())
        assert set(parts(up.settings)) == set(MODULES)
        pair[1 - left].terminate()
        assert pair[1 - left].wait(40) == 0
        assert not leftover_processes(up.settings)
    figures.record(starts=2 * ROUNDS, doubled=doubled, lost=0, recovery={"start": spread(seconds)})
    assert doubled == 0


def parts(settings: Settings) -> dict[str, int]:
    """How many processes of each kind run for this home."""
    command_lines = [" ".join(process.cmdline()) for process in leftover_processes(settings)]
    counts = {module: sum(module in command_line for command_line in command_lines) for module in MODULES}
    return {module: count for module, count in counts.items() if count}


@pytest.mark.drill
@pytest.mark.timeout(600)
def test_out_of_memory_in_training(home: Settings, broker: str, tmp_path: Path, figures: Figures) -> None:
    """Each child may use little memory beyond its libraries. Children that need more report it; the worker goes on."""
    from tests.tiny import make_tiny_base

    bench = Bench(replace(home, redis_url=f"{broker}?virtual_host=7"))
    bench.environment["SPECULOOS_WORK_MODULES"] = "tests.workers.little_memory"
    wide = make_tiny_base(tmp_path / "wide", hidden_size=256, intermediate_size=64, vocab_size=20_000)
    base_id = add_base(bench.settings, wide, "wide")
    dataset_id = add_answers(bench.settings, base_id)
    try:
        worker = bench.worker("gpu")
        large = [ask(bench, base_id, dataset_id, medusa_num_heads=16) for _ in range(ROUNDS)]
        small = ask(bench, base_id, dataset_id, medusa_num_heads=1, medusa_tie_lm_head=True, batch_tokens=64)
        plain = 0
        for job in large:
            failed = bench.wait(job, "FAILED", 120)
            plain += "ran out of memory" in failed.error and "\n" not in failed.error
        assert bench.wait(small, "SUCCEEDED", 120).attempt == 1
        assert worker.poll() is None
    finally:
        bench.end()
    figures.record(jobs=len(large) + 1, lost=0, doubled=0, out_of_memory=len(large), said_so=plain)
    assert plain == len(large)


def ask(bench: Bench, base_id: str, dataset_id: str, **changes: object) -> str:
    settings = {**SETTINGS, "max_steps": 4, "held_out": 0.0, **changes}
    return submit(Train("medusa", base_id, dataset_id, settings), settings=bench.settings).id

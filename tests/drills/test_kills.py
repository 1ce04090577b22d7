"""Each part of a running workbench is killed at random while it trains: no job lost or doubled, weights stay equal."""

import contextlib
import json
import os
import random
import signal
import time
from pathlib import Path

import pytest

from tests.drills.trainings import Trainings
from tests.tools.figures import Figures, spread
from tests.tools.homes import add_answers, add_base
from tests.tools.running import Up, wait_for
from tracking import db, jobs
from tracking.states import FINISHED
from tracking.tables import Dataset, Job
from workers.jobs.requests import ImportPrompts
from workers.jobs.submit import submit

CHILD = "child"
PARTS = ("worker-gpu", CHILD, "broker", "reconciler", "web", "inference")
WITH_THE_CHILD = ("worker-gpu", CHILD)
"""Parts whose end ends the process that trains."""
KILLS = int(os.environ.get("DRILLS_KILLS", "20"))
"""How often each part is killed."""
STEPS, SAVE_EVERY = 3000, 25
IMPORT_EVERY = 4
"""A small import is submitted at every so many kills, at whatever moment that is."""
BACK_SECONDS = 120.0
"""No part may take longer to be back, with the training going on."""


@pytest.mark.drill
@pytest.mark.timeout(3600)
def test_each_part_killed_at_random_while_it_trains(up: Up, tiny_base: Path, tmp_path: Path, figures: Figures) -> None:
    up.start()
    base_id = add_base(up.settings, tiny_base)
    trainings = Trainings(up.settings, base_id, add_answers(up.settings, base_id), STEPS, SAVE_EVERY)
    trainings.submit_next()
    trainings.wait_ended()
    rng = random.Random(11)
    order = [part for part in PARTS for _ in range(KILLS)]
    rng.shuffle(order)
    seconds: dict[str, list[float]] = {part: [] for part in PARTS}
    imports: list[Job] = []
    for number, part in enumerate(order):
        trainings.ensure_running()
        time.sleep(rng.uniform(0, 1))
        if part == CHILD:
            trainings.ensure_running()
        if number % IMPORT_EVERY == 0:
            imports.append(order_import(up, tmp_path, number))
        seconds[part].append(kill(up, part, trainings))
    trainings.wait_ended()
    lost, doubled = check_imports(up, imports)
    trainings.check_steps()
    different = len(set(trainings.weights())) - 1
    figures.record(
        kills=len(order),
        jobs=len(trainings.ids) + len(imports),
        trainings=len(trainings.ids),
        lost=lost,
        doubled=doubled + (trainings.most_at_once > 1),
        different_weights=different,
        most_trainers_at_once=trainings.most_at_once,
        recovery={part: spread(durations) for part, durations in seconds.items()},
    )
    assert (lost, doubled, different, trainings.most_at_once) == (0, 0, 0, 1)
    assert "Traceback" not in up.output


def kill(up: Up, part: str, trainings: Trainings) -> float:
    """SIGKILL a part; returns the seconds until it is back and the training goes on."""
    before = trainings.current()
    began = time.monotonic()
    if part == CHILD:
        pid = before.child["pid"]
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    else:
        wait_for(lambda: up.pid(part), f"a process of {part}", BACK_SECONDS)
        began = time.monotonic()
        pid = up.kill(part)

    def is_back() -> bool:
        job = trainings.current()
        assert job.state not in ("FAILED", "CANCELLED"), f"{part}: {job.error}\n{up.output}"
        return goes_on(part, before, job) and (part == CHILD or up.is_back(part, pid))

    wait_for(is_back, f"{part}, killed, to be back and the training to go on", BACK_SECONDS)
    return time.monotonic() - began


def goes_on(part: str, before: Job, job: Job) -> bool:
    """Whether the training goes on: in a new attempt if its process was killed too, else in the same attempt, which
    must not have been disturbed."""
    if job.state in FINISHED:
        return True
    if part in WITH_THE_CHILD:
        return job.attempt > before.attempt and job.done > job.done_before
    assert job.attempt == before.attempt, f"{part} took the training along: {job.progress_note}"
    return job.done > before.done


def order_import(up: Up, folder: Path, number: int) -> Job:
    """Submit the import of a dozen prompts."""
    file = folder / f"prompts-{number}.jsonl"
    file.write_text("".join(json.dumps({"prompt": f"number {number}, prompt {n}"}) + "\n" for n in range(12)))
    return submit(ImportPrompts(path=str(file)), name=f"prompts-{number}", settings=up.settings)


def check_imports(up: Up, imports: list[Job]) -> tuple[int, int]:
    """(number of imports that did not succeed, number that did not leave exactly one dataset of a dozen rows)."""

    def open_ones() -> list[str]:
        with db.reading(up.settings) as session:
            return [job.id for job in imports if jobs.get(session, job.id).state not in FINISHED]

    wait_for(lambda: not open_ones(), "the end of all imports")
    with db.reading(up.settings) as session:
        lost = sum(jobs.get(session, job.id).state != "SUCCEEDED" for job in imports)
        datasets_of_imports = [session.query(Dataset).filter_by(job_id=job.id).all() for job in imports]
        doubled = sum([row.rows for row in datasets] != [12] for datasets in datasets_of_imports)
    return lost, doubled

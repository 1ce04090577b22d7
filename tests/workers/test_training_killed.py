"""A training whose process and worker are killed ends as if nothing had happened, also in TensorBoard."""

import os
import signal
from pathlib import Path

import pytest

from tests.workers.conftest import Bench
from tests.workers.holds import PROGRESS, hold
from tests.workers.training_bench import Watch, submit_training
from tracking import db, reports
from tracking.tables import Checkpoint

FORKED = True
pytestmark = pytest.mark.integration

STEPS = 60


def test_a_training_survives_the_death_of_its_process_and_of_its_worker(bench: Bench, tiny_base: Path) -> None:
    bench.environment["SPECULOOS_TRACKERS"] = "tensorboard"
    job = submit_training(bench, tiny_base, steps=STEPS, save_every=5)
    bench.reconciler()
    worker = bench.worker("gpu")
    with Watch(job.id) as watch:
        with hold(bench.settings.home, PROGRESS, 10):
            running = bench.wait_for(job.id, lambda j: j.done >= 10, "ten steps")
            os.kill(running.child["pid"], signal.SIGKILL)
            with hold(bench.settings.home, PROGRESS, 25):
                bench.wait_for(job.id, lambda j: j.attempt == 2 and j.done >= 25, "a second attempt that goes on")
                worker.kill()
        bench.worker("gpu")
        done = bench.wait(job.id, "SUCCEEDED")
    assert (done.attempt, done.done, done.total) == (3, STEPS, STEPS)
    assert watch.most == 1 and len(watch.seen) == 3, "never two trainers at once"
    with db.reading(bench.settings) as session:
        checkpoint = session.get_one(Checkpoint, done.request["checkpoint_id"])
        losses = reports.metrics(session, job.id)["train/loss"]
        resumed = [line.message for line in reports.logs(session, job.id) if line.message.startswith("Resumed")]
    assert [step for step, _ in losses] == list(range(1, STEPS + 1)), "every step once, none twice, none missing"
    assert len(resumed) == 2
    assert (checkpoint.state, checkpoint.step, checkpoint.attempt) == ("ready", STEPS, 3)
    assert [p.name for p in Path(checkpoint.path).parents[1].iterdir()] == ["attempt-3"], "nothing left of the others"
    check_read_back(bench.settings.trackers_folder / "tensorboard" / f"Train-heads-{job.id[:12]}", losses)


def check_read_back(folder: Path, losses: list[tuple[int, float]]) -> None:
    """TensorBoard's own reader finds the losses of the rows in the files of all attempts, every step once."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    scalars = reader.EventAccumulator(str(folder), {reader.SCALARS: 0}).Reload().Scalars("train/loss")
    assert [(each.step, pytest.approx(each.value, rel=1e-6)) for each in scalars] == losses

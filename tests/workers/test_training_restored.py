"""A training that is backed up midway resumes in the restored home from its last state, to the same weights."""

from dataclasses import replace
from pathlib import Path

import pytest

from ops.backup import back_up
from ops.restore import restore
from speculoos.settings import load
from tests.workers.conftest import Bench
from tests.workers.training_bench import submit_training
from tracking import db, reports
from tracking.tables import Checkpoint

pytestmark = pytest.mark.integration

FORKED = True
STEPS = 50


def test_a_training_goes_on_in_a_restored_home(bench: Bench, tiny_base: Path, tmp_path: Path, broker: str) -> None:
    job = submit_training(bench, tiny_base, steps=STEPS, save_every=5)
    bench.worker("gpu")
    bench.wait_for(job.id, lambda j: j.done >= 8, "eight steps")
    report = back_up(bench.settings, tmp_path / "home.tar")
    assert not report.wrong
    first = bench.wait(job.id, "SUCCEEDED", 240)
    other = replace(load({"SPECULOOS_HOME": str(tmp_path / "other")}), redis_url=f"{broker}?virtual_host=7")
    with (tmp_path / "home.tar").open("rb") as source:
        assert restore(other, source, "home.tar").jobs_going_on == 1
    second = Bench(other, forked=True)
    try:
        second.worker("gpu")
        done = second.wait(job.id, "SUCCEEDED", 240)
        with db.reading(other) as session:
            checkpoint = session.get_one(Checkpoint, done.request["checkpoint_id"])
            resumed = [line.message for line in reports.logs(session, job.id) if line.message.startswith("Resumed")]
            losses = reports.metrics(session, job.id)["train/loss"]
    finally:
        second.end()
    assert (first.attempt, done.attempt) == (1, 2) and len(resumed) == 1, "it went on, it did not begin anew"
    resumed_step = int(resumed[0].rstrip(".").rpartition(" ")[2])
    steps = [step for step, _ in losses]
    assert steps == sorted(set(steps)) and {*range(1, 9), *range(resumed_step + 1, STEPS + 1)} <= set(steps)
    assert checkpoint.path.startswith(str(other.home))
    with db.reading(bench.settings) as session:
        assert checkpoint.sha256 == session.get_one(Checkpoint, checkpoint.id).sha256, "the same weights, byte for byte"

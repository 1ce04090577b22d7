"""A training on two nodes, here two programs that meet over the loopback, each killed once."""

import hashlib
import os
import signal
from pathlib import Path

import pytest

from tests.tools.figures import Figures
from tests.tools.ports import free_ports
from tests.workers.conftest import Bench
from tests.workers.training_bench import submit_training
from tracking import db
from tracking.tables import Checkpoint, Job
from workers.jobs.requests import from_json
from workers.jobs.submit import submit

pytestmark = [pytest.mark.drill, pytest.mark.timeout(1200)]
NODE = "workers.child.node"


def weights(bench: Bench, job: Job) -> str:
    with db.reading(bench.settings) as session:
        path = Path(session.get_one(Checkpoint, job.request["checkpoint_id"]).path)
    return hashlib.sha256((path / "model.safetensors").read_bytes()).hexdigest()


def test_a_training_on_two_nodes_survives_the_death_of_each(bench: Bench, tiny_base: Path, figures: Figures) -> None:
    endpoint = f"127.0.0.1:{free_ports(1)[0]}"
    bench.environment |= {"SPECULOOS_WORK_MODULES": ""}
    bench.reconciler()
    bench.worker("gpu")
    node = bench.start(NODE, endpoint)
    undisturbed = submit_training(bench, tiny_base, 300, 20, nodes=2, rdzv_endpoint=endpoint)
    undisturbed = bench.wait(undisturbed.id, "SUCCEEDED", 300)
    request = from_json("train", {**undisturbed.request, "checkpoint_id": ""})
    killed = submit(request, name="killed", settings=bench.settings)
    running = bench.wait_for(killed.id, lambda job: job.done >= 50, "50 steps")
    os.kill(running.child["pid"], signal.SIGKILL)
    bench.wait_for(killed.id, lambda job: job.attempt == 2 and job.done >= running.done + 50, "50 more steps")
    node.kill()
    bench.wait_for(killed.id, lambda job: job.attempt == 3 and "Waits for 1 more node" in job.progress_note, "the wait")
    bench.start(NODE, endpoint)
    ended = bench.wait(killed.id, "SUCCEEDED", 300)
    different = int(weights(bench, ended) != weights(bench, undisturbed))
    figures.record(kills=2, jobs=2, lost=0, attempts=ended.attempt, different_weights=different)
    assert ended.attempt == 3 and not different

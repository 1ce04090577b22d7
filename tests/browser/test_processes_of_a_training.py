"""A drill that kills each process of a two-process training, started from the page, once."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import torch
from playwright.sync_api import Page, expect
from safetensors.torch import load_file

from models.methods.recipes import config_for
from speculoos.reporting import SilentReporter
from tests.browser.services import box, choose, job_is, row_id, unfold
from tests.browser.workbench import Workbench
from tests.tools.homes import add_answers
from tests.tools.processes import is_listening_elsewhere, ranks
from tests.workers.conftest import wait_until
from tracking import queries
from tracking.db import reading
from tracking.tables import Base, Checkpoint, Dataset, Job, new_id
from training.processes import train_in_processes
from workers.jobs.requests import Train, from_json

pytestmark = [pytest.mark.browser, pytest.mark.drill]
STEPS = 80


@pytest.fixture(scope="module")
def bench(workbench: Workbench) -> Iterator[Workbench]:
    with workbench.with_workers():
        yield workbench


def start(page: Page, bench: Workbench) -> str:
    """Start a training in two processes with sharded drafts; returns the job's id."""
    with reading(bench.settings) as session:
        base_id = queries.find_base(session, "tiny").id
    data = add_answers(bench.settings, base_id, f"random answers {new_id()[:8]}")
    page.goto(f"{bench.url}/runs/new?method=medusa&data={data}")
    command = page.locator("#train-review .sp-command")
    choose(page, "train-recipe", "medusa-smoke")
    unfold(page, "Advanced settings")
    unfold(page, "Duration")
    box(page, "set-epochs").fill("0")
    box(page, "set-max_steps").fill(str(STEPS))
    unfold(page, "Logging and checkpoints")
    box(page, "set-save_every").fill("5")
    unfold(page, "Distributed training")
    box(page, "train-processes").fill("2")
    choose(page, "train-sharding", "fsdp")
    expect(command).to_contain_text("--processes 2 --sharding fsdp")
    expect(command).to_contain_text("save_every=5")
    page.locator("#train-measure input").uncheck()
    page.locator("#train-start").click()
    page.wait_for_url("**/runs?id=*")
    return row_id(page)


def job_of(bench: Workbench, job_id: str) -> Job:
    with reading(bench.settings) as session:
        return session.get_one(Job, job_id)


def kill(bench: Workbench, job_id: str, attempt: int, victim: int) -> None:
    """Kill rank 0, rank 1 or the job's own process (2), once the attempt has made some more steps."""
    before = job_of(bench, job_id).done
    wait_until(lambda: (job := job_of(bench, job_id)).attempt == attempt and job.done > before + 10, 120, "some steps")
    child = job_of(bench, job_id).child["pid"]
    rank_processes = ranks(child)
    assert len(rank_processes) == 2 and not any(map(is_listening_elsewhere, rank_processes))
    os.kill((rank_processes[0].pid, rank_processes[1].pid, child)[victim], signal.SIGKILL)
    wait_until(lambda: job_of(bench, job_id).attempt == attempt + 1, 120, "the next attempt")
    assert not any(rank.is_running() and rank.status() != psutil.STATUS_ZOMBIE for rank in rank_processes), (
        "all ended together"
    )


def test_a_training_whose_processes_are_all_killed_in_turn_equals_an_undisturbed_one(
    page: Page, bench: Workbench, tmp_path: Path
) -> None:
    job_id = start(page, bench)
    for victim in range(3):
        kill(bench, job_id, victim + 1, victim)
    job_is(page, "SUCCEEDED")
    with reading(bench.settings) as session:
        job = session.get_one(Job, job_id)
        request = from_json(job.kind, job.request)
        checkpoint = session.get_one(Checkpoint, request.checkpoint_id)
        base, data = session.get_one(Base, request.base_id), session.get_one(Dataset, request.dataset_id)
    assert isinstance(request, Train) and (job.attempt, job.done) == (4, STEPS)
    config = config_for(request.method, request.recipe, {**request.settings, "device": "cpu"})
    undisturbed = train_in_processes(2, (), SilentReporter(), config, base.path, data.path, tmp_path, sharding="fsdp")
    expected, actual = (
        load_file(folder / "model.safetensors") for folder in (undisturbed.folder, Path(checkpoint.path))
    )
    assert all(torch.equal(actual[name], tensor) for name, tensor in expected.items())

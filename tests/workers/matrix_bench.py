"""Helpers for matrices on real processes: checkpoints and suites to measure, kills, and checks of the result."""

import json
import os
import random
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from models.base import load_base
from models.checkpoints import save_draft
from models.identity import weights_sha256
from models.medusa import MedusaConfig, MedusaHeads
from speculoos.settings import Settings
from tests.workers.conftest import Bench, wait_until
from tracking import db, shards
from tracking.tables import Base, Checkpoint, Evaluation, Job, new_id
from workers.jobs.requests import ImportPrompts, Matrix
from workers.jobs.submit import submit

FILES: dict[str, Callable[[int], dict[str, Any]]] = {
    "mt_bench": lambda n: {"question_id": n, "category": "ab"[n % 2], "turns": [f"the quick {n}", f"and {n}"]},
    "humaneval": lambda n: {"task_id": f"HumanEval/{n}", "prompt": f"def f{n}(x):\n    return x + {n}\n"},
    "gsm8k": lambda n: {"question": f"What is {n} + {n}?", "answer": f"#### {2 * n}"},
    "spec_bench": lambda n: {"question_id": n, "category": ("qa", "rag", "math")[n % 3], "turns": [f"who is {n}?"]},
}


def add_model(settings: Settings, folder: Path, checkpoints: int) -> tuple[str, list[str]]:
    """Add a base and `checkpoints` Medusa checkpoints of it; return the ids."""
    base = load_base(folder)
    row = Base(name="tiny", source="folder", location=str(folder), path=str(folder), state="ready")
    row.weights_sha256, row.card = weights_sha256(folder), {"architecture": "llama", "parameters": 10**5}
    with db.writing(settings) as session:
        session.add(row)
        session.flush()
        drafts = [_heads(settings, base, row, number) for number in range(checkpoints)]
        session.add_all(drafts)
    return row.id, [each.id for each in drafts]


def _heads(settings: Settings, base: Any, row: Base, number: int) -> Checkpoint:
    shape = MedusaConfig(hidden_size=base.hidden_size, vocab_size=base.vocab_size, medusa_num_heads=2 + number)
    row_id = new_id()
    folder = settings.home / "checkpoints" / row_id / "attempt-1"
    save_draft(folder, MedusaHeads.from_base(shape, base), {"base": row.name, "base_sha256": row.weights_sha256})
    values = {"method": "medusa", "state": "ready", "base_id": row.id, "base_sha256": row.weights_sha256}
    return Checkpoint(id=row_id, name=f"heads-{number}", path=str(folder), **values)


def add_suites(bench: Bench, names: Sequence[str], questions: int) -> list[str]:
    """Import suites in their own formats; return the ids of the datasets."""
    jobs = []
    for name in names:
        file = bench.settings.home / f"{name}.jsonl"
        file.write_text("".join(json.dumps(FILES[name](n)) + "\n" for n in range(questions)))
        jobs.append(submit(ImportPrompts(path=str(file), suite=name), settings=bench.settings))
    return [bench.wait(job.id, "SUCCEEDED").request["dataset_id"] for job in jobs]


def matrix(bench: Bench, base_id: str, checkpoint_ids: Sequence[str], suites: Sequence[str], **options: Any) -> Job:
    """Submit a matrix of every checkpoint on every suite."""
    models = [{"base_id": base_id, "checkpoint_id": checkpoint_id} for checkpoint_id in checkpoint_ids]
    return submit(Matrix(models=models, suites=list(suites), **options), settings=bench.settings)


def cells(bench: Bench, job: Job) -> list[Job]:
    with db.reading(bench.settings) as session:
        return shards.list_shards(session, job.id)


def measured(bench: Bench, job: Job) -> list[Evaluation]:
    """The evaluations of the measured cells."""
    with db.reading(bench.settings) as session:
        return list(session.query(Evaluation).filter_by(matrix_id=job.id, state="ready").order_by(Evaluation.id))


def wait_measured(bench: Bench, job: Job, count: int, seconds: float = 300) -> None:
    wait_until(lambda: len(measured(bench, job)) >= count, seconds, f"{count} cells", lambda: bench.output(job.id))


def kill_a_child(bench: Bench, job: Job, rng: random.Random) -> bool:
    """Kill (-9) the process of one running cell; return whether there was one."""
    pids = [cell.child["pid"] for cell in cells(bench, job) if cell.state == "RUNNING" and cell.child]
    try:
        os.kill(rng.choice(pids), signal.SIGKILL)
    except (IndexError, ProcessLookupError):
        return False
    return True


def check_whole(bench: Bench, job: Job, count: int) -> None:
    """Every cell has one evaluation with figures and the settings of that cell."""
    rows, cell_jobs = measured(bench, job), cells(bench, job)
    assert len(rows) == len(cell_jobs) == count and {cell.state for cell in cell_jobs} == {"SUCCEEDED"}
    assert {row.id for row in rows} == {cell.request["evaluation_id"] for cell in cell_jobs}
    for cell in cell_jobs:
        (row,) = [row for row in rows if row.id == cell.request["evaluation_id"]]
        assert (row.checkpoint_id, row.config["dataset_id"]) == (
            cell.request["checkpoint_id"],
            cell.request["dataset_id"],
        )
        assert row.temperature == cell.request["temperature"] == row.result["temperature"]
        assert row.config["drafting"] == cell.request["drafting"] and row.state == "ready"
        assert row.tau == row.result["mean_accepted_length"] >= 1 and row.speedup == row.result["speedup"]
        assert cell.result["evaluation_id"] == row.id
    matrix_job = bench.job(job.id)
    assert (matrix_job.state, matrix_job.result["cells"], matrix_job.shards) == ("SUCCEEDED", count, count)
    assert matrix_job.unit == "questions" and 0 < matrix_job.done <= matrix_job.total == sum(
        cell.total for cell in cell_jobs
    )
    assert matrix_job.estimated_seconds == pytest.approx(sum(cell.estimated_seconds for cell in cell_jobs))

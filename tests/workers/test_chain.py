"""Import, generate, train and evaluate on a tiny base in real processes, each with the output of the job before."""

import hashlib
import json
import zipfile
from pathlib import Path

import pytest

from models import archive
from models.identity import weights_sha256
from tests.workers.conftest import Bench
from tracking import db, queries
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job
from workers.jobs.requests import Evaluate, GenerateData, ImportPrompts, Train
from workers.jobs.submit import submit

pytestmark = pytest.mark.integration

FORKED = True
PROMPTS = [{"prompt": f"Tell me about number {n} and about foxes."} for n in range(12)] + [{"nothing": 1}]
TRAINING = {"max_steps": 12, "epochs": 0.0, "batch_tokens": 256, "eval_every": 6, "save_every": 4, "max_length": 64}


@pytest.fixture
def base(bench: Bench, tiny_base: Path) -> Base:
    with db.writing(bench.settings) as session:
        row = Base(name="tiny", source="folder", location=str(tiny_base), path=str(tiny_base), state="ready")
        row.weights_sha256 = weights_sha256(tiny_base)
        session.add(row)
    return row


def submit_chain(bench: Bench, base: Base, file: Path) -> list[Job]:
    """Four jobs at once; each names the output of the one before, which is still pending."""
    file.write_text("".join(json.dumps(row) + "\n" for row in PROMPTS))
    settings, experiment = bench.settings, "whole way"
    imported = submit(ImportPrompts(path=str(file)), settings=settings, experiment=experiment)
    generation = GenerateData(source_id=imported.request["dataset_id"], base_id=base.id, max_tokens=12, batch_size=4)
    answers = submit(generation, settings=settings, experiment=experiment)
    dataset_id = answers.request["dataset_id"]
    training = Train(method="medusa", base_id=base.id, dataset_id=dataset_id, settings=TRAINING)
    trained = submit(training, name="heads", settings=settings, experiment=experiment)
    evaluation = submit(
        Evaluate(base_id=base.id, checkpoint_id=trained.request["checkpoint_id"], limit=2, max_tokens=8),
        settings=settings,
    )
    return [imported, answers, trained, evaluation]


def test_four_jobs_submitted_at_once_go_the_whole_way(bench: Bench, base: Base, tmp_path: Path) -> None:
    chain = submit_chain(bench, base, tmp_path / "mine.jsonl")
    assert [job.after_id for job in chain] == [None, *(job.id for job in chain[:-1])]
    bench.worker("io")
    bench.worker("gpu")
    bench.reconciler()
    ended = [bench.wait(job.id, "SUCCEEDED") for job in chain]
    assert ended[2].done == ended[2].total == 12
    with db.reading(bench.settings) as session:
        prompts = queries.find_dataset(session, "mine")
        answers = session.get_one(Dataset, chain[1].request["dataset_id"])
        checkpoint = queries.find_checkpoint(session, "tiny@heads")
        evaluation = session.get_one(Evaluation, chain[3].request["evaluation_id"])
    assert (prompts.state, prompts.rows, prompts.bad_rows, prompts.report["bad"][0]["line"]) == ("ready", 12, 1, 13)
    assert (answers.state, answers.rows, answers.source_id, answers.base_id) == ("ready", 12, prompts.id, base.id)
    assert evaluation.state == "ready" and evaluation.result["identical_to_plain"]
    check_checkpoint(checkpoint, tmp_path)


def check_checkpoint(checkpoint: Checkpoint, tmp_path: Path) -> None:
    folder = Path(checkpoint.path)
    assert (checkpoint.state, checkpoint.attempt, checkpoint.step) == ("ready", 1, 12)
    assert checkpoint.sha256 == hashlib.sha256((folder / "model.safetensors").read_bytes()).hexdigest()
    assert checkpoint.size_bytes == sum(p.stat().st_size for p in folder.iterdir())
    assert checkpoint.figures["mean_accepted_length"] >= 1
    zip_path = archive.write_zip(folder, tmp_path / "heads.zip")
    with zipfile.ZipFile(zip_path) as zipped:
        assert {"model.safetensors", "config.json", "README.md", "SHA256SUMS"} <= set(zipped.namelist())

"""The job that imports a suite: from a file, and from a hub that does not answer."""

import gzip
import json
from pathlib import Path

import pytest

from cli.commands.data import import_file
from speculoos.errors import BadInput, Unavailable
from speculoos.settings import Settings
from tracking import db, jobs
from tracking.tables import Base, Dataset
from workers.child.context import JobContext
from workers.child.work import import_prompts
from workers.jobs.request import command_for
from workers.jobs.requests import Evaluate, ImportPrompts, PlanRequest
from workers.jobs.submit import submit
from workers.timing import JobTiming


def run(home: Settings, request: ImportPrompts) -> Dataset:
    """Submit, claim and run the job, as a worker would; return the dataset's row."""
    job = submit(request, settings=home)
    with db.writing(home) as session:
        attempt = jobs.claim(session, job.id, "test", 60)
    stored = ImportPrompts(**job.request)
    import_prompts.run(stored, JobContext(home, job.id, attempt, JobTiming()))
    with db.reading(home) as session:
        return session.get_one(Dataset, stored.dataset_id)


def test_a_suite_is_a_data_set_with_its_name(home: Settings, tmp_path: Path) -> None:
    path = tmp_path / "HumanEval.jsonl.gz"
    path.write_bytes(gzip.compress(json.dumps({"task_id": "HumanEval/0", "prompt": "def f():"}).encode()))
    data = run(home, ImportPrompts(path=str(path), original_name=path.name, suite="humaneval"))
    assert (data.name, data.state, data.rows, data.config["suite"]) == ("humaneval", "ready", 1, "humaneval")
    assert data.report["categories"] == {"code": 1}


def test_without_a_file_the_hub_is_asked_and_says_what_else_helps(home: Settings) -> None:
    """HF_HUB_OFFLINE is set in tests."""
    with pytest.raises(Unavailable, match=r"GSM8K could not be downloaded\..*not used while HF_HUB_OFFLINE") as error:
        run(home, ImportPrompts(path="", suite="gsm8k"))
    assert "Use its file instead: test.jsonl" in error.value.hint
    with pytest.raises(BadInput, match="Spec-Bench cannot be downloaded from the Hub"):
        run(home, ImportPrompts(path="", suite="spec_bench"))


def test_the_command_names_the_suite() -> None:
    request = ImportPrompts(path="/x/question.jsonl", original_name="question.jsonl", suite="mt_bench")
    assert command_for(request) == "speculoos data import question.jsonl --suite mt_bench"
    assert command_for(ImportPrompts(path="", suite="gsm8k")) == "speculoos data import --suite gsm8k"


def test_a_command_that_names_no_suite_or_no_file_is_refused(home: Settings) -> None:
    with pytest.raises(BadInput, match="there is no such suite; known are mt_bench"):
        import_file(suite="poems", limit=None)
    with pytest.raises(BadInput, match="Name the file to import"):
        import_file(suite="", limit=None)


def test_a_suite_of_the_hub_names_no_file_to_deliver() -> None:
    assert ImportPrompts(path="", suite="gsm8k").paths() == [], "an empty path would be the working folder"
    assert ImportPrompts(path="/x.jsonl", suite="gsm8k").paths() == ["/x.jsonl"]


def test_the_inputs_of_plans_and_of_servers_are_told_apart() -> None:
    assert PlanRequest(base_id="").inputs() == [(Base, "")], "missing, and said to be"
    assert Evaluate(endpoint="x").inputs() == []

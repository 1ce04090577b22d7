"""A job imports a dataset of the hub: it fetches the files, reads one after the other and removes them. The token is
stored nowhere."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from corpus.shards import read_rows
from speculoos.settings import load
from tests.models.test_fetch import hub  # noqa: F401
from tests.tools.databases import Databases
from tests.tools.homes import add_base
from tests.workers.conftest import Bench
from tracking import db
from tracking.tables import Dataset, Job
from workers.jobs.requests import ImportAnswered, ImportPrompts
from workers.jobs.submit import submit

pytestmark = pytest.mark.integration

TOKEN = "hf_right"


@pytest.fixture(scope="module")
def connected(
    broker: str,
    hub: str,  # noqa: F811
    databases: Databases,
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[Bench]:
    """A worker that reaches the tests' hub and has the token of a private dataset."""
    folder = tmp_path_factory.mktemp("connected")
    variables = {"SPECULOOS_HOME": str(folder / "home"), "DATABASE_URL": databases.url()}
    settings = replace(load(variables), redis_url=f"{broker}?virtual_host=5")
    databases.migrate(settings)
    environment = {"HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder / "hf"), "HF_TOKEN": TOKEN}
    bench = Bench(settings, **environment)
    bench.worker()
    yield bench
    bench.end()


def imported(bench: Bench, request: ImportPrompts | ImportAnswered, state: str = "SUCCEEDED") -> tuple[Job, Dataset]:
    job = submit(request, settings=bench.settings)
    ended = bench.wait(job.id, state)
    with db.reading(bench.settings) as session:
        return ended, session.get_one(Dataset, job.request["dataset_id"])


def prompts(location: str, **fields: object) -> ImportPrompts:
    return ImportPrompts(path=f"hub:{location}", original_name=location, **fields)


def folders(bench: Bench) -> set[str]:
    return {path.name for path in bench.settings.home.glob("datasets/*")}


def test_the_shards_of_a_set_become_one_and_leave_nothing_behind(connected: Bench) -> None:
    before = folders(connected)
    _, data = imported(connected, prompts("tests/chats"))
    rows = list(read_rows(data.path))
    assert [row["messages"][0]["content"] for row in rows] == [f"ask {n}" for n in range(1, 6)]
    assert [row["id"] for row in rows] == [f"line-{n:07d}" for n in range(1, 6)], "counted on from file to file"
    assert (data.name, data.rows, data.report["hub"]["files"]) == ("chats", 5, 2)
    assert data.report["hub"]["repo"] == "tests/chats" and data.report["hub"]["revision"].startswith("0123")
    assert folders(connected) == {*before, data.id}


def test_as_many_rows_as_are_wanted_and_no_further_file(connected: Bench) -> None:
    job, data = imported(connected, prompts("tests/chats", limit=2))
    assert data.rows == 2
    log = connected.output(job.id)
    assert "train-00000-of-00002.jsonl" in log and "train-00001" not in log


def test_a_private_set_of_answers_trains_at_once_and_its_token_is_nowhere(connected: Bench, tiny_base: Path) -> None:
    base_id = add_base(connected.settings, tiny_base)
    request = ImportAnswered(path="hub:tests/private", original_name="tests/private", base_id=base_id)
    job, data = imported(connected, request)
    assert (data.kind, data.rows, data.base_id) == ("conversations", 1, base_id) and data.report["answer_tokens"] > 0
    with db.reading(connected.settings) as session:
        stored = [(row.request, row.result, row.error) for row in session.query(Job)]
        stored += [(row.config, row.report) for row in session.query(Dataset)]
    assert TOKEN not in json.dumps(stored, default=str)
    files = [path for path in connected.settings.home.rglob("*") if path.is_file()]
    assert len(files) > 5 and not [path for path in files if TOKEN.encode() in path.read_bytes()]


def test_a_set_that_cannot_be_read_fails_in_a_sentence(connected: Bench) -> None:
    before = folders(connected)
    job, data = imported(connected, prompts("tests/scripts"), "FAILED")
    assert "never run" in job.error and data.state == "failed"
    job, data = imported(connected, prompts("tests/nowhere"), "FAILED")
    assert "no dataset 'tests/nowhere'" in job.error
    assert folders(connected) == before


def test_a_suite_is_fetched_at_one_revision_and_one_that_moved_is_reported(connected: Bench) -> None:
    _, data = imported(connected, ImportPrompts(path="", suite="mt_bench"))
    (row,) = read_rows(data.path)
    assert [turn["content"] for turn in row["messages"]] == ["Write a letter.", "Now shorter."]
    assert data.report["hub"]["revision"].startswith("0123") and data.report["hub"]["file"] == "raw/question.jsonl"
    job, _ = imported(connected, ImportPrompts(path="", suite="gsm8k"), "FAILED")
    assert "has no file main/test-00000-of-00001.parquet" in job.error

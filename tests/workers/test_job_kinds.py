"""One class defines a job kind: its command, form, documentation, checks, estimate, run and clone."""

import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path

import gradio as gr
import pytest

from app.views.job_forms import own_kind_form
from corpus.conversations import GenerateOptions
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tests.tools import zygote
from tracking import db
from tracking.tables import Job
from workers.jobs.request import command_for
from workers.jobs.requests import REQUESTS, GenerateData, from_json
from workers.jobs.submit import clone

pytestmark = pytest.mark.integration


def run(module: str, *arguments: str, status: int = 0, **environment: str) -> str:
    """The output of a new process that runs this module."""
    with tempfile.NamedTemporaryFile() as out:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(zygote.CLONE), **environment}
        process = zygote.begin(module, arguments, environment, out.fileno())
        assert process.wait(180) == status, Path(out.name).read_text()
        return Path(out.name).read_text()


@pytest.fixture
def toy() -> Iterator[type]:
    from tests.workers.toy_kind import CountWords

    REQUESTS["count_words"] = CountWords
    yield CountWords
    del REQUESTS["count_words"]


def test_a_new_kind_has_a_command_with_help(home: Settings, tmp_path: Path) -> None:
    """Workers run kinds that were registered like this in test_drills."""
    (tmp_path / "text").write_text("one two Two")
    variables = {"SPECULOOS_WORK_MODULES": "tests.workers.toy_kind", "SPECULOOS_HOME": str(home.home)}
    text = run("tests.tools.cli_docs", **variables)
    assert "## speculoos count-words\nCount the words of a text file." in text
    assert "| `--least` | `1` | Letters of a word at the least. |" in text and "| `--path` | required |" in text
    arguments = ("count-words", "--path", str(tmp_path / "text"), "--least", "2", "--unique", "--estimate", "--json")
    estimate = json.loads(run("cli.main", *arguments, **variables).splitlines()[-1])
    assert estimate["kind"] == "count_words" and estimate["seconds"] is not None


def test_a_new_kind_has_a_form_that_submits_and_can_be_cloned(toy: type, home: Settings, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one two")
    with gr.Blocks():
        form = own_kind_form(home, toy)
    controls = {name: (control.label, control.value) for name, control in form.fields.items()}
    assert controls["least"] == ("Shortest word", 1) and controls["unique"] == ("Each word once", False)
    assert "expected 1 to 50" in form.review_now("", str(text), 99, "keep", False)
    assert "there is no file" in form.review_now("", "/nowhere", 1, "keep", False)
    review = form.review_now("", str(text), 3, "lower", True)
    assert f"speculoos count-words --path {text} --least 3 --case lower --unique" in review
    _, target = form.submit("", str(text), 3, "lower", True)
    with db.reading(home) as session:
        job = session.get_one(Job, target.partition("id=")[2])
        request = from_json(job.kind, job.request)
    assert (job.name, job.queue, job.work) == ("Count text", "io", 7.0) and job.estimated_seconds
    assert request == toy(str(text), 3, "lower", True)
    again = clone(job.id, settings=home)
    assert again.id != job.id and again.request == job.request
    with pytest.raises(BadInput, match="count_words: unknown field 'x'"):
        from_json("count_words", {**job.request, "x": 1})


def test_a_stored_request_keeps_numbers_outside_of_the_bounds_and_a_new_one_may_not_have_them() -> None:
    many = {"models": [{"base_id": "b"}], "limit": 10**6}
    with pytest.raises(BadInput, match="expected 1 to 100000, got 1000000"):
        REQUESTS["matrix"](**many)
    assert from_json("matrix", many).limit == 10**6
    with pytest.raises(BadInput, match="expected a whole number, got 'x'"):
        from_json("matrix", {**many, "limit": "x"})


def test_a_module_that_cannot_be_imported_is_one_sentence() -> None:
    output = run("cli.main", "jobs", "list", status=2, SPECULOOS_WORK_MODULES="no_such_kind")
    assert output.startswith("SPECULOOS_WORK_MODULES: no_such_kind cannot be imported") and "Traceback" not in output


def test_the_command_of_a_kind_omits_defaults(toy: type) -> None:
    assert command_for(toy("/x")) == "speculoos count-words --path /x"


def test_an_option_added_to_a_training_is_in_form_command_and_json() -> None:
    control, stored, *help_text = run("tests.workers.train_option").splitlines()
    assert control == "Dropout 0.1 Part of the units that a step leaves out."
    assert stored == "{'dropout': 0.5} speculoos train medusa --model b --data d --set dropout=0.5 0.5"
    assert any("dropout=0.1" in line for line in help_text)


def test_every_option_of_data_generation_reaches_the_generation() -> None:
    """An option without a field of the same name in GenerateOptions would be ignored by the job."""
    used_elsewhere = {"endpoint", "endpoint_model", "hidden_states_store", "shard_rows"}
    assert set(GenerateData.options()) - used_elsewhere <= {field.name for field in fields(GenerateOptions)}

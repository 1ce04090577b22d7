"""A job kind is one class: its command, form, documentation, checks, estimate, run and clone come from it."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import gradio as gr
import pytest

from app.views.job_forms import JobForm
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import db
from tracking.tables import Job
from workers.jobs.command_line import command_for
from workers.jobs.requests import REQUESTS, from_json
from workers.jobs.submit import clone

TRAIN_OPTION = """
import dataclasses
import models.methods as methods
from models.methods.settings import setting

class Config(methods.METHODS["medusa"].config):
    dropout: float = setting(0.1, "Part of the units that a step leaves out.", 0, 1, label="Dropout")

methods._known["medusa"] = dataclasses.replace(methods.METHODS["medusa"], config=Config)

import gradio as gr
from app.forms import OWN_SETTINGS, recipe_values, train_request
from app.views.train_settings import SettingControls
from cli.main import main
from workers.jobs.command_line import command_for
from workers.jobs.requests import from_json

with gr.Blocks():
    control = SettingControls().controls["dropout"]
print(control.label, control.value, control.info)
request = train_request("b", "d", "medusa", OWN_SETTINGS, recipe_values("medusa", OWN_SETTINGS) | {"dropout": 0.5})
print(request.to_json()["settings"], command_for(request), from_json("train", request.to_json()).config.dropout)
main(["train", "medusa", "--help"])
"""


def run(*words: str, **environment: str) -> str:
    made = subprocess.run(
        [sys.executable, *words], capture_output=True, text=True, timeout=120, env={**os.environ, **environment}
    )
    assert made.returncode == 0, made.stdout + made.stderr
    return made.stdout


@pytest.fixture
def toy() -> Iterator[type]:
    from tests.workers.toy_kind import CountWords

    REQUESTS["count_words"] = CountWords
    yield CountWords
    del REQUESTS["count_words"]


def test_a_new_kind_has_a_command_with_help_and_runs(home: Settings, tmp_path: Path) -> None:
    (tmp_path / "text").write_text("one two Two")
    own = {"SPECULOOS_WORK_MODULES": "tests.workers.toy_kind", "SPECULOOS_HOME": str(home.home)}
    text = run("-m", "tests.tools.cli_docs", **own)
    assert "## speculoos count-words\nCount the words of a text file." in text
    assert "| `--least` | `1` | Letters of a word at the least. |" in text and "| `--path` | required |" in text
    words = ("-m", "cli.main", "count-words", "--path", str(tmp_path / "text"), "--least", "2")
    result = json.loads(run(*words, "--case", "lower", "--unique", "--json", **own).splitlines()[-1])
    assert (result["job_state"], result["words"]) == ("SUCCEEDED", 2)
    estimate = json.loads(run(*words, "--estimate", "--json", **own).splitlines()[-1])
    assert estimate["kind"] == "count_words" and estimate["seconds"] is not None


def test_a_new_kind_has_a_form_that_submits_and_can_be_cloned(toy: type, home: Settings, tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text("one two")
    with gr.Blocks():
        form = JobForm(home, toy)
    shown = {name: (control.label, control.value) for name, control in form.fields.items()}
    assert shown["least"] == ("Shortest word", 1) and shown["unique"] == ("Each word once", False)
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
    words = [sys.executable, "-m", "cli.main", "jobs", "list"]
    environment = {**os.environ, "SPECULOOS_WORK_MODULES": "no_such_kind"}
    made = subprocess.run(words, capture_output=True, text=True, timeout=120, env=environment)
    assert made.returncode == 2 and "Traceback" not in made.stderr
    assert made.stderr.startswith("SPECULOOS_WORK_MODULES: no_such_kind cannot be imported")


def test_the_command_of_a_kind_omits_defaults(toy: type) -> None:
    assert command_for(toy("/x")) == "speculoos count-words --path /x"


def test_an_option_added_to_a_training_is_in_form_command_and_json() -> None:
    control, stored, *help_text = run("-c", TRAIN_OPTION).splitlines()
    assert control == "Dropout 0.1 Part of the units that a step leaves out."
    assert stored == "{'dropout': 0.5} speculoos train medusa --model b --data d --set dropout=0.5 0.5"
    assert any("dropout=0.1" in line for line in help_text)

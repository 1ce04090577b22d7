"""A stranger's method, one file and one line of registration, goes the whole way (tests/models/methods/toy.py)."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from speculoos.settings import Settings
from tests.tools.homes import add_answers, add_base

pytestmark = pytest.mark.integration

FORM = """
import gradio as gr
from app import forms
from app.views.train_settings import SettingControls
from app.pages.train import method_note
with gr.Blocks():
    controls = SettingControls()
values = forms.recipe_values("bigram", forms.OWN_SETTINGS) | {"bigram_rank": 8}
filled = controls.named(tuple(controls.fill(values)), "bigram")
request = forms.train_request("b", "d", "bigram", forms.OWN_SETTINGS, filled)
print(list(controls.groups), "bigram_rank" in controls.controls, request.settings, method_note("bigram"))
"""
COMMANDS = """
import json, sys
from cli.main import main
for words in json.load(sys.stdin):
    assert main([*words, "--json"]) == 0
"""


def test_it_trains_as_a_job_is_in_the_form_and_is_measured(
    home: Settings, tiny_base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In one process, for methods are registered when it begins; the job has another."""
    monkeypatch.setenv("SPECULOOS_METHODS", "tests.models.methods.toy")
    add_answers(home, add_base(home, tiny_base))
    words = ["train", "bigram", "--model", "tiny", "--data", "answers", "--name", "table", "--set", "bigram_rank=8"]
    words += ["--set", "max_steps=3", "--set", "batch_tokens=256", "--set", "max_length=64"]
    measure = ["evaluate", "--model", "tiny@table", "--limit", "1", "--max-tokens", "8"]
    command = [sys.executable, "-c", COMMANDS + FORM]
    asked = json.dumps([words, measure, ["models", "list"]])
    made = subprocess.run(command, input=asked, capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stdout + made.stderr
    trained, found, models, form = made.stdout.strip().splitlines()
    trained, found = json.loads(trained), json.loads(found)
    assert (trained["checkpoint"], trained["step"], trained["job_state"]) == ("tiny@table", 3, "SUCCEEDED")
    assert found["identical_to_plain"] and found["mean_accepted_length"] >= 1
    listed = [c["method"] for m in json.loads(models) for c in m["checkpoints"] if c["name"] == "table"]
    assert listed == ["bigram"]
    assert form.startswith(
        "['medusa', 'eagle', 'eagle3', 'draft', 'bigram'] True {'bigram_rank': 8} <p class=\"sp-lead\">A table of"
    )

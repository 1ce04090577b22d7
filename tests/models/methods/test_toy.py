"""A stranger's method, one file and one line of registration, goes the whole way (tests/models/methods/toy.py)."""

import json
import sys
from pathlib import Path

import pytest

from cli.launch.services import Services, programs_for
from models.methods import METHODS
from speculoos.settings import Settings
from tests.tools.homes import add_answers, add_base
from tests.tools.zygote import begin

pytestmark = pytest.mark.integration


def whole_way(commands):
    """In a process of its own, for methods are registered when it begins: the commands, then the form."""
    import gradio as gr

    from app import forms
    from app.pages.train import method_note
    from app.views.train_settings import SettingControls
    from cli.main import main

    for words in commands:
        assert main([*words, "--json"]) == 0
    with gr.Blocks():
        controls = SettingControls()
    values = forms.recipe_values("bigram", forms.OWN_SETTINGS) | {"bigram_rank": 8}
    filled = controls.named(dict(zip(controls.controls, controls.fill(values), strict=True)), "bigram")
    request = forms.train_request("b", "d", "bigram", forms.OWN_SETTINGS, filled)
    print(list(controls.groups), "bigram_rank" in controls.controls, request.settings, method_note("bigram"))


@pytest.mark.usefixtures("forked_services")
def test_it_trains_as_a_job_is_in_the_form_and_is_measured(
    home: Settings, tiny_base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The commands' process uses the services of this one."""
    monkeypatch.setenv("SPECULOOS_METHODS", "tests.models.methods.toy")
    add_answers(home, add_base(home, tiny_base))
    words = ["train", "bigram", "--model", "tiny", "--data", "answers", "--name", "table", "--set", "bigram_rank=8"]
    words += ["--set", "max_steps=3", "--set", "batch_tokens=256", "--set", "max_length=64", "--wait"]
    measure = ["evaluate", "--model", "tiny@table", "--limit", "1", "--max-tokens", "8"]
    asked = json.dumps([words, measure, ["models", "list"]])
    said = tmp_path / "said"
    with Services(home, programs_for("gpu")), said.open("wb") as out:
        made = begin("tests.models.methods.test_toy", [asked], out=out.fileno())
        assert made.wait(240) == 0, said.read_text()
    trained, found, models, form = [line for line in said.read_text().splitlines() if line.startswith(("{", "["))]
    trained, found = json.loads(trained), json.loads(found)
    assert (trained["checkpoint"], trained["step"], trained["job_state"]) == ("tiny@table", 3, "SUCCEEDED")
    assert found["identical_to_plain"] and found["mean_accepted_length"] >= 1
    listed = [c["method"] for m in json.loads(models) for c in m["checkpoints"] if c["name"] == "table"]
    assert listed == ["bigram"]
    note = '<p class="sp-lead">A table of'
    assert form.startswith(f"{[*METHODS, 'bigram']} True {{'bigram_rank': 8}} {note}")


if __name__ == "__main__":
    whole_way(json.loads(sys.argv[1]))

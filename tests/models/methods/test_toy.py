"""A third-party method of one file and one line of registration works everywhere (tests/models/methods/toy.py)."""

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


def run_commands_and_form(commands):
    """Run the commands, then fill the form, in a separate process, because methods are registered at its start."""
    import gradio as gr

    from app import forms
    from app.pages.train import method_note
    from app.views.train_settings import SettingControls
    from cli.main import main

    for command in commands:
        assert main([*command, "--json"]) == 0
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
    train = ["train", "bigram", "--model", "tiny", "--data", "answers", "--name", "table", "--set", "bigram_rank=8"]
    train += ["--set", "max_steps=3", "--set", "batch_tokens=256", "--set", "max_length=64", "--wait"]
    evaluate = ["evaluate", "--model", "tiny@table", "--limit", "1", "--max-tokens", "8"]
    commands = json.dumps([train, evaluate, ["models", "list"]])
    output = tmp_path / "said"
    with Services(home, programs_for("gpu")), output.open("wb") as out:
        process = begin("tests.models.methods.test_toy", [commands], out=out.fileno())
        assert process.wait(240) == 0, output.read_text()
    trained, evaluation, models, form = [
        line for line in output.read_text().splitlines() if line.startswith(("{", "["))
    ]
    trained, evaluation = json.loads(trained), json.loads(evaluation)
    assert (trained["checkpoint"], trained["step"], trained["job_state"]) == ("tiny@table", 3, "SUCCEEDED")
    assert evaluation["identical_to_plain"] and evaluation["mean_accepted_length"] >= 1
    methods = [c["method"] for m in json.loads(models) for c in m["checkpoints"] if c["name"] == "table"]
    assert methods == ["bigram"]
    names = [*METHODS, "bigram"]
    assert form.startswith(f"{names} True {{'bigram_rank': 8}} <p class=\"sp-lead\">A table of")


if __name__ == "__main__":
    run_commands_and_form(json.loads(sys.argv[1]))

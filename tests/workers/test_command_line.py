"""The commands that forms show are parsed back to the same requests."""

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.methods.trees import parse
from speculoos.errors import BadInput
from workers.jobs.arguments import parse_numbers, parse_settings
from workers.jobs.request import command_for
from workers.jobs.requests import (
    Evaluate,
    Export,
    FetchModel,
    GenerateData,
    ImportAnswered,
    ImportDraft,
    ImportPrompts,
    Matrix,
    PlanRequest,
    ReplayRequest,
    Train,
    Tune,
)

NAMES = {"b1": "starter", "d1": "my prompts", "d2": "answers", "c1": "my-heads"}
PAIR = {"base_id": "b1", "checkpoint_id": "c1"}


def parsed(command: str) -> tuple[list[str], dict[str, Any]]:
    """The command's names and the values that typer would pass to its function."""
    import typer.main

    from cli.main import app

    arguments = shlex.split(command)
    assert arguments[0] == "speculoos"
    node, context, names = typer.main.get_command(app), None, []
    rest = arguments[1:]
    while hasattr(node, "commands"):
        names.append(rest[0])
        node, rest = node.commands[rest[0]], rest[1:]
    context = node.make_context(names[-1], list(rest))
    return names, context.params


def test_generating_data_reads_back() -> None:
    request = GenerateData(
        source_id="d1", base_id="b1", limit=10, system_prompt="Be brief; it's fine.", temperature=0.7
    )
    names, values = parsed(command_for(request, NAMES, "answers"))
    assert names == ["data", "generate"]
    assert values["prompts"] == "my prompts" and values["model"] == "starter" and values["name"] == "answers"
    for key in ("limit", "system_prompt", "max_tokens", "temperature", "top_p", "batch_size", "seed", "max_minutes"):
        assert values[key] == getattr(request, key), key
    assert values["endpoint"] == ""


def test_generating_through_an_endpoint_names_it_and_no_model() -> None:
    request = GenerateData(source_id="d1", base_id="", endpoint="big", endpoint_model="m", max_minutes=2.5)
    _, values = parsed(command_for(request, NAMES))
    assert (values["endpoint"], values["endpoint_model"], values["model"]) == ("big", "m", "")
    assert values["max_minutes"] == 2.5


def test_options_of_answers_read_back() -> None:
    options = {"temperatures": (0.0, 0.7), "api": "completions", "replace_system": True, "drop_cut": True}
    request = GenerateData(source_id="d1", base_id="b1", endpoint="big", samples=2, **options)
    _, values = parsed(command_for(request, NAMES))
    assert (values["endpoint"], values["model"], values["samples"]) == ("big", "starter", 2)
    assert parse_numbers("--temperatures", values["temperatures"]) == request.temperatures
    assert all(values[key] == options[key] for key in ("api", "replace_system", "drop_cut"))


def test_training_reads_back_with_every_setting() -> None:
    settings = {"lr": 1e-4, "aux_layers": [1, 14], "medusa_tie_lm_head": True, "schedule": "cosine", "draft_path": "1"}
    request = Train(method="medusa", base_id="b1", dataset_id="d2", settings=settings, recipe="quickstart")
    names, values = parsed(command_for(request, NAMES, "my-heads"))
    assert names == ["train"]
    assert (values["what"], values["recipe"], values["name"]) == ("medusa", "quickstart", "my-heads")
    assert parse_settings(values["settings"]) == settings


def test_several_sets_and_the_measurement_read_back() -> None:
    request = Train(method="medusa", base_id="b1", dataset_id="d2", more_dataset_ids=["d1"])
    _, values = parsed(command_for(request, NAMES, "both", ("--measure",)))
    assert (values["data"], values["measure"], values["name"]) == (["answers", "my prompts"], True, "both")
    _, alone = parsed(command_for(request.changed(settings={"batch_tokens": None}), NAMES))
    assert not alone["measure"] and parse_settings(alone["settings"]) == {"batch_tokens": None}


def test_tuning_reads_back() -> None:
    names, values = parsed(command_for(Tune(**PAIR, dataset_id="d1", limit=3, dtype="bfloat16", keep=False), NAMES))
    assert (names, values["model"], values["questions"]) == (["tune"], "starter@my-heads", "my prompts")
    assert (values["limit"], values["max_tokens"], values["dtype"], values["keep"]) == (3, 48, "bfloat16", False)
    assert parsed(command_for(Tune(base_id="b1", checkpoint_id="c1"), NAMES))[1]["keep"] is True


def test_evaluating_reads_back() -> None:
    request = Evaluate(base_id="b1", checkpoint_id="c1", dataset_id="d1", limit=7, drafting={"depth": 3})
    names, values = parsed(command_for(request, NAMES))
    assert names == ["evaluate"]
    assert (values["model"], values["checkpoint"], values["questions"]) == ("starter", "my-heads", "my prompts")
    assert (values["limit"], values["max_tokens"], parse_settings(values["draft"])) == (7, 128, {"depth": 3})
    _, without = parsed(command_for(request.changed(checkpoint_id="", dataset_id=""), NAMES))
    assert without["checkpoint"] == without["questions"] == ""


def test_evaluating_otherwise_reads_back() -> None:
    request = Evaluate(base_id="b1", temperature=0.7, top_p=0.9, seed=3, dtype="bfloat16", endpoint="team")
    _, values = parsed(command_for(request.changed(endpoint_model="big", plain_model="small"), NAMES))
    for key in ("temperature", "top_p", "seed", "dtype", "endpoint"):
        assert values[key] == getattr(request, key), key
    assert (values["endpoint_model"], values["plain_model"]) == ("big", "small")
    loaded = Evaluate(endpoint="team", plain_endpoint="other", concurrency="16, 4,1")
    assert loaded.concurrency == [1, 4, 16]
    _, values = parsed(command_for(loaded, NAMES))
    assert (values["plain_endpoint"], values["concurrency"]) == ("other", "1,4,16")
    for wrong in ({"concurrency": "1,4"}, {"plain_endpoint": "other"}):
        with pytest.raises(BadInput, match="for servers"):
            Evaluate(base_id="b1", **wrong).check_options()
    with pytest.raises(BadInput, match="Concurrency: expected comma-separated whole numbers from 1 to 256"):
        Evaluate(endpoint="team", concurrency="0")


def test_a_matrix_reads_back() -> None:
    drafting = [{}, {"tree": [[0, 0]]}, {"depth": 3, "top_k": 2}, {"tree": [[0], [1], [0, 1]]}]
    models = [{"base_id": "b1", "checkpoint_id": ""}, {"base_id": "b1", "checkpoint_id": "c1"}]
    request = Matrix(models=models, suites=["", "d1"], temperatures=[0.0, 1.0], drafting=drafting, limit=5, seed=2)
    names, values = parsed(command_for(request, NAMES))
    assert names == ["matrix"] and values["model"] == ["starter", "starter@my-heads"]
    assert values["suite"] == ["built_in", "my prompts"] and values["temperature"] == [0.0, 1.0]
    assert [parse(tree) for tree in values["tree"]] == drafting
    assert (values["limit"], values["max_tokens"], values["seed"]) == (5, 128, 2) and not values["top_p"]


def test_importing_and_fetching_read_back() -> None:
    names, values = parsed(command_for(ImportPrompts(path="/tmp/x", original_name="my file.jsonl", limit=3), {}, "p"))
    assert (names, values["file"], values["limit"]) == (["data", "import"], "my file.jsonl", 3)
    answered = ImportAnswered(path="/tmp/x", base_id="b1", original_name="my file.jsonl")
    names, values = parsed(command_for(answered, NAMES, "p"))
    assert (names, values["answered"], values["model"]) == (["data", "import"], True, "starter")
    names, values = parsed(command_for(FetchModel(source="hub", location="org/name"), {}))
    assert (names, values["location"], values["source"]) == (["models", "add"], "org/name", "hub")


def test_ids_without_a_name_are_shown_as_they_are() -> None:
    _, values = parsed(command_for(Train(method="eagle", base_id="b9", dataset_id="d9")))
    assert (values["model"], values["data"]) == ("b9", ["d9"])


@given(
    st.dictionaries(
        st.from_regex(r"[a-z_]{1,12}", fullmatch=True),
        st.one_of(
            st.integers(), st.booleans(), st.floats(allow_nan=False, allow_infinity=False), st.lists(st.integers())
        ),
        max_size=4,
    )
)
def test_settings_survive_the_command_line(settings: dict[str, Any]) -> None:
    command = command_for(Train(method="medusa", base_id="b", dataset_id="d", settings=settings))
    arguments = shlex.split(command)
    pairs = [arguments[i + 1] for i, argument in enumerate(arguments) if argument == "--set"]
    assert json.dumps(parse_settings(pairs), sort_keys=True) == json.dumps(settings, sort_keys=True)


@given(st.text(max_size=20))
def test_texts_stay_texts(text: str) -> None:
    arguments = shlex.split(command_for(Train(method="m", base_id="b", dataset_id="d", settings={"k": text})))
    assert parse_settings(arguments[arguments.index("--set") + 1 :][:1])["k"].strip() == text.strip()


@pytest.mark.parametrize("pair", ["lr", "=3", " =x"])
def test_a_setting_without_key_or_value_is_named(pair: str) -> None:
    with pytest.raises(BadInput, match="expected key=value"):
        parse_settings([pair])


def test_a_training_of_an_experiment_reads_back() -> None:
    request = Train(method="medusa", base_id="b1", dataset_id="d2")
    names, values = parsed(command_for(request, NAMES, "mine", ["--experiment", "rates; all"]))
    assert names == ["train"] and values["name"] == "mine" and values["experiment"] == "rates; all"


DASHED = {row_id: f"-{name}" for row_id, name in NAMES.items()} | {"b1": "--help"}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (Tune(**PAIR, dataset_id="d1"), {"model": "--help@-my-heads", "questions": "-my prompts"}),
        (PlanRequest(**PAIR, dataset_id="d1"), {"model": "--help@-my-heads", "questions": "-my prompts"}),
        (ReplayRequest(**PAIR, dataset_id="d2"), {"file": Path("-answers"), "draft": "--help@-my-heads"}),
        (Export(checkpoint_id="c1", format="vllm-eagle3"), {"checkpoint": "-my-heads", "form": "vllm-eagle3"}),
        (
            Train(method="medusa", base_id="b1", dataset_id="d2", more_dataset_ids=["d1"]),
            {"model": "--help", "data": ["-answers", "-my prompts"]},
        ),
        (Evaluate(**PAIR, dataset_id="d1"), {"model": "--help", "checkpoint": "-my-heads", "questions": "-my prompts"}),
        (Matrix(models=[PAIR], suites=["d1"]), {"model": ["--help@-my-heads"]}),
        (GenerateData("d1", "b1", system_prompt="-- be brief"), {"prompts": "-my prompts", "model": "--help"}),
        (ImportAnswered("/x", base_id="b1", original_name="-chats.jsonl"), {"file": "-chats.jsonl", "model": "--help"}),
        (ImportPrompts("/x", original_name="-p.jsonl"), {"file": "-p.jsonl"}),
        (FetchModel(source="folder", location="-model"), {"location": "-model"}),
        (ImportDraft(source="folder", location="-draft", base_id="b1"), {"location": "-draft", "model": "--help"}),
    ],
)
def test_names_that_begin_with_a_dash_read_back(request_: Any, expected: dict[str, Any]) -> None:
    name_arguments = (
        () if isinstance(request_, Tune | PlanRequest | ReplayRequest | Export | Evaluate | Matrix) else ("-out",)
    )
    _, values = parsed(command_for(request_, DASHED, *name_arguments))
    for key, value in (expected | ({"name": "-out"} if name_arguments else {})).items():
        assert values[key] == value, key

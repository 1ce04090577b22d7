"""The command a form shows is the command the program takes: every one is parsed back to the same request."""

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from speculoos.errors import BadInput
from workers.ask.command_line import command_for, parse_settings
from workers.ask.requests import Evaluate, FetchModel, GenerateData, ImportAnswered, ImportPrompts, Train

NAMES = {"b1": "starter", "d1": "my prompts", "d2": "answers", "c1": "my-heads"}


def parsed(command: str) -> tuple[list[str], dict[str, Any]]:
    """The command's name and the values its function would be called with, as typer reads them."""
    import typer.main

    from speculoos.cli import app

    words = shlex.split(command)
    assert words[0] == "speculoos"
    node, context, names = typer.main.get_command(app), None, []
    rest = words[1:]
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


def test_training_reads_back_with_every_setting() -> None:
    settings = {"lr": 1e-4, "aux_layers": [1, 14], "medusa_tie_lm_head": True, "schedule": "cosine", "draft_path": "1"}
    request = Train(method="medusa", base_id="b1", dataset_id="d2", settings=settings, recipe="quickstart")
    names, values = parsed(command_for(request, NAMES, "my-heads"))
    assert names == ["train"]
    assert (values["what"], values["recipe"], values["name"]) == ("medusa", "quickstart", "my-heads")
    assert parse_settings(values["settings"]) == settings


def test_evaluating_reads_back() -> None:
    request = Evaluate(base_id="b1", checkpoint_id="c1", dataset_id="d1", limit=7, drafting={"depth": 3})
    names, values = parsed(command_for(request, NAMES))
    assert names == ["evaluate"]
    assert (values["model"], values["checkpoint"], values["questions"]) == ("starter", "my-heads", "my prompts")
    assert (values["limit"], values["max_tokens"], parse_settings(values["draft"])) == (7, 128, {"depth": 3})
    _, without = parsed(command_for(replace(request, checkpoint_id="", dataset_id=""), NAMES))
    assert without["checkpoint"] == without["questions"] == ""


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
    assert (values["model"], values["data"]) == ("b9", "d9")


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
    words = shlex.split(command)
    pairs = [words[i + 1] for i, word in enumerate(words) if word == "--set"]
    assert json.dumps(parse_settings(pairs), sort_keys=True) == json.dumps(settings, sort_keys=True)


@given(st.text(max_size=20))
def test_texts_stay_texts(text: str) -> None:
    words = shlex.split(command_for(Train(method="m", base_id="b", dataset_id="d", settings={"k": text})))
    assert parse_settings(words[words.index("--set") + 1 :][:1])["k"].strip() == text.strip()


@pytest.mark.parametrize("pair", ["lr", "=3", " =x"])
def test_a_setting_without_key_or_value_is_named(pair: str) -> None:
    with pytest.raises(BadInput, match="expected key=value"):
        parse_settings([pair])

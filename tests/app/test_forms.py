"""Forms: field values as typed, and the requests made from them."""

from dataclasses import replace
from pathlib import Path

import pytest

from app import forms
from app.views import import_form
from app.views.import_form import PROMPTS_ONLY, ImportForm, require_rows
from models.methods import METHODS, SETTINGS
from speculoos.errors import BadInput, NotFound, SpeculoosError
from speculoos.settings import Settings
from workers.jobs.requests import GenerateData, Train

FIELDS = {"model": "base-1", "max_tokens": 64, "temperature": 0, "top_p": 1, "batch_size": 8, "seed": 0}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path, database_url="sqlite://", redis_url="redis://nowhere")


@pytest.mark.integration
def test_an_import_whose_every_row_would_be_left_out_is_refused(settings, tmp_path, monkeypatch):
    form = object.__new__(ImportForm)
    form.settings, submitted = settings, []
    # record submissions: there must be none
    monkeypatch.setattr(import_form, "submit", lambda *args, **kwargs: submitted.append(args))
    path = tmp_path / "other.jsonl"
    path.write_text('{"title": "a"}\n' * 7)
    message, target = form.submitted(None, str(path), "", "", PROMPTS_ONLY, None, "", None)
    assert "every row would be left out" in message and "line 1" in message and (target, submitted) == ("", [])
    require_rows(path, PROMPTS_ONLY, ("title",))  # accepted when the column is named


@pytest.mark.parametrize(
    ("typed", "expected"),
    [
        ("HuggingFaceTB/SmolLM2-135M-Instruct", "HuggingFaceTB/SmolLM2-135M-Instruct"),
        (" https://huggingface.co/owner/name/ ", "owner/name"),
        ("owner/name@v1.0", "owner/name@v1.0"),
    ],
)
def test_a_hub_id_is_taken_as_it_is_or_out_of_its_address(settings, typed, expected):
    assert forms.fetch_request(settings, "hub", typed).location == expected


@pytest.mark.parametrize(
    "typed", ["", "name", "a/b/c", "../etc/passwd", "owner/na me", "http://evil.example/a/b", "a/.."]
)
def test_what_is_no_hub_id_is_refused(settings, typed):
    with pytest.raises(BadInput, match="Hub id"):
        forms.fetch_request(settings, "hub", typed)


def test_a_folder_must_be_there(settings, tmp_path):
    assert forms.fetch_request(settings, "folder", str(tmp_path)).location == str(tmp_path)
    with pytest.raises(BadInput, match="there is no folder"):
        forms.fetch_request(settings, "folder", str(tmp_path / "no"))


def test_where_others_may_come_in_only_files_of_the_home_can_be_named(settings, tmp_path):
    shared = replace(settings, host="0.0.0.0", home=tmp_path / "home")
    (tmp_path / "secret.jsonl").write_text("{}")
    for typed in (str(tmp_path / "secret.jsonl"), "../secret.jsonl"):
        with pytest.raises(BadInput, match="only files under"):
            forms.import_request(shared, None, typed, None)


@pytest.mark.parametrize("typed", ["~nobody-of-this-name/x", "a\0b", "x" * 5000])
def test_an_invalid_path_is_refused(settings, typed):
    for make_request in (
        lambda: forms.import_request(settings, None, typed, None),
        lambda: forms.fetch_request(settings, "folder", typed),
    ):
        with pytest.raises(BadInput, match="is not a valid path"):
            make_request()


def test_an_upload_is_ours_to_remove_and_a_named_file_is_not(settings, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text("{}")
    assert forms.import_request(settings, str(file), "", "").delete_after
    named = forms.import_request(settings, None, str(file), "12")
    assert (named.delete_after, named.limit, named.original_name) == (False, 12, "prompts.jsonl")
    with pytest.raises(BadInput, match="Choose a file"):
        forms.import_request(settings, None, " ", "")


def test_empty_boxes_mean_the_defaults():
    request = forms.generate_request(
        "set-1", model="base-1", limit="", max_tokens=None, system_prompt=None, max_minutes=""
    )
    assert request == GenerateData("set-1", base_id="base-1")


def test_an_endpoint_is_told_from_a_base():
    request = forms.generate_request("set-1", **{**FIELDS, "model": "endpoint:mine", "endpoint_model": " big "})
    assert (request.base_id, request.endpoint, request.endpoint_model) == ("", "mine", "big")
    base = forms.generate_request("set-1", **FIELDS, endpoint_model="left over from another choice")
    assert base.endpoint_model == ""


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("limit", "many", "Max prompts: expected a whole number"),
        ("limit", "0", "Max prompts"),
        ("max_tokens", 2.5, "Max tokens per response"),
        ("temperature", -1, "Temperature: expected 0 to 5"),
        ("temperature", "nan", "Temperature"),
        ("top_p", 0, "Top-p"),
        ("temperatures", "0.1, warm", "Several temperatures: expected numbers"),
        ("temperatures", "0.1, 9", "Several temperatures: expected numbers from 0 to 5"),
        ("temperatures", "nan", "Several temperatures"),
        ("model", "", "Model or endpoint"),
    ],
)
def test_a_wrong_field_is_named_as_on_the_page(field, value, message):
    with pytest.raises(BadInput, match=message):
        forms.generate_request("set-1", **{**FIELDS, field: value})


def test_a_generate_form_round_trips():
    request = GenerateData("set-1", endpoint="mine", endpoint_model="big", limit=5, temperature=0.7, max_minutes=2.0)
    assert forms.generate_request("set-1", **forms.generate_form(request)) == request
    more = {"temperatures": (0.0, 0.7), "replace_system": True, "drop_cut": True, "api": "completions"}
    served = GenerateData("set-1", endpoint="mine", base_id="base-1", samples=2, **more)
    assert forms.generate_request("set-1", **forms.generate_form(served)) == served
    assert forms.generate_request("set-1", **FIELDS, served="base-2", api="completions").api == "chat", "of endpoints"


def test_only_what_differs_from_the_recipe_is_kept():
    values = forms.recipe_values("medusa", "medusa-smoke")
    plain = forms.train_request("b", "d", "medusa", "medusa-smoke", values)
    assert plain == Train(method="medusa", base_id="b", dataset_id="d", recipe="medusa-smoke")
    changed = forms.train_request("b", "d", "medusa", "medusa-smoke", {**values, "medusa_num_heads": 5})
    assert changed.settings == {"medusa_num_heads": 5}
    assert changed.config.medusa_num_heads == 5
    assert changed.config.max_steps == 20


def test_without_a_recipe_only_what_differs_from_the_defaults_is_kept():
    values = forms.recipe_values("eagle3", forms.OWN_SETTINGS) | {"aux_layers": "1, 2, 3", "lr": 0.01}
    request = forms.train_request("b", "d", "eagle3", forms.OWN_SETTINGS, values)
    assert (request.recipe, request.settings) == ("", {"lr": 0.01, "aux_layers": [1, 2, 3]})


def test_several_sets_are_one_training():
    request = forms.train_request("b", ["d", "e", "d"], "medusa", forms.OWN_SETTINGS, {})
    assert (request.dataset_id, request.dataset_ids) == ("d", ["d", "e"])
    with pytest.raises(BadInput, match="Data: choose"):
        forms.train_request("b", [], "medusa", forms.OWN_SETTINGS, {})


def test_an_emptied_number_means_the_default():
    values = {**forms.recipe_values("medusa", forms.OWN_SETTINGS), "lr": None}
    assert forms.train_request("b", "d", "medusa", forms.OWN_SETTINGS, values).settings == {}


@pytest.mark.parametrize(
    ("base", "data", "values", "message"),
    [
        ("", "d", {}, "Base model: choose"),
        ("b", "", {}, "Data: choose"),
        ("b", "d", {"lr": -1}, "lr: expected"),
        ("b", "d", {"epochs": 0, "max_steps": 0, "max_minutes": 0}, "so that training ends"),
    ],
)
def test_a_training_form_says_what_is_missing_or_wrong(base, data, values, message):
    with pytest.raises(BadInput, match=message):
        forms.train_request(base, data, "medusa", forms.OWN_SETTINGS, values)


def test_an_unknown_recipe_is_not_found():
    with pytest.raises(SpeculoosError) as raised:
        forms.recipe_values("medusa", "no-such")
    assert isinstance(raised.value, NotFound)


@pytest.mark.parametrize("method", METHODS)
def test_every_field_of_every_method_is_filled(method: str) -> None:
    """The page has the fields of all methods and hides those of the others."""
    assert set(forms.recipe_values(method, forms.OWN_SETTINGS)) == set(SETTINGS)

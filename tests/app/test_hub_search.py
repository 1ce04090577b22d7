"""Looking for models on the hub: what is told of them, and that no answer is waited for, held or believed too long.

Against tests/models/hub_server.py in a process of its own: the hub's library reads its address at import.
"""

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest

from app.views.hub_search import HubSearch, results
from models.hub_search import MAX_QUERY, HubModel, search
from speculoos.errors import BadInput, Unavailable
from tests.models.hub_server import HTML
from tests.models.test_fetch import hub  # noqa: F401

CLONE = Path(__file__).parents[2]
ASK = """
import dataclasses, json, os, sys, time
from models import hub_ask, hub_search
from speculoos.errors import SpeculoosError
hub_ask.SECONDS = float(os.environ.get("SECONDS_OF_A_HUB", 60))
made = {}
for word in sys.argv[1:]:
    began = time.monotonic()
    try:
        told = [dataclasses.asdict(found) for found in hub_search.search(word)]
    except SpeculoosError as error:
        told = f"{type(error).__name__}: {error}"
    made[word] = {"told": told, "seconds": time.monotonic() - began}
print(json.dumps(made))
"""


def asked(hub: str, folder: Path, *words: str, **more: str) -> dict:  # noqa: F811
    """What a search for each word says, in a process that has a token in its environment."""
    env = {**os.environ, "HF_ENDPOINT": hub, "HF_HUB_OFFLINE": "0", "HF_HOME": str(folder), "HF_TOKEN": "hf_x", **more}
    command = [sys.executable, "-c", ASK, *words]
    made = subprocess.run(command, env=env, cwd=CLONE, capture_output=True, text=True, timeout=240)
    assert made.returncode == 0, made.stderr
    return json.loads(made.stdout.splitlines()[-1])


@pytest.mark.integration
def test_a_search_tells_size_licence_and_whether_drafts_can_be_made(hub: str, tmp_path: Path) -> None:  # noqa: F811
    made = asked(hub, tmp_path, "tiny", "https://huggingface.co/tiny/", "nothing-like-it")
    found = [HubModel(**each) for each in made["tiny"]["told"]]
    one, gated, quantised, adapter, recurrent = found
    assert one == HubModel(
        "tests/tiny", 1_000_000_010, 2_000_000_040, "apache-2.0", 1200, architecture="LlamaForCausalLM"
    )
    assert gated.gated and gated.licence == "llama3" and not gated.why_not
    assert "quantised" in quantised.why_not and "adapter" in adapter.why_not and "recurrent" in recurrent.why_not
    assert made["https://huggingface.co/tiny/"]["told"] == made["tiny"]["told"]
    assert made["nothing-like-it"]["told"] == []
    html = results(found)
    assert 'data-repo="tests/tiny"' in html and "2.0 GB" in html and "1 B" in html and "gated" in html
    assert html.count(">no<") == 3


@pytest.mark.integration
def test_hostile_answers_are_left_out_or_shown_as_text(hub: str, tmp_path: Path) -> None:  # noqa: F811
    made = asked(hub, tmp_path, "hostile", "torn", "deep", "ill", "huge")
    found = [HubModel(**each) for each in made["hostile"]["told"]]
    assert [each.repo for each in found] == ["tests/hostile", "tests/numbers"]
    assert (found[0].downloads, found[0].parameters, found[1].parameters) == (0, 0, 0)
    assert "<img" not in results(found)
    for word, says in (("torn", "a list"), ("deep", "a list"), ("ill", "status 503"), ("huge", "larger than 8 MB")):
        assert made[word]["told"].startswith("Unavailable: ") and says in made[word]["told"]


@pytest.mark.integration
def test_a_hub_that_does_not_end_its_answer_is_not_waited_for(hub: str, tmp_path: Path) -> None:  # noqa: F811
    made = asked(hub, tmp_path, "drip", "silent", SECONDS_OF_A_HUB="1")
    for word in ("drip", "silent"):
        assert made[word]["seconds"] < 30 and "Unavailable" in made[word]["told"], "no answer is waited for longer"


@pytest.mark.integration
def test_a_hub_that_cannot_be_reached_is_told_at_once(tmp_path: Path) -> None:
    gone = asked("http://127.0.0.1:9", tmp_path, "tiny")["tiny"]
    assert "the hub cannot be reached" in gone["told"] and len(gone["told"].splitlines()) == 1
    assert gone["seconds"] < 30, "a refusal is not waited for"


@pytest.mark.parametrize("words", ["", "   ", "x" * (MAX_QUERY + 1)])
def test_what_is_no_name_is_refused_before_any_request(words: str) -> None:
    with pytest.raises(BadInput, match="type a part of a model's name"):
        search(words)


def test_the_hub_is_not_asked_where_it_is_switched_off() -> None:
    with pytest.raises(Unavailable, match="HF_HUB_OFFLINE"):
        search("tiny")
    with gr.Blocks():
        form = HubSearch()
    shown, said = form.searched("tiny")
    assert "HF_HUB_OFFLINE is set" in shown and not said


def test_a_name_that_is_taken_goes_into_the_box() -> None:
    repo, said = HubSearch.taken(SimpleNamespace(wanted="owner/name"))
    assert repo == "owner/name" and "owner/name is selected" in said
    for wanted in (HTML, "../x", 7, None):
        assert "expected owner/name" in HubSearch.taken(SimpleNamespace(wanted=wanted))[1]

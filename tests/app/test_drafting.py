"""Drafting options of a page: read from its fields, validated, stored with the run and shown again."""

from dataclasses import replace

import pytest

from app import turns
from app.drafting import LOOKUP, TurnOptions
from app.pages import compare, playground
from app.widgets.fields import option_values, options_of
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import runs
from tracking.db import reading, writing
from tracking.tables import Base, Checkpoint


@pytest.fixture
def home(home: Settings) -> Settings:
    """A base and Medusa heads; no inference server answers."""
    settings = replace(home, inference_url="http://127.0.0.1:9")
    with writing(settings) as session:
        session.add(Base(id="base", name="tiny", source="folder", location="", state="ready", weights_sha256="w"))
        session.flush()
        session.add(Checkpoint(id="new", name="new", method="medusa", state="ready", base_id="base", base_sha256="w"))
    return settings


WARM = TurnOptions(temperature=0.7)


def warm(tree: str = "", acceptance: str = "exact", probabilities: bool = False) -> TurnOptions:
    return replace(WARM, tree=tree, acceptance=acceptance, probabilities=probabilities)


def speculation_of(settings, run_id: str) -> dict:
    with reading(settings) as session:
        return runs.get_run(session, run_id).request.get("speculation", {})


def stored_speculation(settings, model: str, options: TurnOptions, drafter: str = "") -> dict:
    run, _ = turns.next_turn(settings, "", model, "hello", options, drafter)
    return speculation_of(settings, run.id)


def test_fields_are_read_and_written_back():
    sampling = [64, 0.5, "7", "Be brief.", 0.9, 40]
    for drafting in (["own", "exact", False], ["chain 4", "typical", True]):
        assert option_values(options_of(*sampling, *drafting)) == [*sampling, *drafting]
    assert options_of(None, None, None, None, None, None, None, "anything", None) == TurnOptions()
    assert options_of(*sampling, "own", "exact", False).speculation() == {}


def test_drafting_options_are_stored_with_the_run(home):
    assert stored_speculation(home, "tiny@new", warm("chain 2", "typical", True)) == {
        "tree": "chain 2",
        "acceptance": "typical",
        "probabilities": True,
    }
    assert stored_speculation(home, "tiny", warm("chain 2", "typical")) == {}, "a base alone drafts nothing"
    assert stored_speculation(home, "tiny", warm("depth 3"), LOOKUP) == {"drafter": LOOKUP, "tree": "depth 3"}
    assert stored_speculation(home, "tiny@new", warm("own")) == {}


@pytest.mark.parametrize(
    ("model", "drafter", "options", "message"),
    [
        ("tiny@new", "", warm("fast"), "expected own"),
        ("tiny@new", "", warm("chain 40"), "40 deep"),
        ("tiny@new", "", warm("tree 99x99"), "9,801 leaves"),
        ("tiny@new", "", warm("depth 4, top_k 8"), "takes tree, not depth, top_k"),
        ("tiny@new", "", warm("ngram"), "not ngram"),
        ("tiny", LOOKUP, warm("chain 3"), "prompt lookup takes"),
        ("tiny@new", "", TurnOptions(acceptance="typical"), "temperature above 0"),
    ],
)
def test_invalid_drafting_options_are_refused(home, model, drafter, options, message):
    with pytest.raises(BadInput, match=message):
        turns.next_turn(home, "", model, "hello", options, drafter)
    if not drafter:
        with pytest.raises(BadInput, match=message):
            playground.send_turn(home, "", *model.partition("@")[::2], "hello", options)


def test_a_comparison_leaves_plain_columns_as_they_are_and_shows_its_options(home):
    group, _ = turns.new_comparison(home, [("tiny", ""), ("tiny@new", "")], "hello", warm("chain 3"))
    with reading(home) as session:
        assert [run.request.get("speculation") for run in runs.group_runs(session, group)] == [
            None,
            {"tree": "chain 3"},
        ]
    options = compare.opening(home, {"comparison": group}, [], [])[2]
    assert options.seed is not None and replace(options, seed=None) == warm("chain 3")
    assert compare.opening(home, {"tree": "chain 2"}, [], [])[2] == TurnOptions(tree="chain 2")


def test_a_chat_is_opened_with_the_drafting_of_its_last_turn(home):
    run, _ = turns.next_turn(home, "", "tiny@new", "hello", warm("chain 2", "typical"))
    assert playground.opening(home, {"chat": run.group_id}).options == warm("chain 2", "typical")
    assert playground.opening(home, {"model": "tiny@new", "tree": "tree 2x1"}).options == TurnOptions(tree="tree 2x1")
    assert TurnOptions.of({"messages": [], "speculation": {"tree": [[0, 0]]}}) == TurnOptions(tree="chain 2")

"""Chats over the JSON routes, and branches created by edited questions."""

import json
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import events, rendered, turns
from app.pages import playground
from app.widgets import fields
from speculoos.errors import BadInput, Conflict, SpeculoosError
from speculoos.settings import Settings
from tracking import chats, runs
from tracking.db import reading, writing
from tracking.tables import Run


@pytest.fixture
def home(home: Settings) -> Settings:
    """A home whose inference server does not respond: turns fail, and tests fill them in."""
    return replace(home, inference_url="http://127.0.0.1:9")


@pytest.fixture
def client(home: Settings) -> TestClient:
    app = FastAPI()
    app.include_router(events.routes(home))
    app.add_exception_handler(SpeculoosError, events.answer_error)
    return TestClient(app)


def answered_turn(
    home: Settings, prompt: str, chat: str = "", answer: str = "well", after: str | None = None, **columns
) -> Run:
    """Create a turn as the page does, then fill in its answer."""
    run, _ = turns.next_turn(home, chat, "tiny", prompt, turns.TurnOptions(), after=after)
    with writing(home) as session:
        stored = runs.get_run(session, run.id)
        stored.state, stored.text, stored.error = "SUCCEEDED", answer, ""
        stored.summary = {"finish": "stop"}
        for name, value in columns.items():
            setattr(stored, name, value)
    return run


def contents(run: Run) -> list[str]:
    return [message["content"] for message in run.request["messages"]]


def test_an_edited_question_forgets_what_followed_the_old_one_and_the_old_way_remains(home: Settings) -> None:
    first = answered_turn(home, "one", answer="1")
    chat = str(first.group_id)
    second = answered_turn(home, "two", chat, answer="2")
    edited = answered_turn(home, "zwei", chat, answer="II", after=first.id)
    anew = answered_turn(home, "uno", chat, after="")
    assert contents(second) == ["one", "1", "two"] and contents(edited) == ["one", "1", "zwei"]
    assert contents(anew) == ["uno"]
    assert contents(answered_turn(home, "three", chat, after=second.id)) == ["one", "1", "two", "2", "three"]
    view = events.chat_view(home, chat, edited.id)
    assert [turn["id"] for turn in view["turns"]] == [first.id, edited.id]
    assert view["turns"][1]["versions"] == [second.id, edited.id]


def test_the_page_says_where_a_question_belongs(home: Settings) -> None:
    """A chat id alone means after its last turn; `chat/turn` means after that turn, and `chat/` from the beginning."""

    def sent(position: str) -> tuple[str, list[str]]:
        chat, _, _ = playground.send_turn(home, position, "tiny", "", "next", turns.TurnOptions())
        with reading(home) as session:
            return chat, contents(max(runs.group_runs(session, chat), key=lambda run: run.created_at))

    first = answered_turn(home, "one", answer="1")
    chat = str(first.group_id)
    answered_turn(home, "two", chat, answer="2")
    assert sent(f"{chat}/{first.id}") == (chat, ["one", "1", "next"])
    assert sent(f"{chat}/") == (chat, ["next"])
    assert sent("")[0] != chat
    with pytest.raises(BadInput, match="Enter a prompt"):
        playground.send_turn(home, f"{chat}/{first.id}", "tiny", "", " ", turns.TurnOptions())


def test_a_seed_is_a_whole_number_or_nothing() -> None:
    assert [fields.options_of(8, 1, seed, "").seed for seed in ("", None, " 7 ", 7, "-3")] == [None, None, 7, 7, -3]
    for wrong in ("1.5", "seven", "9" * 30, "٣"):
        with pytest.raises(BadInput, match="Seed: expected a whole number"):
            fields.options_of(8, 1, wrong, "")


def test_plain_decoding_is_measured_again_only_where_that_is_asked_for(home: Settings) -> None:
    with writing(home) as session:
        run = runs.create_run(session, "chat", "tiny@heads", {"messages": []}, turns.new_id())
        plain = runs.create_run(session, "compare", "tiny", {"messages": []}, run.id)
        waiting, run_id = plain.id, run.id
    assert turns.measure_plain(home, run_id, again=True)["id"] == waiting, "that one is still coming"
    with writing(home) as session:
        runs.start_run(session, waiting)
        runs.finish_run(session, waiting, "a", {})
    assert turns.measure_plain(home, run_id)["id"] == waiting
    with pytest.raises(SpeculoosError):
        turns.measure_plain(home, run_id, again=True)  # nobody answers here
    with reading(home) as session:
        assert len(runs.group_runs(session, run_id)) == 2


def test_only_a_truncated_answer_can_be_continued(home: Settings) -> None:
    whole = answered_turn(home, "one")
    with pytest.raises(Conflict, match="is complete"):
        turns.continue_turn(home, whole.id)


def test_a_continued_answer_is_one_message_for_the_next_question(home: Settings) -> None:
    cut = answered_turn(home, "one", answer="first half", summary={"finish": "length"})
    with pytest.raises(SpeculoosError, match="does not respond"):
        turns.continue_turn(home, cut.id)
    with writing(home) as session:
        continuation = runs.group_runs(session, str(cut.group_id))[-1]
        assert continuation.request["messages"] == cut.request["messages"]
        continuation.state, continuation.text = "SUCCEEDED", ", second half"
    third = answered_turn(home, "and?", str(cut.group_id))
    assert contents(third) == ["one", "first half, second half", "and?"]


def test_a_turn_followed_by_others_is_not_removed(home: Settings) -> None:
    first = answered_turn(home, "one")
    answered_turn(home, "two", str(first.group_id))
    with pytest.raises(Conflict, match="Other turns follow"), writing(home) as session:
        chats.remove_turn(session, first.id)


def test_the_list_is_searched_and_chats_are_deleted(home: Settings, client: TestClient) -> None:
    first = answered_turn(home, "bees <b>\n\nand more")
    answered_turn(home, "planets")
    listing = client.get("/api/chats", params={"find": "bees"}).json()
    assert [chat["title"] for chat in listing["chats"]] == ["bees <b> and more"] and listing["more"] is False
    path = f"/api/chats/{first.group_id}"
    assert client.post(path, json={"name": " my\nname"}).json()["renamed"]
    assert client.post(path, content=b'{"name": "\\ud800"}').status_code == 422
    assert [chat["title"] for chat in client.get("/api/chats").json()["chats"]] == ["planets", "my name"]
    second = answered_turn(home, "more", str(first.group_id))
    assert chats.chat_fields(second)["name"] == "my name"
    assert client.delete(path).json()["removed"]
    assert client.get(path).json()["turns"] == [] and client.delete(path).status_code == 404


@pytest.mark.parametrize("before", ["yesterday", "9999-12-31T23:59:59-23:59", "0001-01-01T00:00:00+23:59"])
def test_an_invalid_position_in_the_list_is_refused(client: TestClient, before: str) -> None:
    response = client.get("/api/chats", params={"before": before})
    assert response.status_code == 400 and "is not a time" in response.json()["error"]["message"]


def test_markdown_comes_from_the_steps_while_the_answer_goes_on(home: Settings, client: TestClient) -> None:
    run = answered_turn(home, "one", state="RUNNING", text="")
    with writing(home) as session:
        runs.add_steps(
            session, run.id, [{"index": 0, "tokens": [{"id": 1, "text": "**so"}, {"id": 2, "text": " far**"}]}]
        )
    assert client.get(f"/api/runs/{run.id}/markdown").json()["nodes"] == [
        {"tag": "p", "children": [{"tag": "strong", "children": ["so far"]}]}
    ]
    assert client.get(f"/api/runs/{'f' * 32}/markdown").status_code == 404


KNOWN = {*rendered.TAGS.values(), "pre", "code", "heading", "a", "span"}


def test_html_links_and_pictures_of_an_answer_do_nothing() -> None:
    nasty = (
        "<script>alert(1)</script>\n\n<img src=x onerror=alert(1)> [a](javascript:alert(1)) [b](data:text/html,x) "
        '![c](http://elsewhere/x.png) [d](/settings) <javascript:alert(1)> [e](https://fine.example "t")\n\n```a" b\nx'
    )
    elements = all_elements(rendered.nodes(nasty))
    assert {element["tag"] for element in elements} <= KNOWN
    assert {e["href"] for e in elements if e["tag"] == "a"} == {"http://elsewhere/x.png", "https://fine.example"}
    assert "<img src=x onerror=alert(1)>" in json.dumps(rendered.nodes(nasty))
    assert all_elements(rendered.nodes("[a](http://[no:address]/)"))


def test_lists_tables_code_and_headings_are_elements() -> None:
    text = (
        "# Title\n\n1. one\n   - two\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = '<b>'\n```\n\n    indented\n"
    )
    elements = all_elements(rendered.nodes(text))
    tags = [element["tag"] for element in elements]
    assert {"heading", "ol", "ul", "li", "table", "tr", "th", "td", "pre"} <= set(tags)
    code = [element for element in elements if element["tag"] == "pre"]
    expected = [("python", ["x = '<b>'\n"]), ("", ["indented\n"])]
    assert [(c["language"], c["children"]) for c in code] == expected


def test_a_very_long_answer_and_deep_nesting_are_shown_as_text() -> None:
    assert rendered.nodes("*a*" * 100_000)[0]["tag"] == "pre"
    assert all_elements(rendered.nodes("> " * 3000 + "deep"))
    for times in (130, 5000):
        assert rendered.nodes("*a " * times + "a*" * times)[0]["tag"] == "pre"
    assert rendered.nodes("a *b **c** d*")[0]["tag"] == "p"


def all_elements(nodes: list) -> list[dict]:
    elements = [node for node in nodes if isinstance(node, dict)]
    return elements + [child for node in elements for child in all_elements(node["children"])]

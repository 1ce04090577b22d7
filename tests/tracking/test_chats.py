"""Conversations in the database: branches, answers in several parts, the list, search, names, deletion."""

from datetime import timedelta

import pytest

from speculoos.errors import Conflict, NotFound
from speculoos.settings import Settings
from tracking import chats, runs
from tracking.db import reading, writing
from tracking.tables import Run, RunStep, new_id, now


def add(database: Settings, chat: str, text: str, *, minutes: float = 0, answer: str = "yes", **fields: str) -> str:
    """Add an ended turn with the question `text`, some minutes after now. `fields` are its chat fields."""
    with writing(database) as rows:
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        request = {"messages": messages, **({"chat": fields} if fields else {})}
        turns = runs.group_runs(rows, chat)
        positions = {run.id: run.position + 1 for run in turns}
        previous = fields.get("after", turns[-1].id if turns else "")
        run = runs.create_run(rows, "chat", "tiny", request, chat, positions.get(previous, 0))
        run.text, run.state, run.created_at = answer, "SUCCEEDED", now() + timedelta(minutes=minutes)
        runs.add_steps(rows, run.id, [{"index": 0, "tokens": [{"id": ord(char)} for char in answer]}])
        return run.id


def shown(database: Settings, chat: str, chosen: str = "") -> list[str]:
    with reading(database) as rows:
        return [run.id for run in chats.turns_on_path(runs.group_runs(rows, chat), chosen)]


def listed(database: Settings, **options) -> list[str]:
    with reading(database) as rows:
        return [chat.title for chat in chats.recent(rows, **options)]


def test_turns_without_branches_follow_each_other(database: Settings) -> None:
    chat = new_id()
    turns = [add(database, chat, text, minutes=i) for i, text in enumerate(("one", "two", "three"))]
    assert shown(database, chat) == turns == shown(database, chat, turns[0])


def test_an_edited_question_opens_a_branch_and_both_can_be_shown(database: Settings) -> None:
    chat = new_id()
    first = add(database, chat, "one")
    second = add(database, chat, "two", minutes=1)
    third = add(database, chat, "three", minutes=2, after=second)
    edited = add(database, chat, "two, differently", minutes=3, after=first)
    assert shown(database, chat) == [first, edited]
    assert shown(database, chat, second) == [first, second, third]
    with reading(database) as rows:
        siblings = chats.sibling_turns(runs.group_runs(rows, chat))
    assert siblings[edited] == siblings[second] == [second, edited] and siblings[first] == [first]


def test_the_parts_of_an_answer_are_one_text_and_one_row_of_tokens(database: Settings) -> None:
    chat = new_id()
    first = add(database, chat, "one", answer="ab\ufffd")
    second = add(database, chat, "one", minutes=1, answer="cd", after=first, continues=first)
    last = add(database, chat, "one", minutes=2, answer="ef", after=second, continues=second)
    with reading(database) as rows:
        path = chats.turns_on_path(runs.group_runs(rows, chat))
        assert chats.whole_response(path[-1], path) == "abcdef" and chats.whole_response(path[0], path) == "ab\ufffd"
        assert chats.continued_token_ids(rows, runs.get_run(rows, last)) == [ord(char) for char in "ab\ufffdcd"]
        assert chats.continued_token_ids(rows, runs.get_run(rows, first)) == []


def test_the_list_is_sorted_by_the_last_turn_and_continues_after_a_page(database: Settings) -> None:
    bees, planets = new_id(), new_id()
    add(database, bees, "How do bees\nfind home?")
    add(database, planets, "Name the planets", minutes=1)
    add(database, bees, "And ants?", minutes=2)
    assert listed(database) == ["How do bees find home?", "Name the planets"]
    with reading(database) as rows:
        newest = chats.recent(rows, limit=1)[0]
    assert newest.turns == 2
    assert listed(database, before=newest.at) == ["Name the planets"]


@pytest.mark.parametrize(
    ("search", "matches"),
    [("bees", True), ("BEES home", True), ("ants", True), ("Blüten 🐝", True), ("role", False), ("brief", False)],
)
def test_search_covers_questions_and_answers_only(database: Settings, search: str, matches: bool) -> None:
    chat = new_id()
    add(database, chat, "How do bees find home?", answer="By Blüten 🐝")
    add(database, chat, "And ants?", minutes=1)
    add(database, new_id(), "another")
    assert listed(database, search=search) == (["How do bees find home?"] if matches else [])


def test_a_stored_name_replaces_the_question_and_is_found(database: Settings) -> None:
    chat = new_id()
    turn = add(database, chat, "one")
    for name, title in (("100 % \\ of_it", "100 % \\ of_it"), ("", "one"), ("my name", "my name")):
        with writing(database) as rows:
            run = runs.get_run(rows, turn)
            run.request = {**run.request, chats.KEY: {**chats.chat_fields(run), "name": name}}
        assert listed(database) == [title]
    assert listed(database, search="my name") == ["my name"] and listed(database, search="my_name") == []


def test_removing_a_chat_deletes_its_steps_and_measurements_only(database: Settings) -> None:
    chat, other = new_id(), new_id()
    turn = add(database, chat, "one")
    add(database, turn, "one")
    remaining = add(database, other, "two")
    with writing(database) as rows:
        chats.remove(rows, chat)
    with reading(database) as rows:
        assert [run.id for run in rows.query(Run)] == [remaining]
        assert [step.run_id for step in rows.query(RunStep)] == [remaining]
    with writing(database) as rows, pytest.raises(NotFound):
        chats.remove(rows, chat)


def test_a_chat_stays_while_a_plain_answer_is_measured_for_it(database: Settings) -> None:
    chat = new_id()
    measured = add(database, add(database, chat, "one"), "one")
    with writing(database) as rows:
        runs.get_run(rows, measured).state = "RUNNING"
    with writing(database) as rows, pytest.raises(Conflict, match="still being generated"):
        chats.remove(rows, chat)


@pytest.mark.parametrize("search", ['"hi"', "C:\\temp", 'say "hi"'])
def test_quotes_and_backslashes_are_found(database: Settings, search: str) -> None:
    add(database, new_id(), 'say "hi" to C:\\temp')
    assert listed(database, search=search) == ['say "hi" to C:\\temp']


def test_a_chat_with_a_running_turn_is_not_removed(database: Settings) -> None:
    chat = new_id()
    turn = add(database, chat, "one")
    with writing(database) as rows:
        runs.get_run(rows, turn).state = "RUNNING"
    with writing(database) as rows, pytest.raises(Conflict, match="stop it first"):
        chats.remove(rows, chat)

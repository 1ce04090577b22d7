"""Conversations as rows: branches, the whole answer of several parts, the list with its search, names, deletion."""

from datetime import timedelta

import pytest

from speculoos.errors import Conflict, NotFound
from speculoos.settings import Settings
from tracking import chats, runs
from tracking.db import reading, writing
from tracking.tables import Run, RunStep, new_id, now


def add(database: Settings, chat: str, text: str, *, minutes: float = 0, answer: str = "yes", **place: str) -> str:
    """An ended turn that asked `text`, some minutes after now; `place` is what it says of itself."""
    with writing(database) as rows:
        asked = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": text}]
        request = {"messages": asked, **({"chat": place} if place else {})}
        before = runs.group_runs(rows, chat)
        positions = {run.id: run.position + 1 for run in before}
        follows = place.get("after", before[-1].id if before else "")
        run = runs.create_run(rows, "chat", "tiny", request, chat, positions.get(follows, 0))
        run.text, run.state, run.created_at = answer, "SUCCEEDED", now() + timedelta(minutes=minutes)
        runs.add_steps(rows, run.id, [{"index": 0, "tokens": [{"id": ord(sign)} for sign in answer]}])
        return run.id


def shown(database: Settings, chat: str, chosen: str = "") -> list[str]:
    with reading(database) as rows:
        return [run.id for run in chats.turns_on_path(runs.group_runs(rows, chat), chosen)]


def listed(database: Settings, **asked) -> list[str]:
    with reading(database) as rows:
        return [chat.title for chat in chats.recent(rows, **asked)]


def test_turns_of_before_there_were_branches_follow_each_other(database: Settings) -> None:
    chat = new_id()
    turns = [add(database, chat, word, minutes=i) for i, word in enumerate(("one", "two", "three"))]
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
        standing = chats.sibling_turns(runs.group_runs(rows, chat))
    assert standing[edited] == standing[second] == [second, edited] and standing[first] == [first]


def test_the_parts_of_an_answer_are_one_text_and_one_row_of_tokens(database: Settings) -> None:
    chat = new_id()
    begun = add(database, chat, "one", answer="ab\ufffd")
    gone_on = add(database, chat, "one", minutes=1, answer="cd", after=begun, continues=begun)
    last = add(database, chat, "one", minutes=2, answer="ef", after=gone_on, continues=gone_on)
    with reading(database) as rows:
        way = chats.turns_on_path(runs.group_runs(rows, chat))
        assert chats.whole_response(way[-1], way) == "abcdef" and chats.whole_response(way[0], way) == "ab\ufffd"
        assert chats.continued_token_ids(rows, runs.get_run(rows, last)) == [ord(sign) for sign in "ab\ufffdcd"]
        assert chats.continued_token_ids(rows, runs.get_run(rows, begun)) == []


def test_the_list_is_by_the_last_turn_and_goes_on_where_it_ended(database: Settings) -> None:
    bees, planets = new_id(), new_id()
    add(database, bees, "How do bees\nfind home?")
    add(database, planets, "Name the planets", minutes=1)
    add(database, bees, "And ants?", minutes=2)
    assert listed(database) == ["How do bees find home?", "Name the planets"]
    with reading(database) as rows:
        newest = chats.recent(rows, limit=1)[0]
    assert (newest.turns, newest.is_named) == (2, False)
    assert listed(database, before=newest.at) == ["Name the planets"]


@pytest.mark.parametrize(
    ("words", "found"),
    [("bees", True), ("BEES home", True), ("ants", True), ("Blüten 🐝", True), ("role", False), ("brief", False)],
)
def test_words_are_looked_for_in_questions_and_answers_not_in_what_stands_around(
    database: Settings, words: str, found: bool
) -> None:
    chat = new_id()
    add(database, chat, "How do bees find home?", answer="By Blüten 🐝")
    add(database, chat, "And ants?", minutes=1)
    add(database, new_id(), "another")
    assert listed(database, search=words) == (["How do bees find home?"] if found else [])


def test_a_stored_name_stands_for_the_question_and_is_found(database: Settings) -> None:
    chat = new_id()
    turn = add(database, chat, "one")
    for name, title in (("100 % \\ of_it", "100 % \\ of_it"), ("", "one"), ("my name", "my name")):
        with writing(database) as rows:
            run = runs.get_run(rows, turn)
            run.request = {**run.request, chats.KEY: {**chats.chat_fields(run), "name": name}}
        assert listed(database) == [title]
    assert listed(database, search="my name") == ["my name"] and listed(database, search="my_name") == []


def test_a_chat_goes_with_its_steps_and_what_was_measured_for_it_and_nothing_else(database: Settings) -> None:
    chat, other = new_id(), new_id()
    turn = add(database, chat, "one")
    add(database, turn, "one")
    kept = add(database, other, "two")
    with writing(database) as rows:
        chats.remove(rows, chat)
    with reading(database) as rows:
        assert [run.id for run in rows.query(Run)] == [kept]
        assert [step.run_id for step in rows.query(RunStep)] == [kept]
    with writing(database) as rows, pytest.raises(NotFound):
        chats.remove(rows, chat)


def test_a_chat_stays_while_a_plain_answer_is_measured_for_it(database: Settings) -> None:
    chat = new_id()
    measured = add(database, add(database, chat, "one"), "one")
    with writing(database) as rows:
        runs.get_run(rows, measured).state = "RUNNING"
    with writing(database) as rows, pytest.raises(Conflict, match="still being generated"):
        chats.remove(rows, chat)


@pytest.mark.parametrize("words", ['"hi"', "C:\\temp", 'say "hi"'])
def test_quotes_and_backslashes_are_found(database: Settings, words: str) -> None:
    add(database, new_id(), 'say "hi" to C:\\temp')
    assert listed(database, search=words) == ['say "hi" to C:\\temp']


def test_a_chat_that_goes_on_stays(database: Settings) -> None:
    chat = new_id()
    turn = add(database, chat, "one")
    with writing(database) as rows:
        runs.get_run(rows, turn).state = "RUNNING"
    with writing(database) as rows, pytest.raises(Conflict, match="stop it first"):
        chats.remove(rows, chat)

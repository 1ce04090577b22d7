"""Runs over server-sent events, and their JSON routes."""

import asyncio
import json
from dataclasses import replace

import httpx
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app import auth, events, inference, turns
from serving.protocol import ChatRequest
from speculoos.errors import BadInput, NotFound, SpeculoosError, Unavailable
from speculoos.guard import RequestGuard
from speculoos.settings import Settings
from tests.tools.loops import run_async
from tests.tools.stored_runs import all_runs, step_count
from tracking import chats, runs
from tracking.db import reading, writing


def record(index: int, text: str = "a") -> dict:
    token = {"id": index, "text": text, "origin": "plain", "depth": 0, "rank": 0}
    draft = {"tokens": [], "texts": [], "parents": [], "depths": [], "ranks": [], "logprobs": []}
    ms = {"draft": 0.0, "verify": 1.0, "other": 0.0}
    return {"index": index, "kind": "plain", "tokens": [token], "draft": draft, "accepted": [], "ms": ms}


def new_run(settings: Settings, **values: object) -> str:
    with writing(settings) as session:
        request = {"messages": [{"role": "user", "content": "hello"}]}
        return runs.create_run(session, "chat", "tiny", request, **values).id


def store(settings: Settings, run_id: str, *indices: int) -> None:
    with writing(settings) as session:
        runs.start_run(session, run_id)
        runs.add_steps(session, run_id, [record(i) for i in indices])


def finish(settings: Settings, run_id: str) -> None:
    with writing(settings) as session:
        runs.finish_run(session, run_id, "aaa", {"tokens": 3})


def parse_events(text: str) -> list[tuple[str, str, dict]]:
    """Parse a stream into (event, id, data)."""
    parsed = []
    for block in text.strip().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.split("\n"))
        if "event" in fields:
            parsed.append((fields["event"], fields.get("id", ""), json.loads(fields["data"])))
    return parsed


def read_all(settings: Settings, run_id: str, last: int = -1) -> list[tuple[str, str, dict]]:
    async def collect() -> str:
        return "".join([chunk async for chunk in events.follow(settings, run_id, last)])

    return parse_events(run_async(collect()))


@pytest.fixture
def client(home: Settings) -> TestClient:
    """Our routes behind the guard, without the pages, which take seconds to build."""
    app = FastAPI()
    app.include_router(events.routes(home))
    app.add_exception_handler(SpeculoosError, events.answer_error)
    app.add_middleware(RequestGuard, port=home.port)
    return TestClient(app, base_url="http://127.0.0.1:7860")


def test_an_ended_run_is_replayed_whole_with_its_summary_last(home: Settings) -> None:
    run_id = new_run(home)
    store(home, run_id, 0, 1, 2)
    finish(home, run_id)
    received = read_all(home, run_id)
    assert [(name, number) for name, number, _ in received] == [
        ("step", "0"),
        ("step", "1"),
        ("step", "2"),
        ("end", ""),
    ]
    assert received[-1][2]["summary"] == {"tokens": 3}
    assert received[-1][2]["state"] == "SUCCEEDED"


def test_a_browser_that_comes_back_gets_only_what_it_has_not_seen(home: Settings, client: TestClient) -> None:
    run_id = new_run(home)
    store(home, run_id, 0, 1, 2)
    finish(home, run_id)
    response = client.get(f"/api/runs/{run_id}/events", headers={"Last-Event-ID": "1"})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert [number for name, number, _ in parse_events(response.text) if name == "step"] == ["2"]


def test_more_records_than_one_page_all_arrive_in_order(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "PAGE", 3)
    run_id = new_run(home)
    store(home, run_id, *range(10))
    finish(home, run_id)
    assert [data["index"] for name, _, data in read_all(home, run_id) if name == "step"] == list(range(10))


def test_a_live_run_is_followed_to_its_end(home: Settings) -> None:
    run_id = new_run(home)

    async def generate() -> str:
        stream = events.follow(home, run_id, -1)
        text = await anext(stream)
        for index in range(4):
            store(home, run_id, index)
            text += await anext(stream)
        finish(home, run_id)
        return text + "".join([event async for event in stream])

    received = parse_events(run_async(generate()))
    assert [name for name, _, _ in received if name == "state"] == ["state", "state"]
    assert [data["index"] for name, _, data in received if name == "step"] == [0, 1, 2, 3]
    assert received[-1][0] == "end"


def test_a_stream_ends_with_the_login_that_opened_it(home: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """The stream of another login continues. The run itself never ends here."""
    monkeypatch.setattr(auth, "PAUSE", 0)
    app = FastAPI()
    app.include_router(events.routes(home))
    auth.add_login(app, replace(home, password="cinnamon"))
    run_id = new_run(home)
    store(home, run_id, 0)

    async def browser() -> httpx.AsyncClient:
        client = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:7860")
        assert (await client.post("/login", data={"password": "cinnamon"})).status_code == 303
        return client

    async def watch() -> tuple[str, bool, int]:
        ours, theirs = await browser(), await browser()
        address, cookies = f"/api/runs/{run_id}/events", dict(ours.cookies)
        tasks = [asyncio.create_task(client.get(address)) for client in (ours, theirs)]
        await asyncio.sleep(1)
        assert not any(task.done() for task in tasks)
        await ours.post("/logout")
        text = (await asyncio.wait_for(asyncio.shield(tasks[0]), 30)).text
        other_done = tasks[1].done()
        again = await httpx.AsyncClient(
            transport=httpx.ASGITransport(app), base_url="http://127.0.0.1:7860", cookies=cookies
        ).get(address)
        tasks[1].cancel()
        return text, other_done, again.status_code

    text, other_done, again = run_async(watch())
    assert [number for name, number, _ in parse_events(text) if name == "step"] == ["0"]
    assert "logged out" in text and not other_done and again == 401


def test_a_line_break_in_a_token_does_not_break_the_stream() -> None:
    text = events.event("step", {"text": "a\nb\r\n\u2028{}"}, 7)
    assert text.count("\n") == 4
    assert parse_events(text) == [("step", "7", {"text": "a\nb\r\n\u2028{}"})]


def test_a_deleted_run_ends_its_stream_without_a_traceback(home: Settings) -> None:
    run_id = new_run(home)

    async def collect() -> list[str]:
        chunks = []
        async for chunk in events.follow(home, run_id, -1):
            chunks.append(chunk)
            with writing(home) as session:
                session.delete(runs.get_run(session, run_id)) if len(chunks) == 1 else None
        return chunks

    chunks = run_async(collect())
    assert [name for name, _, _ in parse_events(chunks[0])] == ["state"]
    assert chunks[-1].startswith(": There is no run")


def test_an_unknown_run_is_not_found_in_one_sentence(client: TestClient) -> None:
    response = client.get("/api/runs/" + "0" * 32 + "/events")
    assert response.status_code == 404
    assert response.json()["error"]["code"] == "not_found"


@pytest.mark.parametrize(("header", "last"), [("", -1), ("12", 12), ("-3", -1), ("x", -1), ("¹", -1)])
def test_a_strange_last_event_id_means_from_the_beginning(header: str, last: int) -> None:
    assert events._last_event(header) == last


def test_when_the_inference_server_is_down_the_run_fails_with_one_sentence(home: Settings) -> None:
    unreachable = replace(home, inference_url="http://127.0.0.1:9")  # a server of the user may listen on the usual port
    run, error = turns.next_turn(unreachable, "", "tiny", "hello", turns.TurnOptions())
    assert "inference server does not respond" in error
    with reading(home) as session:
        stored = runs.get_run(session, run.id)
    assert (stored.state, stored.error) == ("FAILED", error)


def test_stopping_a_run_that_nobody_generates_ends_it(home: Settings, client: TestClient) -> None:
    run_id = new_run(home)
    response = client.post(f"/api/runs/{run_id}/cancel", headers={"Origin": "http://127.0.0.1:7860"})
    assert response.json()["state"] == "CANCELLED"


def test_another_web_page_cannot_stop_a_run(home: Settings, client: TestClient) -> None:
    run_id = new_run(home)
    response = client.post(f"/api/runs/{run_id}/cancel", headers={"Origin": "https://evil.example"})
    assert response.status_code == 403
    with reading(home) as session:
        assert runs.get_run(session, run_id).state == "QUEUED"


def test_history_keeps_answered_turns_and_leaves_failed_ones_out(home: Settings) -> None:
    chat = "c" * 32
    with writing(home) as session:
        for position, (question, answer) in enumerate([("one", "1"), ("two", ""), ("three", "3")]):
            request = {"messages": [{"role": "user", "content": question}]}
            run = runs.create_run(session, "chat", "tiny", request, chat, position)
            run.text, run.state = answer, "SUCCEEDED" if answer else "FAILED"
    messages = chats.history(turns.chat_of(home, chat), system="Be brief.")
    assert [m["content"] for m in messages] == ["Be brief.", "one", "1", "three", "3"]


def test_a_chat_takes_one_question_at_a_time(home: Settings) -> None:
    chat = "d" * 32
    new_run(home, group_id=chat)
    with pytest.raises(BadInput, match="still being generated"):
        turns.next_turn(home, chat, "tiny", "and?", turns.TurnOptions())


@pytest.mark.parametrize("prompt", ["", "   \n", None])
def test_an_empty_prompt_is_refused_before_anything_is_stored(home: Settings, prompt: str | None) -> None:
    with pytest.raises(BadInput, match="Enter a prompt"):
        turns.next_turn(home, "", "tiny", prompt, turns.TurnOptions())
    with reading(home) as session:
        assert all_runs(session) == []


HALF = "a \ud83d b"


@pytest.mark.parametrize(
    ("model", "prompt", "system", "subject"),
    [("tiny", HALF, "", "The prompt"), ("tiny", "x", HALF, "The system prompt"), (HALF, "x", "", "The name of")],
)
def test_half_a_character_is_refused_before_anything_is_stored(
    home: Settings, model: str, prompt: str, system: str, subject: str
) -> None:
    for start in (
        lambda: turns.next_turn(home, "", model, prompt, turns.TurnOptions(system=system)),
        lambda: turns.new_comparison(home, [(model, ""), (model, "ngram")], prompt, turns.TurnOptions(system=system)),
    ):
        with pytest.raises(BadInput, match=f"{subject}.* an unpaired surrogate after 2 characters"):
            start()
    with reading(home) as session:
        assert all_runs(session) == []


def test_a_comparison_needs_two_to_four_targets(home: Settings) -> None:
    for count in (0, 1, 5):
        with pytest.raises(BadInput, match="two to four"):
            turns.new_comparison(home, [("tiny", "")] * count, "hello", turns.TurnOptions())


def test_a_comparison_that_cannot_start_leaves_no_column_waiting(home: Settings) -> None:
    group, error = turns.new_comparison(home, [("tiny", ""), ("tiny", "ngram")], "hello", turns.TurnOptions())
    assert error
    assert {column["state"] for column in events.comparison_view(home, group)["columns"]} == {"FAILED"}


def test_an_unknown_comparison_is_not_found(home: Settings) -> None:
    with pytest.raises(NotFound):
        events.comparison_view(home, "e" * 32)


def test_no_token_of_the_inference_server_is_shown_when_it_refuses(home: Settings) -> None:
    unreachable = replace(home, inference_url="http://127.0.0.1:9", inference_token="sesame-4711")
    with pytest.raises(Unavailable) as error:
        inference.start(unreachable, new_run(home))
    assert "sesame" not in str(error.value) + repr(unreachable)


def test_removing_a_turn_removes_its_steps_and_what_was_measured_for_it(home: Settings, client: TestClient) -> None:
    run_id = new_run(home, group_id="a" * 32)
    store(home, run_id, 0, 1)
    assert client.delete(f"/api/runs/{run_id}").status_code == 400  # the run has not ended yet
    finish(home, run_id)
    with writing(home) as session:
        comparison_id = runs.create_run(session, "compare", "tiny", {"messages": []}, run_id).id
        runs.fail_run(session, comparison_id, "no")
    assert client.delete(f"/api/runs/{run_id}").json()["removed"]
    with reading(home) as session:
        assert all_runs(session) == []
        assert step_count(session, run_id) == 0


def test_a_comparison_is_removed_whole_once_it_has_ended(home: Settings, client: TestClient) -> None:
    def end(run_id: str) -> None:
        with writing(home) as session:
            assert runs.fail_run(session, run_id, "no")

    request = {"messages": [{"role": "user", "content": "hello"}]}
    with writing(home) as session:
        first, second = runs.create_comparison(session, [("tiny", request), ("tiny@heads", request)])
        group, ids = first.group_id, (first.id, second.id)
    end(ids[0])
    refused = client.delete(f"/api/comparisons/{group}")
    assert refused.status_code == 400 and "still being measured" in refused.json()["error"]["message"]
    end(ids[1])
    column = client.delete(f"/api/runs/{ids[0]}")
    assert column.status_code == 400 and "belongs to a comparison" in column.json()["error"]["message"]
    assert client.delete(f"/api/comparisons/{group}").json()["removed"]
    assert client.delete(f"/api/comparisons/{group}").status_code == 404
    with reading(home) as session:
        assert all_runs(session) == []


def test_every_second_comparison_is_measured_from_its_last_column(home: Settings) -> None:
    orders = []
    for _ in range(4):
        group, _ = turns.new_comparison(home, [("tiny", ""), ("tiny", "ngram")], "hello", turns.TurnOptions())
        with reading(home) as session:
            columns = runs.group_runs(session, group)
        orders.append(columns[0].created_at < columns[1].created_at)
    assert orders == [True, False, True, False]


def test_sampling_options_are_sent_only_if_they_are_set() -> None:
    assert turns.TurnOptions().parameters() == {"max_tokens": 256, "temperature": 0.0}
    parameters = turns.TurnOptions(64, 0.7, 3, "", 0.9, 40).parameters()
    assert parameters == {"max_tokens": 64, "temperature": 0.7, "seed": 3, "top_p": 0.9, "top_k": 40}
    assert ChatRequest(model="tiny", messages=[{"role": "user", "content": "x"}], **parameters).top_k == 40


def test_sampled_columns_of_a_comparison_share_a_seed(home: Settings) -> None:
    targets = [("tiny", ""), ("tiny", "ngram")]
    group, _ = turns.new_comparison(home, targets, "hello", turns.TurnOptions(temperature=0.7))
    seeds = {column["request"]["seed"] for column in events.comparison_view(home, group)["columns"]}
    assert len(seeds) == 1

"""Responses of servers: recorded streams become runs, with origins if the server reports them, and errors one sentence.

A test server replays what vLLM and llama.cpp sent (tests/tools/served_replay.py)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from evaluation.published import PublishedStep
from serving.served_steps import Emitted, emitted_steps
from tests.serving.conftest import TOKEN, Served, until
from tests.serving.test_live import make_run, post, read_run, steps, wait_until_ended
from tests.tools.served_replay import Replay, replaying
from tracking import runs
from tracking.db import reading, writing

KEY = "sk-of-the-replayed-server-0123456789"


@contextmanager
def endpoint(served: Served, replay: Replay, name: str = "mine", **fields: Any) -> Iterator[str]:
    """Add the replayed server as an endpoint while the inference server runs; yields the model name of its runs."""
    fields = {"url": replay.url, "key_env": "REPLAYED_KEY", **fields}
    lines = [f"{key} = {json.dumps(value)}" for key, value in fields.items()]
    path = served.settings.home / "settings.toml"
    path.write_text("\n".join([f"[endpoints.{name}]", *lines, ""]))
    try:
        yield f"@{name}"
    finally:
        path.unlink()


def complete(served: Served, model: str, **parameters: Any) -> tuple[Any, list[dict[str, Any]]]:
    run_id = make_run(served, model, **parameters)
    assert post(served, run_id).json() == {"id": run_id, "queued": [run_id]}
    run = wait_until_ended(served, run_id)
    return run, steps(served, run_id)


def text_of(records: list[dict[str, Any]]) -> str:
    return "".join(token["text"] for record in records for token in record["tokens"])


def published(*accepted: int, drafted: int = 3) -> list[PublishedStep]:
    return [PublishedStep(count, drafted) for count in accepted]


@pytest.mark.parametrize(
    ("chunks", "accepted", "sizes"),
    [
        ([1, 1, 3, 2], [0, 2, 1], [1, 1, 3, 2]),
        ([1, 1, 3, 1], [0, 2, 2], [1, 1, 3, 1]),  # the end cut the last step
        ([1, 4, 2], [0, 2, 1], [1, 1, 3, 2]),  # a chunk of two steps
        ([3, 3, 2], [0, 0, 2, 1], [1, 1, 1, 3, 2]),  # the first token and two steps in one
        ([1, 1, 1, 3, 1, 1], [2], [1, 1, 1, 3, 1, 1]),  # steps without a draft
        ([1], [], [1]),
    ],
)
def test_steps_are_found_in_chunks(chunks: list[int], accepted: list[int], sizes: list[int]) -> None:
    emitted = emitted_steps(chunks, published(*accepted))
    assert emitted and [item.tokens for item in emitted] == sizes
    assert [item.step.accepted for item in emitted if item.step] == accepted


@pytest.mark.parametrize(
    ("chunks", "accepted"),
    [
        ([1, 2, 2], [2, 1]),  # a chunk of two tokens where three were accepted
        ([1, 3, 1], [0, 0, 1, 1]),
        ([2, 1, 1, 1], [1]),  # the first token belongs to no step
        ([], [1]),
        ([1, 2, 1], [1, 1, 2]),
        ([1, 2, 1], [0, 2]),  # two ways
    ],
)
def test_steps_that_do_not_fit_give_no_origins(chunks: list[int], accepted: list[int]) -> None:
    assert emitted_steps(chunks, published(*accepted)) is None


def test_steps_without_a_draft_are_no_verifications() -> None:
    assert emitted_steps([1, 1, 2], published(1)) == [Emitted(1), Emitted(1), Emitted(2, PublishedStep(1, 3))]


@pytest.mark.integration
def test_vllms_steps_give_origins_of_tokens(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYED_KEY", KEY)
    with replaying(key=KEY) as replay, endpoint(served, replay) as model:
        run, records = complete(served, model, max_tokens=40)
        request = replay.asked[0]
    assert run.state == "SUCCEEDED" and text_of(records) == run.text and run.text.startswith("1. Red: This is the most")
    assert (request["model"], request["max_tokens"], request["logprobs"]) == ("starter", 40, True)
    assert set(request) == {"model", "messages", "max_tokens", "logprobs", "stream", "stream_options"}
    last = json.loads(replay.events()[-2].removeprefix("data: "))["metrics"]["speculative_decoding"]
    verified = [record for record in records if record["kind"] == "verify"]
    assert [record["served"]["accepted"] for record in verified] == last["per_step_accepted"]
    origins = [token["origin"] for record in records for token in record["tokens"]]
    assert len(origins) == 40 == run.summary["tokens"]
    assert run.summary["accepted"] == last["num_accepted_draft_tokens"] == 17
    assert origins.count("draft") == 16  # the end cut the last step
    assert [token["text"] for token in records[1]["tokens"]] == [".", " Red"]
    assert [token["origin"] for token in records[1]["tokens"]] == ["draft", "target"]
    assert run.summary["origins"] == "known" and run.summary["server"] == "vLLM"
    assert run.summary["mean_accepted_length"] == round(last["mean_acceptance_length"], 4)
    assert run.summary["decode_tokens_per_second"] > 0 and run.summary["ms_prefill"] > 0


@pytest.mark.integration
@pytest.mark.parametrize("recording", ["vllm-emoji", "vllm-stop"])
def test_characters_of_several_tokens_and_the_token_at_the_end(
    served: Served, recording: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with replaying(recording=recording) as replay, endpoint(served, replay) as model:
        run, records = complete(served, model)
    assert run.summary["origins"] == "known" and text_of(records) == run.text and "\ufffd" not in run.text
    tokens = [token for record in records for token in record["tokens"]]
    assert len(tokens) == run.summary["tokens"]
    if recording == "vllm-stop":
        assert run.summary["finish"] == "stop" and tokens[-1]["text"] == ""
    else:
        assert any(len(token.get("origins", ())) > 1 for token in tokens)


@pytest.mark.integration
def test_llamacpps_totals_give_no_origins(served: Served) -> None:
    with replaying(recording="llamacpp") as replay, endpoint(served, replay) as model:
        run, records = complete(served, model)
        request = replay.asked[0]
    assert run.state == "SUCCEEDED" and text_of(records) == run.text and "logprobs" not in request
    assert {token["origin"] for record in records for token in record["tokens"]} == {"unknown"}
    summary = run.summary
    assert (summary["origins"], summary["accepted"], summary["drafted"]) == ("unknown", 15, 69)
    assert (summary["verifications"], summary["mean_accepted_length"]) == (24, 1.625)
    assert summary["tokens"] == 40 and summary["acceptance_by_depth"] == []


@pytest.mark.integration
def test_another_speculoos_sends_its_own_records(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYED_KEY", TOKEN)
    with endpoint(served, Replay(url=f"{served.url}/v1"), model="cycle@right") as model:
        run, records = complete(served, model)
    direct, direct_records = complete(served, "cycle@right")
    assert run.text == direct.text and run.summary["origins"] == "known" and run.summary["server"] == "Speculoos"
    assert [r["tokens"] for r in records] == [r["tokens"] for r in direct_records]
    assert [r["draft"]["texts"] for r in records] == [r["draft"]["texts"] for r in direct_records]
    assert run.summary["mean_accepted_length"] == direct.summary["mean_accepted_length"]


@pytest.mark.integration
def test_text_arrives_while_it_is_streamed_and_can_be_cancelled(served: Served) -> None:
    with replaying(waits_after=8) as replay, endpoint(served, replay) as model:
        run_id = make_run(served, model)
        post(served, run_id)
        until(lambda: len(steps(served, run_id)) >= 6)
        assert text_of(steps(served, run_id)).startswith("1. Red") and read_run(served, run_id).state == "RUNNING"
        other, _ = complete(served, "cycle")  # the device is free meanwhile
        assert other.state == "SUCCEEDED"
        assert post(served, f"{run_id}/cancel").json() == {"id": run_id, "cancelled": True}
        run = wait_until_ended(served, run_id)
        assert replay.left.wait(30)
    assert run.state == "CANCELLED" and run.text == text_of(steps(served, run_id)) and not run.error


@pytest.mark.integration
def test_failures_are_one_sentence_that_names_the_server(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REPLAYED_KEY", KEY)

    def error(model: str) -> str:
        run, _ = complete(served, model)
        assert run.state == "FAILED" and KEY not in run.error
        return run.error

    with replaying(breaks_after=6) as replay, endpoint(served, replay) as model:
        assert (
            error(model) == "Server mine ended its response before it was complete: look at its log, then send again."
        )
        url = replay.url
    with endpoint(served, replay) as model:
        assert (
            error(model) == f"Server mine does not respond at {url}: start it, or correct its address under Settings."
        )
    assert error(model) == "There is no server 'mine' (any more): start it, or add it under Settings, Servers."
    with replaying(key="another") as replay, endpoint(served, replay) as model:
        assert error(model) == "Server mine refused the request: 401 Bearer ••• is not the key"
    with replaying(waits_after=0) as replay, replaying() as elsewhere:
        replay.redirect = f"{elsewhere.url}/chat/completions"
        with endpoint(served, replay) as model:
            assert error(model).startswith("Server mine refused the request: 307")
        assert elsewhere.keys == []  # the key stays here


@pytest.mark.integration
def test_a_comparison_with_a_server_runs_one_by_one_and_compares_texts(served: Served) -> None:
    with replaying() as replay, endpoint(served, replay) as model:
        request = served.chat_request()
        with writing(served.settings) as db:
            comparison = runs.create_comparison(db, [("cycle", request), (model, request), (model, request)])
        ids = [run.id for run in comparison]
        assert post(served, ids[0]).json()["queued"] == ids
        assert post(served, ids[0]).status_code in (202, 409)  # posted twice
        columns = [wait_until_ended(served, run_id) for run_id in ids]
    assert [run.state for run in columns] == ["SUCCEEDED"] * 3
    assert columns[0].finished_at <= columns[1].finished_at <= columns[2].finished_at
    assert len(replay.asked) == 2
    with reading(served.settings) as db:
        first, second, third = runs.compare(db, str(columns[0].group_id))
    assert first["identical"] and not first["by_text"] and second["by_text"]
    assert (second["identical"], second["first_divergence"]) == (False, 0) and not third["identical"]

"""OpenAI's protocol, with requests of httpx and of OpenAI's own client; the trace in every chunk."""

import json
import threading
from typing import Any

import httpx
import openai
import pytest

from speculoos.cpu_load import OtherCpuLoad
from tests.serving.conftest import CYCLE_TEXT, HEADS, TOKEN, Served, until

pytestmark = pytest.mark.integration


def stream(served: Served, **parameters: Any) -> list[dict[str, Any]]:
    """Chunks of a streamed completion, `data:` lines parsed."""
    with (
        served.client() as client,
        client.stream("POST", "/v1/chat/completions", json=served.chat_request(stream=True, **parameters)) as response,
    ):
        assert response.status_code == 200, response.read()
        assert response.headers["content-type"].startswith("text/event-stream")
        lines = [line for line in response.iter_lines() if line]
    assert lines[-1] == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def content(chunks: list[dict[str, Any]]) -> str:
    return "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])


def complete(served: Served, **parameters: Any) -> dict[str, Any]:
    with served.client() as client:
        response = client.post("/v1/chat/completions", json=served.chat_request(**parameters))
    assert response.status_code == 200, response.text
    return response.json()


def test_a_whole_answer_has_openais_shape_and_our_summary(served: Served) -> None:
    response = complete(served)
    assert response["object"] == "chat.completion" and response["model"] == "cycle"
    choice = response["choices"][0]
    assert choice["message"]["role"] == "assistant" and choice["finish_reason"] == "length"
    assert choice["message"]["content"].startswith(CYCLE_TEXT + CYCLE_TEXT)
    assert response["usage"]["completion_tokens"] == 40
    assert response["usage"]["total_tokens"] == response["usage"]["prompt_tokens"] + 40
    summary = response["speculation_summary"]
    assert summary["drafter"] == "none" and summary["tokens"] == 40 and summary["tokens_per_second"] > 0
    assert "Speculation is off" in summary["notices"][0]


def test_every_streamed_chunk_carries_its_steps_trace(served: Served) -> None:
    chunks = stream(served, model="cycle@right")
    records = [chunk["speculation"] for chunk in chunks]
    assert [record["index"] for record in records] == list(range(len(records)))
    assert records[0]["kind"] == "prefill" and {r["kind"] for r in records[1:]} == {"verify"}
    for chunk, record in zip(chunks, records, strict=True):
        assert chunk["choices"][0]["delta"]["content"] == "".join(t["text"] for t in record["tokens"])
    drafted = [t for r in records for t in r["tokens"] if t["origin"] == "draft"]
    assert {t["depth"] for t in drafted} == set(range(1, HEADS + 1))
    assert len(records[1]["draft"]["texts"]) == len(records[1]["draft"]["tokens"]) > 0


def test_streamed_text_is_the_whole_text_with_no_broken_emoji(served: Served) -> None:
    for model in ("cycle", "cycle@right", "cycle@wrong"):
        chunks = stream(served, model=model)
        assert content(chunks) == complete(served, model=model)["choices"][0]["message"]["content"]
        assert (
            content(chunks).startswith(CYCLE_TEXT + CYCLE_TEXT)
            and "\ufffd" not in content(chunks)[: 2 * len(CYCLE_TEXT)]
        )


@pytest.mark.parametrize("model", ["cycle", "cycle@right"])
def test_token_ids_are_returned_on_request_whole_and_streamed(served: Served, model: str) -> None:
    whole = complete(served, model=model, return_token_ids=True)
    chunks = stream(served, model=model, return_token_ids=True)
    choice = whole["choices"][0]
    assert len(choice["token_ids"]) == 40 == whole["usage"]["completion_tokens"]
    assert len(whole["prompt_token_ids"]) == whole["usage"]["prompt_tokens"]
    streamed = [i for chunk in chunks for choice in chunk["choices"] for i in choice["token_ids"]]
    assert streamed == choice["token_ids"] and chunks[0]["prompt_token_ids"] == whole["prompt_token_ids"]
    assert sum("prompt_token_ids" in chunk for chunk in chunks) == 1
    plain = json.dumps([complete(served, model=model), stream(served, model=model)])
    assert "token_ids" not in plain, "who did not ask sees OpenAI's answer"


def test_speculation_changes_the_speed_and_never_the_text(served: Served) -> None:
    answers = {model: complete(served, model=model) for model in ("cycle", "cycle@right", "cycle@wrong")}
    assert len({a["choices"][0]["message"]["content"] for a in answers.values()}) == 1
    assert answers["cycle"]["speculation_summary"]["mean_accepted_length"] == 1
    assert answers["cycle@wrong"]["speculation_summary"]["mean_accepted_length"] == 1
    right = answers["cycle@right"]["speculation_summary"]
    assert right["mean_accepted_length"] == HEADS + 1 and right["acceptance_by_depth"] == [1.0] * HEADS


def test_the_last_chunk_has_the_reason_the_summary_and_usage_on_request(served: Served) -> None:
    without = stream(served)
    assert without[-1]["choices"][0]["finish_reason"] == "length"
    assert without[-1]["speculation_summary"]["tokens"] == 40
    assert all("usage" not in chunk for chunk in without)
    with_usage = stream(served, stream_options={"include_usage": True})
    assert with_usage[-1]["choices"] == [] and with_usage[-1]["usage"]["completion_tokens"] == 40
    assert with_usage[-1]["speculation_summary"]["finish"] == "length"
    assert all(chunk["usage"] is None for chunk in with_usage[:-1])


def test_typical_acceptance_is_called_lossy_in_the_answer_and_takes_its_thresholds(served: Served) -> None:
    rule = {"acceptance": "typical", "epsilon": 0.2, "alpha": 0.5}
    typical = complete(served, model="cycle@right", temperature=0.7, speculation=rule)["speculation_summary"]
    assert any("lossy" in notice for notice in typical["notices"])
    with served.client() as client:
        wrong = served.chat_request(model="cycle@right", speculation={**rule, "epsilon": 2})
        response = client.post("/v1/chat/completions", json=wrong)
    assert response.status_code == 400 and "epsilon: expected" in response.json()["error"]["message"]


def test_a_mismatched_base_is_named_in_the_notices(served: Served) -> None:
    assert complete(served, model="cycle@right")["speculation_summary"]["notices"] == []
    notices = complete(served, model="cycle@wrong")["speculation_summary"]["notices"]
    assert any("trained on a base with weights" in notice for notice in notices)


def test_the_speedup_names_the_plain_answer_it_is_measured_against(served: Served, monkeypatch) -> None:
    monkeypatch.setattr(OtherCpuLoad, "share", lambda self: 0.1)
    alone = complete(served, model="cycle@right", text="never asked before " * 100)["speculation_summary"]
    assert "speedup" not in alone and "plain_tokens_per_second" not in alone
    complete(served, model="cycle")
    summary = complete(served, model="cycle@right")["speculation_summary"]
    assert summary["plain_reference"]["source"] == "plain run" and summary["plain_reference"]["same_prompt"]
    expected = summary["decode_tokens_per_second"] / summary["plain_tokens_per_second"]
    assert summary["speedup"] == pytest.approx(expected, rel=0.01)


def test_stop_strings_end_the_answer_and_are_left_out(served: Served) -> None:
    response = complete(served, model="cycle@right", stop=[" fox"])
    assert response["choices"][0]["message"]["content"] == CYCLE_TEXT.partition(" fox")[0]
    assert response["choices"][0]["finish_reason"] == "stop"
    assert content(stream(served, model="cycle@right", stop=" fox")) == CYCLE_TEXT.partition(" fox")[0]


def test_max_completion_tokens_goes_before_max_tokens(served: Served) -> None:
    assert complete(served, max_completion_tokens=7)["usage"]["completion_tokens"] == 7


def test_the_same_seed_gives_the_same_sample(served: Served) -> None:
    options = {"temperature": 1.5, "top_p": 0.95, "seed": 3, "model": "cycle@right"}
    first, second = complete(served, **options), complete(served, **options)
    assert first["choices"][0]["message"] == second["choices"][0]["message"]
    other = complete(served, **{**options, "seed": 4})
    assert other["choices"][0]["message"] != first["choices"][0]["message"]


def test_drafters_can_be_chosen_per_request(served: Served) -> None:
    ngram = complete(served, speculation={"drafter": "ngram", "depth": 4})["speculation_summary"]
    assert ngram["drafter"] == "ngram" and ngram["mean_accepted_length"] > 1
    off = complete(served, model="cycle@right", speculation={"drafter": "none"})["speculation_summary"]
    assert off["drafter"] == "none" and off["mean_accepted_length"] == 1
    chain = stream(served, model="cycle@right", speculation={"tree": [[0], [0, 0]]})
    assert chain[2]["speculation"]["draft"]["depths"] == [1, 2]


def test_a_tree_can_be_named_and_probabilities_can_be_requested(served: Served) -> None:
    options = {"tree": "chain 2", "probabilities": True}
    records = [
        chunk["speculation"] for chunk in stream(served, model="cycle@right", speculation=options) if chunk["choices"]
    ]
    drafted = [record["draft"] for record in records if record["kind"] == "verify"]
    assert all(draft["depths"] == [1, 2][: len(draft["depths"])] for draft in drafted)
    assert all(0.5 < p <= 1 for draft in drafted for p in draft["probs"]) and drafted[0]["probs"]
    plain = [c["speculation"]["draft"] for c in stream(served, model="cycle@right") if c["choices"]]
    assert all("probs" not in draft for draft in plain)
    summary = complete(served, model="cycle@right", speculation=options)["speculation_summary"]
    assert any("probabilities" in notice for notice in summary["notices"])


@pytest.mark.parametrize(("tree", "message"), [("fast", "chain 4"), ("chain 40", "40 deep"), ("tree 99x99", "leaves")])
def test_an_invalid_name_of_a_tree_is_refused(served: Served, tree: str, message: str) -> None:
    with served.client() as client:
        response = client.post(
            "/v1/chat/completions", json=served.chat_request(model="cycle@right", speculation={"tree": tree})
        )
    assert response.status_code == 400 and message in response.json()["error"]["message"]


def test_typical_acceptance_at_temperature_0_has_a_notice_that_it_is_exact(served: Served) -> None:
    summary = complete(served, model="cycle@right", speculation={"acceptance": "typical"})["speculation_summary"]
    assert [notice for notice in summary["notices"] if "the same as with exact acceptance" in notice]


def test_the_second_turn_of_a_chat_reuses_the_first(served: Served) -> None:
    text = complete(served, model="cycle@right")["choices"][0]["message"]["content"]
    messages = [
        {"role": "user", "content": "Say it"},
        {"role": "assistant", "content": text},
        {"role": "user", "content": [{"type": "text", "text": "And "}, {"type": "text", "text": "again"}]},
    ]
    with served.client() as client:
        body = {"model": "cycle@right", "messages": messages, "max_tokens": 5}
        usage = client.post("/v1/chat/completions", json=body).json()["usage"]
    assert 0 < usage["prompt_tokens_details"]["cached_tokens"] < usage["prompt_tokens"]


def test_models_lists_what_is_ready_and_each_can_be_read(served: Served) -> None:
    with served.client() as client:
        names = [model["id"] for model in client.get("/v1/models").json()["data"]]
        assert names == ["cycle", "cycle@right", "cycle@wrong", "org/cycle2"]
        for name in names:
            assert client.get(f"/v1/models/{name}").json()["id"] == name
        assert client.get("/v1/models/cycle@right").json()["method"] == "medusa"
        assert client.get("/v1/models/nothing").status_code == 404


def test_openais_client_gets_whole_and_streamed_answers(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=TOKEN) as client:
        assert [m.id for m in client.models.list()][:2] == ["cycle", "cycle@right"]
        request: Any = {"model": "cycle@right", "messages": [{"role": "user", "content": "Say it"}], "max_tokens": 40}
        whole = client.chat.completions.create(**request, extra_body={"speculation": {"tree": [[0], [0, 0]]}})
        text, indices, usage = "", [], None
        options = {"include_usage": True}
        for chunk in client.chat.completions.create(**request, stream=True, stream_options=options):
            usage = chunk.usage or usage
            if chunk.choices:
                text += chunk.choices[0].delta.content or ""
                indices.append(chunk.speculation["index"])
        assert text == whole.choices[0].message.content
        assert indices == list(range(len(indices))) and usage.completion_tokens == 40
        assert whole.model_extra["speculation_summary"]["mean_accepted_length"] == 3


def test_openais_client_raises_its_own_errors(served: Served) -> None:
    request: Any = {"messages": [{"role": "user", "content": "x"}]}
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=TOKEN, max_retries=0) as client:
        with pytest.raises(openai.NotFoundError) as missing:
            client.chat.completions.create(model="nothing", **request)
        assert missing.value.code == "model_not_found" and missing.value.param == "model"
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model="cycle", n=2, **request)
    with (
        openai.OpenAI(base_url=f"{served.url}/v1", api_key="wrong", max_retries=0) as unauthenticated,
        pytest.raises(openai.AuthenticationError),
    ):
        unauthenticated.chat.completions.create(model="cycle", **request)


def test_closing_the_stream_stops_the_generation(served: Served) -> None:
    with served.client() as client:
        request = served.chat_request(stream=True, max_tokens=8000)
        with client.stream("POST", "/v1/chat/completions", json=request) as response:
            lines = response.iter_lines()  # a reference is kept: without it the stream is closed
            next(lines)
            assert served.engine.queue.busy
        served.wait_idle(seconds=20)


def test_a_client_that_gives_up_waiting_stops_the_generation(served: Served) -> None:
    with served.client() as client, pytest.raises(httpx.ReadTimeout):
        client.post("/v1/chat/completions", json=served.chat_request(max_tokens=8000), timeout=0.5)
    served.wait_idle(seconds=20)


def test_many_clients_at_once_each_get_their_own_answer(served: Served) -> None:
    requests = [("cycle", 11), ("cycle@right", 12), ("org/cycle2", 13), ("cycle@wrong", 14)] * 3
    answers: dict[int, dict[str, Any]] = {}

    def send(index: int) -> None:
        model, count = requests[index]
        answers[index] = complete(served, model=model, max_tokens=count)

    threads = [threading.Thread(target=send, args=(index,)) for index in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for index, (model, count) in enumerate(requests):
        assert answers[index]["model"] == model and answers[index]["usage"]["completion_tokens"] == count
        assert answers[index]["choices"][0]["message"]["content"].startswith("\U0001f600")
    until(lambda: not served.engine.queue.busy)

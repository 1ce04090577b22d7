"""/v1/completions continues a text or token ids without a template, and draft tokens of the client are verified."""

import json
from typing import Any

import openai
import pytest

from serving.protocol import MAX_DRAFT_TOKENS, MAX_TEXT
from tests.serving.conftest import CYCLE_TEXT, TOKEN, Served
from tests.serving.test_chat import stream as chat_stream
from tests.serving.test_refusals import refused

pytestmark = pytest.mark.integration

PROMPT = "Say it\n"


def completion_request(model: str = "cycle", **parameters: Any) -> dict[str, Any]:
    return {"model": model, "prompt": PROMPT, "max_tokens": 40, "return_token_ids": True, **parameters}


def complete(served: Served, **parameters: Any) -> dict[str, Any]:
    with served.client() as client:
        response = client.post("/v1/completions", json=completion_request(**parameters))
    assert response.status_code == 200, response.text
    return response.json()


def test_a_text_its_ids_and_a_list_of_one_prompt_are_continued_alike(served: Served) -> None:
    response = complete(served)
    choice = response["choices"][0]
    assert response["object"] == "text_completion" and response["id"].startswith("cmpl-")
    assert choice["text"].startswith(CYCLE_TEXT + CYCLE_TEXT) and choice["finish_reason"] == "length"
    assert choice["logprobs"] is None and len(choice["token_ids"]) == response["usage"]["completion_tokens"] == 40
    ids = choice["prompt_token_ids"]
    assert len(ids) == response["usage"]["prompt_tokens"]
    for prompt in (ids, [PROMPT], [ids]):
        again = complete(served, prompt=prompt)["choices"][0]
        assert (again["text"], again["prompt_token_ids"]) == (choice["text"], ids)


def test_openais_client_gets_whole_and_streamed_completions(served: Served) -> None:
    with openai.OpenAI(base_url=f"{served.url}/v1", api_key=TOKEN) as client:
        request: Any = {"model": "cycle@right", "prompt": PROMPT, "max_tokens": 40, "stop": [" over"]}
        whole = client.completions.create(**request)
        chunks = list(client.completions.create(**request, stream=True, stream_options={"include_usage": True}))
    text = "".join(choice.text for chunk in chunks for choice in chunk.choices)
    assert text == whole.choices[0].text == CYCLE_TEXT.partition(" over")[0]
    assert chunks[-2].choices[0].finish_reason == whole.choices[0].finish_reason == "stop"
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens
    assert chunks[0].speculation["kind"] == "prefill" and {chunk.object for chunk in chunks} == {"text_completion"}


def test_sixteen_tokens_are_the_default_and_a_seed_repeats_a_sample(served: Served) -> None:
    assert complete(served, max_tokens=None)["usage"]["completion_tokens"] == 16
    sampled = {"temperature": 1.5, "top_p": 0.95, "seed": 3}
    assert complete(served, **sampled)["choices"] == complete(served, **sampled)["choices"]


@pytest.mark.parametrize("model", ["cycle", "cycle@right", "cycle@wrong"])
def test_draft_tokens_are_verified_in_one_forward_and_change_no_token(served: Served, model: str) -> None:
    plain = complete(served)["choices"][0]
    ids = plain["token_ids"]
    for sent, accepted in ((ids, 40), ([*ids[:25], ids[24], *ids[26:]], 25), (ids[1:], 0), (ids[:1], 1)):
        response = complete(served, model=model, draft_tokens=sent)
        summary, details = response["speculation_summary"], response["usage"]["completion_tokens_details"]
        assert response["choices"][0]["token_ids"] == ids and response["choices"][0]["text"] == plain["text"]
        assert (summary["draft_tokens"], summary["accepted_draft_tokens"]) == (len(sent), accepted)
        assert details["accepted_prediction_tokens"] == accepted
        assert details["rejected_prediction_tokens"] == len(sent) - accepted
    without = complete(served, model=model)
    assert "draft_tokens" not in json.dumps(without) and "completion_tokens_details" not in without["usage"]


def test_a_chats_draft_tokens_are_in_its_trace(served: Served) -> None:
    ids = [i for chunk in chat_stream(served, return_token_ids=True) for i in chunk["choices"][0]["token_ids"]]
    chunks = chat_stream(served, draft_tokens=ids[:20])
    first, second, third = (chunk["speculation"] for chunk in chunks[:3])
    assert (first["kind"], second["kind"], third["kind"]) == ("prefill", "verify", "plain")
    assert second["draft"]["tokens"] == ids[1:20] and len(second["accepted"]) == 19 and len(second["tokens"]) == 20
    summary = chunks[-1]["speculation_summary"]
    assert summary["accepted_draft_tokens"] == 20 and summary["drafter"] == "client" and not summary["notices"]


BAD = [
    ({"prompt": ""}, "prompt", "expected one text or one list"),
    ({"prompt": []}, "prompt", "expected one text or one list"),
    ({"prompt": ["a", "b"]}, "prompt", "expected one text or one list"),
    ({"prompt": [1, "a"]}, "prompt", "expected one text or one list"),
    ({"prompt": [True]}, "prompt", "expected one text or one list"),
    ({"prompt": [-1]}, "prompt", "expected one text or one list"),
    ({"prompt": None}, "prompt", "expected one text or one list"),
    ({"prompt": {}}, "prompt", "expected one text or one list"),
    ({"prompt": [10**30]}, "prompt", "token ids of this model are 0 to"),
    ({"prompt": "x" * (MAX_TEXT + 1)}, "prompt", "longer than 1,000,000 characters"),
    ({"prompt": "a \ud83d b"}, "prompt", "unpaired surrogate"),
    ({"draft_tokens": "1 2 3"}, "draft_tokens", "expected a list of token ids"),
    ({"draft_tokens": [1, 2.0]}, "draft_tokens", "expected a list of token ids"),
    ({"draft_tokens": [1, None]}, "draft_tokens", "expected a list of token ids"),
    ({"draft_tokens": [-1]}, "draft_tokens", "expected a list of token ids"),
    ({"draft_tokens": [10**30]}, "draft_tokens", "token ids of this model are 0 to"),
    ({"draft_tokens": [1] * (MAX_DRAFT_TOKENS + 1)}, "draft_tokens", "expected at most 1,024 token ids, got 1,025"),
    ({"echo": True}, "echo", ""),
    ({"logprobs": 1}, "logprobs", ""),
    ({"best_of": 2}, "best_of", ""),
    ({"suffix": "x"}, "suffix", ""),
]


@pytest.mark.parametrize(("parameters", "field", "message"), BAD)
def test_a_bad_parameter_is_refused_in_one_sentence(
    served: Served, parameters: dict[str, Any], field: str, message: str
) -> None:
    body = json.dumps(completion_request(stream=True, **parameters))
    with served.client() as client:
        response = client.post("/v1/completions", content=body, headers={"Content-Type": "application/json"})
    error = refused(response, 400, "invalid_value")
    assert error["param"] == field and message in error["message"] and error["message"].count(". ") == 0


def test_a_prompt_too_long_for_the_model_is_refused(served: Served) -> None:
    with served.client() as client:
        response = client.post("/v1/completions", json=completion_request(prompt=[5] * 8192, stream=True))
    assert refused(response, 400, "context_length_exceeded")["param"] == "prompt"

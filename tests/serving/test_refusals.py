"""Everything the server refuses comes in OpenAI's error shape with the right status, and nothing runs."""

import json
from typing import Any

import httpx
import pytest

from serving.protocol import MAX_TEXT
from tests.serving.conftest import TOKEN, Served

pytestmark = pytest.mark.integration


def refused(response: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check the shape of an error response; returns its error object."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["code"] == code
    assert error["message"] and "Traceback" not in error["message"]
    return error


def post(served: Served, **parameters: Any) -> httpx.Response:
    with served.client() as client:
        return client.post("/v1/chat/completions", json=served.chat_request(**parameters))


@pytest.mark.parametrize(
    "model", ["nothing", "nothing@right", "cycle@nothing", "unready", "cycle@unready", "org/cycle2@right"]
)
def test_an_unknown_or_unready_model_is_not_found(served: Served, model: str) -> None:
    error = refused(post(served, model=model), 404, "model_not_found")
    assert error["param"] == "model" and error["type"] == "invalid_request_error"


@pytest.mark.parametrize("streaming", [False, True])
def test_an_over_long_prompt_is_refused_before_the_stream_begins(served: Served, streaming: bool) -> None:
    error = refused(post(served, text="word " * 9000, stream=streaming), 400, "context_length_exceeded")
    assert error["param"] == "messages" and "8192" in error["message"]


def test_an_answer_that_would_not_fit_is_cut_where_the_context_ends(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert post(served, model="cycle@right").status_code == 200
    for base in served.engine.pool._bases.values():
        monkeypatch.setattr(base.target, "max_length", 100)
    response = post(served, model="cycle@right", max_tokens=500).json()
    assert response["choices"][0]["finish_reason"] == "length"
    assert response["usage"]["total_tokens"] <= 100
    assert any("context is full" in notice for notice in response["speculation_summary"]["notices"])


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"temperature": -1}, "temperature"),
        ({"temperature": "hot"}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_p": 1.5}, "top_p"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"n": 2}, "n"),
        ({"stop": ["a"] * 5}, "stop"),
        ({"stop": [""]}, "stop"),
        ({"seed": "x"}, "seed"),
        ({"seed": 2**70}, "seed"),
        ({"messages": []}, "messages"),
        ({"messages": "hello"}, "messages"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages.0.role"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]}, "messages.0.content"),
        ({"messages": [{"role": "system", "content": "only rules"}]}, "body"),
        ({"messages": [{"role": "user", "content": "x" * (MAX_TEXT + 1)}]}, "body"),
        ({"logprobs": True}, "logprobs"),
        ({"frequency_penalty": 0.5}, "frequency_penalty"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"speculation": {"tree": [[0, "x"]]}}, "speculation"),
        ({"speculation": {"depth": 100000}}, "speculation"),
        ({"speculation": {"depth": "deep"}}, "speculation"),
        ({"speculation": {"drafter": ["ngram"]}}, "speculation"),
        ({"speculation": "fast"}, "speculation"),
    ],
)
def test_a_bad_parameter_is_named(served: Served, parameters: dict[str, Any], field: str) -> None:
    error = refused(post(served, **parameters), 400, "invalid_value")
    assert error["param"].startswith(field)


HALF = "a \ud83d b"


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": HALF}]}]}, "messages"),
        ({"metadata": {"a": [HALF]}}, "metadata"),
        ({HALF: 1}, "a \\ud83d b"),
    ],
)
def test_an_unpaired_surrogate_is_refused_by_field(served: Served, parameters: dict[str, Any], field: str) -> None:
    body = json.dumps({**served.chat_request(), **parameters})  # httpx itself could not send it
    with served.client() as client:
        headers = {"Content-Type": "application/json"}
        response = client.post("/v1/chat/completions", content=body, headers=headers)
    error = refused(response, 400, "invalid_value")
    assert error["param"] == field and error["message"].startswith(f"{field}: contains an unpaired surrogate")


@pytest.mark.parametrize("path", ["/v1/models/%ED%A0%80", "/v1/runs/%ED%A0%80", "/v1/runs/%ED%A0%80/cancel"])
def test_an_unpaired_surrogate_in_an_address_is_not_found(served: Served, path: str) -> None:
    with served.client() as client:
        response = client.get(path) if "models" in path else client.post(path)
    assert response.status_code == 404 and response.json()["error"]["message"]


def test_an_unknown_parameter_is_refused_not_ignored(served: Served) -> None:
    assert refused(post(served, beam_width=4), 400, "unknown_parameter")["param"] == "beam_width"


def test_parameters_that_change_nothing_are_accepted(served: Served) -> None:
    fields = {"user": "me", "metadata": {"a": "b"}, "store": False, "n": 1, "frequency_penalty": 0.0, "logprobs": False}
    assert post(served, **fields).status_code == 200


@pytest.mark.parametrize(
    "speculation",
    [{"drafter": "magic"}, {"drafter": "medusa"}, {"drafter": "ngram", "color": 3}, {"drafter": "ngram", "depth": 1.5}],
)
def test_an_unknown_drafter_or_option_is_refused_in_words(served: Served, speculation: dict[str, Any]) -> None:
    refused(post(served, speculation=speculation), 400, "bad_input")


def test_a_draft_requested_as_an_option_is_refused_with_a_hint(served: Served) -> None:
    response = post(served, speculation={"checkpoint": "right"})
    assert response.status_code == 400 and "base@draft" in response.json()["error"]["message"]


def test_a_tree_deeper_than_the_heads_is_refused(served: Served) -> None:
    error = refused(post(served, model="cycle@right", speculation={"tree": [[0, 0, 0, 0, 0]]}), 400, "bad_input")
    assert "shallower" in error["message"]


@pytest.mark.parametrize("body", [b"{broken", b"", b"[" * 100_000, b"\xff\xfe", b"[]"])
def test_a_body_that_is_no_request_is_refused(served: Served, body: bytes) -> None:
    with served.client() as client:
        headers = {"Content-Type": "application/json"}
        response = client.post("/v1/chat/completions", content=body, headers=headers)
    assert response.status_code == 400 and response.json()["error"]["message"]


def test_a_huge_body_is_refused_unread(served: Served) -> None:
    with served.client() as client:
        assert client.post("/v1/chat/completions", content=b"x" * (9 * 2**20)).status_code == 413


@pytest.mark.parametrize(
    "authorization", [None, "", "Bearer", "Bearer wrong", f"Basic {TOKEN}", f"Bearer {TOKEN}x", TOKEN]
)
@pytest.mark.parametrize("path", ["/v1/models", "/v1/chat/completions", "/v1/runs/x", "/v1/nothing"])
def test_everything_under_v1_needs_the_token(served: Served, authorization: str | None, path: str) -> None:
    headers = {} if authorization is None else {"Authorization": authorization}
    with httpx.Client(base_url=served.url, headers=headers) as client:
        response = client.post(path, content=b"{") if path != "/v1/models" else client.get(path)
    error = refused(response, 401, "invalid_api_key")
    assert error["type"] == "authentication_error" and response.headers["www-authenticate"] == "Bearer"
    assert TOKEN not in response.text


def test_health_needs_no_token_and_names_no_model(served: Served) -> None:
    with httpx.Client(base_url=served.url) as client:
        response = client.get("/healthz")
    assert response.status_code == 200 and response.json()["status"] == "ok"
    assert "cycle" not in response.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "evil.example:7861"},
        {"Origin": "null"},
        {"Origin": "https://evil.example"},
        {"Origin": "http://127.0.0.1:7860"},
        {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"},
    ],
)
def test_foreign_hosts_and_origins_are_refused_even_with_the_token(served: Served, headers: dict[str, str]) -> None:
    with served.client() as client:
        refused(client.post("/v1/chat/completions", json=served.chat_request(), headers=headers), 403, "refused")


def test_unknown_addresses_and_methods_are_refused_in_the_same_shape(served: Served) -> None:
    with served.client() as client:
        refused(client.get("/v1/nothing"), 404, "unknown_url")
        refused(client.get("/docs"), 404, "unknown_url")
        refused(client.get("/v1/chat/completions"), 405, "refused")


@pytest.mark.parametrize("stop", [[1] * 100_000, [[["a"] * 500] * 200]])
def test_a_body_of_very_many_values_is_refused_before_they_are_validated(served: Served, stop: list[Any]) -> None:
    """A million wrong values gave a million errors, which blocked every other request for a minute."""
    error = refused(post(served, stop=stop), 400, "invalid_value")
    assert "at most 50,000 values" in error["message"]

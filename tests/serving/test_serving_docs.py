"""docs/serving.md names every parameter, every figure and every error code there is."""

import re

from serving.protocol import ChatRequest, CompletionRequest
from speculoos.settings import PROJECT_ROOT
from tests.serving.conftest import Served

TEXT = (PROJECT_ROOT / "docs" / "serving.md").read_text()


def test_every_parameter_is_named() -> None:
    refused = {"frequency_penalty", "presence_penalty", "logprobs", "response_format"}
    missing = [
        name
        for name in ChatRequest.model_fields | CompletionRequest.model_fields
        if f"`{name}`" not in TEXT and name not in refused
    ]
    assert not missing


def test_every_figure_of_the_summary_is_named(served: Served) -> None:
    with served.client() as client:
        answer = client.post("/v1/chat/completions", json=served.ask("cycle@right")).json()
    missing = [name for name in answer["speculation_summary"] if f"`{name}`" not in TEXT]
    assert not missing


def test_every_error_code_is_named() -> None:
    sources = "".join(path.read_text() for path in (PROJECT_ROOT / "serving").glob("*.py"))
    codes = set(re.findall(r'ApiError\(\s*\d+,.*?"([a-z]+_[a-z_]+)"', sources, re.DOTALL))
    assert {"model_not_found", "context_length_exceeded", "device_busy"} <= codes
    assert not [code for code in codes - {"internal_error", "unknown_url"} if f"`{code}`" not in TEXT]

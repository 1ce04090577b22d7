"""The starter base on the server gives the same real text with and without drafts."""

from collections.abc import Iterator
from typing import Any

import pytest

from models.fetch import STARTER_WEIGHTS_SHA256
from models.starter import starter_path
from tests.serving.conftest import Served, more_bases, ready_base

pytestmark = pytest.mark.integration

QUESTION = "Repeat this sentence three times: The quick brown fox jumps over the lazy dog."


@pytest.fixture(scope="module")
def real(served: Served) -> Iterator[Served]:
    if not (starter_path() / "model.safetensors").exists():
        pytest.fail("the starter base is not there; run `make install`")
    with more_bases(served, ready_base("starter", starter_path(), STARTER_WEIGHTS_SHA256)):
        yield served


def complete(served: Served, messages: list[dict[str, str]], **parameters: Any) -> dict[str, Any]:
    with served.client() as client:
        body = {"model": "starter", "messages": messages, "max_tokens": 28, **parameters}
        response = client.post("/v1/chat/completions", json=body, timeout=300)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.real
def test_the_starter_gives_the_same_text_with_drafts_and_reuses_the_chat(
    real: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("speculoos.cpu_load.MIN_CPU_SECONDS", 0.01)  # a fast machine answers in less than the usual
    first = [{"role": "user", "content": QUESTION}]
    plain = complete(real, first)
    drafted = complete(real, first, speculation={"drafter": "ngram"})
    text = plain["choices"][0]["message"]["content"]
    assert "quick brown fox" in text
    assert drafted["choices"][0]["message"]["content"] == text
    summary = drafted["speculation_summary"]
    assert summary["mean_accepted_length"] > 1.2 and 0 <= summary["other_load"] <= 1
    second = [*first, {"role": "assistant", "content": text}, {"role": "user", "content": "Thank you."}]
    usage = complete(real, second, max_tokens=5)["usage"]
    assert usage["prompt_tokens_details"]["cached_tokens"] > plain["usage"]["prompt_tokens"]

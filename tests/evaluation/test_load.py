"""Load measurements of separate server processes: concurrent streams with and without a draft, alternating."""

import random
import threading
from dataclasses import replace
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import openai
import pytest

from evaluation import load
from evaluation.load import LoadSide, TimedAnswer, measure_loads
from evaluation.served import ServedRequest, evaluate_served
from speculoos.errors import BadInput, Cancelled
from speculoos.loads import requests_at, stops_paying_at, undecided, verdict
from speculoos.reporting import SilentReporter
from speculoos.settings import Endpoint
from tests.evaluation.test_served import QUESTIONS, TAU, LogReporter, Start, start  # noqa: F401
from tests.workers.holds import ANSWERS, hold

SECONDS = {("drafted", 1): 0.03, ("drafted", 2): 0.03, ("drafted", 4): 0.24}
"""{(model, concurrent requests): seconds of a request}."""
PLAIN_SECONDS = 0.09


@pytest.fixture
def exact_times(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests are sent and answered, but their times are those of SECONDS: measured ones depend on the machine."""
    measure_round, stream = load._measure_round, load._stream
    current = {"load": 0}

    def measure(side: LoadSide, requests: Any, concurrency: int, reporter: Any) -> None:
        current["load"] = concurrency
        measure_round(side, requests, concurrency, reporter)

    def timed(client: Any, request: dict[str, Any], stopped: threading.Event) -> TimedAnswer | None:
        seconds = SECONDS[request["model"], current["load"]] if request["model"] == "drafted" else PLAIN_SECONDS
        answer = stream(client, request, stopped)
        return answer and replace(answer, first=seconds / 3, last=seconds, seconds=seconds)

    monkeypatch.setattr(load, "_measure_round", measure)
    monkeypatch.setattr(load, "_stream", timed)


def most_at_once(endpoint: Endpoint) -> int:
    return httpx.get(endpoint.url.replace("/v1", "/most")).json()["most"]


@pytest.mark.integration
@pytest.mark.usefixtures("exact_times")
@pytest.mark.parametrize("kind", ["vllm", "vllm_each", "llamacpp"])
def test_a_server_that_is_slower_with_its_draft_at_four_requests(start: Start, kind: str) -> None:  # noqa: F811
    endpoint, done = start(kind), []

    class Counting(LogReporter):
        def progress(self, number: int, total: int | None, unit: str, note: str = "") -> None:
            done.append((number, total))

    result = evaluate_served(
        endpoint, QUESTIONS, Counting(), ServedRequest(16), plain_model="plain", concurrency=[4, 1]
    )
    assert most_at_once(endpoint) >= 4
    assert result["mean_accepted_length"] == pytest.approx(TAU, abs=1e-3), "the questions one after the other, as usual"
    one, four = result["loads"]
    assert (one["concurrency"], four["concurrency"]) == (1, 4)
    assert (one["speedup"], one["speedup_interval"]) == (3, [3, 3])
    assert (four["speedup"], four["speedup_interval"]) == (0.375, [0.375, 0.375]) and result["stops_paying_at"] == 4
    assert (one["drafted"]["requests"], four["drafted"]["requests"], four["plain"]["requests"]) == (4, 16, 16)
    for side in (one["drafted"], four["drafted"]):
        assert side["mean_accepted_length"] == pytest.approx(TAU, abs=0.01) and side["failed"] == 0
        assert side["acceptance_by_depth"] == pytest.approx([1.0, 2 / 3], abs=0.01)
    assert one["drafted"]["ttft"] == [10, 10] and one["plain"]["ttft"] == [30, 30], "milliseconds"
    assert one["drafted"]["inter_token"] == pytest.approx([20 / 7] * 2, abs=0.01)
    assert one["plain"]["mean_accepted_length"] is None
    assert one["drafted"]["tokens_per_second"] == pytest.approx(8 / 0.03, abs=0.01)
    assert four["plain"]["tokens_per_second"] == pytest.approx(4 * 8 / 0.09, abs=0.01)
    assert done == sorted(done) and done[-1] == (6, 6)


@pytest.mark.integration
def test_an_answer_is_timed_at_its_first_and_last_text_and_at_its_end(
    start: Start,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream has three texts and a last chunk without text; the clock advances by a second whenever it is read."""
    monkeypatch.setattr(load, "time", SimpleNamespace(perf_counter=count().__next__))
    client = openai.OpenAI(base_url=start("vllm").url, api_key="none", max_retries=0)
    answer = load._stream(client, {"model": "drafted", "messages": QUESTIONS[1]["messages"]}, threading.Event())
    assert answer and (answer.tokens, answer.first, answer.last, answer.seconds) == (8, 1, 3, 4)


@pytest.mark.integration
@pytest.mark.usefixtures("exact_times")
def test_a_server_of_its_own_without_the_draft_and_one_that_publishes_nothing(start: Start) -> None:  # noqa: F811
    drafted, other = start("silent"), start("llamacpp")
    plain = Endpoint("plain", other.url, "", "plain", retries=0)
    result = evaluate_served(drafted, QUESTIONS, SilentReporter(), plain_endpoint=plain, concurrency=[2])
    assert result["speedup"] > 1 and result["mean_accepted_length"] is None
    (two,) = result["loads"]
    assert two["drafted"]["mean_accepted_length"] is None and two["drafted"]["acceptance_by_depth"] == []
    assert two["speedup_interval"] == [3, 3] and result["stops_paying_at"] is None
    assert most_at_once(other) >= 2
    alone = evaluate_served(drafted, QUESTIONS, SilentReporter(), concurrency=[2])["loads"]
    assert alone[0]["plain"] is alone[0]["speedup"] is alone[0]["speedup_interval"] is None
    assert alone[0]["drafted"]["tokens_per_second"] > 0 and verdict(alone) == ""


@pytest.mark.integration
def test_a_load_that_the_server_refuses_is_reported_and_the_others_are_kept(
    start: Start,  # noqa: F811
    tmp_path: Path,
) -> None:
    endpoint = start("vllm_each")

    class Releasing(LogReporter):
        """Ends the hold once a request has been refused."""

        def stop_requested(self) -> bool:
            if most_at_once(endpoint) > 8:
                (tmp_path / ANSWERS).unlink(missing_ok=True)
            return False

    reporter = Releasing()
    with hold(tmp_path, ANSWERS, 9):  # the load of one has eight requests
        result = evaluate_served(endpoint, QUESTIONS, reporter, plain_model="plain", concurrency=[1, 16])
    one, sixteen = result["loads"]
    assert one["drafted"]["failed"] == 0 and sixteen["drafted"]["failed"] > 0
    assert any("At 16 concurrent requests" in line and "429 too many requests" in line for line in reporter.lines)
    assert sixteen["speedup"] is None or sixteen["drafted"]["requests"] > 0


@pytest.mark.integration
def test_broken_streams_are_failures(start: Start) -> None:  # noqa: F811
    rows = [*QUESTIONS, {"id": "c", "messages": [{"role": "user", "content": "fail late"}]}]
    reporter = LogReporter()
    (two,) = evaluate_served(start("vllm_each"), rows, reporter, concurrency=[2])["loads"]
    assert two["drafted"]["failed"] >= 1 and two["drafted"]["requests"] + two["drafted"]["failed"] == 8
    assert any("requests failed: out of memory" in line for line in reporter.lines)


@pytest.mark.integration
def test_a_stop_request_is_obeyed_during_a_load(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    monkeypatch.setattr(load, "POLL_SECONDS", 0.01)
    endpoint = start("vllm")

    class Stopping(SilentReporter):
        def stop_requested(self) -> bool:
            return most_at_once(endpoint) > 0

    with pytest.raises(Cancelled):
        evaluate_served(endpoint, QUESTIONS, Stopping(), concurrency=[2])
    assert not [thread for thread in threading.enumerate() if "(work)" in thread.name]


@pytest.mark.integration
def test_an_endpoint_with_a_limit_on_requests_is_refused(start: Start) -> None:  # noqa: F811
    endpoint = start("vllm")
    limited = Endpoint("limited", endpoint.url, "", "drafted", requests_per_minute=5)
    with pytest.raises(BadInput, match="limited has requests_per_minute"):
        evaluate_served(limited, QUESTIONS, SilentReporter(), concurrency=[2])


def timed_answer(seconds: float) -> TimedAnswer:
    return TimedAnswer(10, 0.1, seconds, seconds)


def test_noise_of_whole_rounds_is_in_the_interval() -> None:
    """The draft makes it 1.25 times as fast; in one round of four the machine ran at half speed with the draft."""
    noise = random.Random(0)
    drafted, plain = LoadSide(None), LoadSide(None)
    for slow in (1, 1, 2, 1):
        drafted.rounds.append([timed_answer(0.8 * slow * noise.uniform(0.98, 1.02)) for _ in range(8)])
        plain.rounds.append([timed_answer(noise.uniform(0.98, 1.02)) for _ in range(8)])
    value, (low, high) = load._speedup(drafted, plain)
    assert value == pytest.approx(1 / (0.8 * 1.25), abs=0.02) and low < 0.8 and high > 1.2
    drafted.rounds[2] = [None] * 8
    value, (low, high) = load._speedup(drafted, plain)
    assert 1.22 < low < value < high < 1.28, "failed requests are left out on both sides"
    assert load._speedup(LoadSide(None, rounds=[[None]]), LoadSide(None, rounds=[[timed_answer(1)]])) == (None, None)


def loads_of(*speedups: Any) -> list[dict[str, Any]]:
    return [{"concurrency": 4**n, "speedup_interval": interval} for n, interval in enumerate(speedups)]


def test_there_is_no_verdict_on_loads_that_were_not_tried() -> None:
    assert stops_paying_at(loads_of([1.2, 1.3], [0.9, 1.1], [0.5, 0.9])) == 16
    assert stops_paying_at(loads_of([1.2, 1.3], [0.9, 1.1], None)) is None
    assert undecided(loads_of([1.2, 1.3], [0.9, 1.1], None)) == [4]
    assert verdict(loads_of([1.2, 1.3], [1.01, 1.1])) == "Decoding with the draft is faster at every load tried."
    assert "at 4 concurrent requests the interval contains 1" in verdict(loads_of([1.2, 1.3], [0.9, 1.1]))
    assert verdict(loads_of([0.5, 0.9])).startswith("Decoding with the draft is slower at 1 concurrent")
    assert [requests_at(load, 20) for load in (1, 4, 16)] == [20, 20, 64] and requests_at(1, 3) == 4


def test_without_loads_nothing_is_measured() -> None:
    assert measure_loads(LoadSide(None), None, [], [], SilentReporter(), lambda done: None) == []

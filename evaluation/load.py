"""Throughput and latency of a server at several loads, with and without its draft.

A load is a number of concurrent streaming requests. Each load has ROUNDS rounds; a round sends the same prompts with
and without the draft, in alternating order, so that noise of the machine affects both. While a side is measured, the
load stays constant: when fewer prompts than requests are left, further requests are sent and not counted.

With a constant load c, the throughput is c · tokens / seconds, summed over requests (Little's law). The speedup is the
ratio of both throughputs; its interval comes from a bootstrap in two stages: rounds, then the requests of each round
(Davison & Hinkley 1997, section 3.8).
"""

import itertools
import json
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
import numpy as np
import openai

from corpus.endpoints import Server, short_error
from evaluation.estimate import DRAWS, INTERVAL_PERCENTILES, SEED
from evaluation.published import PublishedAcceptance, acceptance_of_answer, undrafted_answer
from speculoos.loads import ROUNDS, requests_at
from speculoos.reporting import Reporter, check_stop

POLL_SECONDS = 0.25
REQUEST_ERRORS = (openai.OpenAIError, httpx.HTTPError, ValueError)  # ValueError: an invalid response


@dataclass(frozen=True)
class TimedAnswer:
    """One streamed answer: generated tokens; seconds from the request to the first text, last text and end."""

    tokens: int
    first: float
    last: float
    seconds: float
    acceptance: PublishedAcceptance | None = None
    if_undrafted: PublishedAcceptance | None = None


@dataclass
class LoadSide:
    """A model on a server, and its answers at the current load, by round. `counters` reads the server's counters."""

    server: Server
    counters: Callable[[], PublishedAcceptance | None] | None = None
    rounds: list[list[TimedAnswer | None]] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    """Why requests failed."""
    counted: list[PublishedAcceptance] = field(default_factory=list)


def measure_loads(
    drafted: LoadSide,
    plain: LoadSide | None,
    requests: Sequence[dict[str, Any]],
    concurrency: Iterable[int],
    reporter: Reporter,
    progress: Callable[[float], None],
) -> list[dict[str, Any]]:
    """Figures of each load, ascending: `concurrency`, `drafted` and `plain` (see `_figures`, None if not measured),
    `speedup` and `speedup_interval`. `requests` are the fields of chat completions; `progress` gets the number of
    finished loads. Raises Cancelled; at a load where all requests fail, the figures are None."""
    sides = [side for side in (drafted, plain) if side is not None]
    loads = []
    for done, load in enumerate(sorted(set(concurrency))):
        for side in sides:
            side.rounds, side.reasons, side.counted = [], [], []
        phases = 0
        for number, chunk in enumerate(_rounds(requests, load)):
            for side in sides if number % 2 == 0 else reversed(sides):
                _measure_round(side, chunk, load, reporter)
                phases += 1
                progress(done + phases / (ROUNDS * len(sides)))
            if all(answer is None for side in sides for answer in side.rounds[-1]):
                break  # the server refuses this load
        figures = [_figures(side, load) for side in sides]
        for side in sides:
            if side.reasons:
                message = f"{len(side.reasons)} of {requests_at(load, len(requests))} requests failed"
                reporter.log(f"At {load} concurrent requests, {message}: {side.reasons[0]}", "warning")
        value, interval = _speedup(drafted, plain) if plain else (None, None)
        loads.append(
            {
                "concurrency": load,
                "drafted": figures[0],
                "plain": figures[1] if plain else None,
                "speedup": value,
                "speedup_interval": interval,
            }
        )
    return loads


def _rounds(requests: Sequence[dict[str, Any]], load: int) -> list[list[dict[str, Any]]]:
    """ROUNDS lists of requests of equal length, at least `load`; requests are repeated if there are too few."""
    size = requests_at(load, len(requests)) // ROUNDS
    source = itertools.cycle(requests)
    return [list(itertools.islice(source, size)) for _ in range(ROUNDS)]


def _measure_round(side: LoadSide, requests: Sequence[dict[str, Any]], load: int, reporter: Reporter) -> None:
    """Send `requests`, `load` at a time. Raises Cancelled."""
    before = side.counters() if side.counters else None
    answers: list[TimedAnswer | None] = [None] * len(requests)
    numbers, remaining, lock = itertools.count(), len(requests), threading.Lock()
    stopped, finished = threading.Event(), threading.Event()
    client = side.server.client.with_options(max_retries=0)  # a retry would be included in the measured time

    def work() -> None:
        nonlocal remaining
        while not finished.is_set():
            number = next(numbers)
            is_counted = number < len(requests)
            try:
                request = {"model": side.server.model, **requests[number % len(requests)]}
                answer = _stream(client, request, stopped if is_counted else finished)
            except REQUEST_ERRORS as error:
                if not is_counted:
                    return
                side.reasons.append(short_error(error))
            else:
                if is_counted:
                    answers[number] = answer
            if is_counted:
                with lock:
                    remaining -= 1
                    if remaining == 0:
                        finished.set()

    threads = [threading.Thread(target=work, daemon=True) for _ in range(load)]
    for thread in threads:
        thread.start()
    while not finished.wait(POLL_SECONDS):
        if reporter.stop_requested():
            stopped.set()
            finished.set()
    for thread in threads:
        thread.join()
    check_stop(reporter)
    side.rounds.append(answers)
    if before and side.counters and (after := side.counters()):
        side.counted.append(after - before)


def _stream(client: openai.OpenAI, request: dict[str, Any], stopped: threading.Event) -> TimedAnswer | None:
    """The answer to a streaming chat completion; None once `stopped` is set. Lines are parsed here, because creating
    the client's own objects takes as long as a small server's tokens."""
    body: dict[str, Any] = {}
    first = last = 0.0
    started = time.perf_counter()
    with _create(client, request) as response:
        for line in response.iter_lines():
            if stopped.is_set():
                return None
            if not line.startswith("data:") or (data := line[5:].strip()) == "[DONE]":
                continue
            chunk = json.loads(data)
            if chunk.get("error"):
                raise ValueError(str(chunk["error"].get("message") if isinstance(chunk["error"], dict) else "error"))
            if _has_text(chunk):
                last = time.perf_counter() - started
                first = first or last
            body.update({key: value for key, value in chunk.items() if value})  # the last one has the metrics
    seconds = time.perf_counter() - started
    tokens = (body.get("usage") or {}).get("completion_tokens")
    if type(tokens) is not int or tokens < 1:
        raise ValueError("a stream without its number of tokens (usage)")
    return TimedAnswer(
        tokens, first or seconds, last or seconds, seconds, acceptance_of_answer(body), undrafted_answer(body)
    )


@contextmanager
def _create(client: openai.OpenAI, request: dict[str, Any]) -> Iterator[Any]:
    """A streaming chat completion. Repeated once, immediately, if the connection fails: a server may close an idle
    connection just when it is reused."""
    create = client.chat.completions.with_streaming_response.create
    fields = {**request, "stream": True, "stream_options": {"include_usage": True}}
    with ExitStack() as stack:
        try:
            response = stack.enter_context(create(**fields))
        except openai.APITimeoutError:
            raise
        except openai.APIConnectionError:
            response = stack.enter_context(create(**fields))
        yield response


def _has_text(chunk: dict[str, Any]) -> bool:
    """Whether a chunk has text of the answer or of its reasoning."""
    choices = chunk.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return any(delta.get(key) for key in ("content", "reasoning_content", "reasoning", "tool_calls"))


def _figures(side: LoadSide, load: int) -> dict[str, Any] | None:
    """`tokens_per_second` of all requests together; `ttft` and `inter_token` in milliseconds, each [median, 95th
    percentile] over requests; τ (None) and acceptance by depth ([] if not published) of the answers, else of the
    counters, which include uncounted requests; numbers of answered and failed requests. The inter-token latency of a
    request is the mean over its tokens, since a step with a draft emits several at once."""
    answers = [answer for answers in side.rounds for answer in answers if answer]
    if not answers:
        return None
    gaps = [(each.last - each.first) / (each.tokens - 1) for each in answers if each.tokens > 1]
    counted = sum(side.counted, PublishedAcceptance())
    acceptance = counted
    if any(each.acceptance for each in answers):
        acceptance = sum(filter(None, (a.acceptance or a.if_undrafted for a in answers)), PublishedAcceptance())
    return {
        "tokens_per_second": round(load * sum(a.tokens for a in answers) / sum(a.seconds for a in answers), 2),
        "ttft": _percentiles([each.first for each in answers]),
        "inter_token": _percentiles(gaps),
        "mean_accepted_length": round(acceptance.tau, 4) if acceptance.is_known else None,
        "acceptance_by_depth": acceptance.rates or counted.rates,
        "requests": len(answers),
        "failed": len(side.reasons),
    }


def _percentiles(seconds: Sequence[float]) -> list[float] | None:
    """[median, 95th percentile] in milliseconds."""
    return [round(1000 * float(each), 2) for each in np.percentile(seconds, (50, 95))] if seconds else None


def _speedup(drafted: LoadSide, plain: LoadSide) -> tuple[float | None, list[float] | None]:
    """(speedup, 95 % interval) over the prompts that both sides answered."""
    rounds = []
    for ours, theirs in zip(drafted.rounds, plain.rounds, strict=True):
        pairs = [(a.tokens, a.seconds, b.tokens, b.seconds) for a, b in zip(ours, theirs, strict=True) if a and b]
        if pairs:
            rounds.append(np.array(pairs, dtype=float))
    if not rounds:
        return None, None
    value = float(_ratio(sum(rows.sum(0) for rows in rounds)))
    rng = np.random.default_rng(SEED)
    draws = []
    for _ in range(DRAWS):
        chosen = [rounds[index] for index in rng.integers(len(rounds), size=len(rounds))]
        draws.append(_ratio(sum(rows[rng.integers(len(rows), size=len(rows))].sum(0) for rows in chosen)))
    interval = [round(float(each), 3) for each in np.percentile(draws, INTERVAL_PERCENTILES)]
    return (round(value, 3), interval) if math.isfinite(value) else (None, None)


def _ratio(totals: Any) -> float:
    """Speedup from (tokens, seconds) with and without the draft."""
    return (totals[0] / totals[1]) / (totals[2] / totals[3])

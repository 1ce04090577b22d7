"""Replay: a draft judged on recorded outputs of its target, which need not be here. Greedy.

A step's drafted tokens are held against the recorded ones (Yan et al. 2024, *Decoding Speculative Decoding*, whose
demo does so for chains): accepted is the longest drafted path that was recorded. It is the ordinary loop on a target
that says what was recorded, so τ means what it means everywhere.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from corpus.recordings import Recording
from corpus.rows import BadRow
from decoding.config import GenerateConfig
from decoding.drafters.base import Drafter
from decoding.generate import generate
from decoding.recorded import ForcedTarget, RecordedTarget
from decoding.stats import summarize
from decoding.step import Step
from decoding.text import TextStream, piece_reader
from evaluation.breakdown import Prompt, breakdown, worst_first
from evaluation.costs import Costs
from evaluation.estimate import StepTiming, estimate, milliseconds
from evaluation.shapes import CHAIN, PLAIN, TREE, DraftShape
from models.chat import render
from speculoos.errors import BadInput, Cancelled, SpeculoosError
from speculoos.reporting import Reporter, check_stop


@dataclass(frozen=True)
class Replayed:
    """One recording and the steps in which a draft would have reached its end."""

    recording: Recording
    prompt: list[int]
    steps: list[Step]


@dataclass
class ReplayResult:
    """What came of the recordings; `skipped` are ids with why they were left out."""

    rows: list[Replayed] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def steps(self) -> list[Step]:
        return [step for row in self.rows for step in row.steps]


def ids_of(recording: Recording, tokenizer: Any, eos_ids: frozenset[int]) -> tuple[list[int], list[int]]:
    """(prompt, output) as token ids: recorded ones as they are, texts through the tokenizer (and, unless the prompt is
    raw, its chat template), with the end-of-turn token where the output ended by itself."""
    text = recording.messages[-1]["content"] if recording.raw else ""
    prompt = recording.prompt_ids
    if prompt is None:
        prompt = _ids(tokenizer, text) if recording.raw else render(tokenizer, recording.messages)
    if recording.token_ids is not None:
        return list(prompt), list(recording.token_ids)
    output = tokenizer(recording.output, add_special_tokens=False)["input_ids"]
    if recording.raw and (whole := _ids(tokenizer, text + recording.output))[: len(prompt)] == prompt:
        output = whole[len(prompt) :]
    ends = recording.finish == "stop" and tokenizer.eos_token_id in eos_ids
    return list(prompt), [*output, *([tokenizer.eos_token_id] if ends else [])]


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [int(i) for i in tokenizer(text)["input_ids"]]


def replay(
    recordings: Iterable[Recording | BadRow],
    target: ForcedTarget | RecordedTarget,
    make: Callable[[], Drafter],
    reporter: Reporter,
    total: int | None = None,
    max_tokens: int | None = None,
) -> ReplayResult:
    """Draft along every recording (its first `max_tokens` tokens), each with a drafter of its own.

    Rows that do not fit are logged and left out; raises BadInput when none is left, Cancelled between rows.
    """
    done = ReplayResult()
    for number, row in enumerate(recordings, 1):
        check_stop(reporter)
        if isinstance(row, BadRow):
            _skip(done, reporter, f"line {row.line}", row.reason)
            continue
        try:
            prompt, output = ids_of(row, target.base.tokenizer, target.base.eos_ids)
            done.rows.append(Replayed(row, prompt, _steps(target, make(), prompt, output[:max_tokens], reporter)))
        except Cancelled:
            raise
        except SpeculoosError as error:
            _skip(done, reporter, row.id, str(error))
        note = f"τ {summarize(done.steps).mean_accepted_length:.2f}"
        reporter.progress(number, total, "recordings", note)
    if not done.rows:
        why = f" The first: {done.skipped[0][1]}" if done.skipped else ""
        raise BadInput(f"There is no recording that can be replayed.{why}")
    return done


def _skip(done: ReplayResult, reporter: Reporter, name: str, why: str) -> None:
    done.skipped.append((name, why))
    reporter.log(f"{name}: left out, {why}", "warning")


def _steps(
    target: ForcedTarget | RecordedTarget, drafter: Drafter, prompt: list[int], output: list[int], reporter: Reporter
) -> list[Step]:
    if not output:
        raise BadInput("the output has no tokens.")
    if max(output) >= target.base.vocab_size:
        raise BadInput(f"token id {max(output)} is none of this tokenizer's; the recording is another family's.")
    target.play(output)
    target.rewind(0)
    config = GenerateConfig(max_tokens=len(output), should_stop=reporter.stop_requested)
    return list(generate(target, drafter, prompt, config))


def result(done: ReplayResult, tokenizer: Any) -> dict[str, Any]:
    """JSON-able figures: τ with its interval, acceptance by depth, counts, where the draft does well and its worst
    prompts, and, where probabilities were recorded, what sampling from them would accept."""
    summary = summarize(done.steps)
    return {
        "mean_accepted_length": round(summary.mean_accepted_length, 4),
        "mean_accepted_length_interval": _interval(done),
        "acceptance_by_depth": [round(share, 4) for share in summary.acceptance_by_depth],
        "verifications": summary.verifications,
        "tokens": summary.tokens,
        "prompts": len(done.rows),
        "skipped": [list(pair) for pair in done.skipped],
        **breakdown([row.steps for row in done.rows], piece_reader(tokenizer)),
        "per_prompt": worst_first(map(_prompt, done.rows)),
        **expected(done, tokenizer),
    }


def _prompt(row: Replayed) -> Prompt:
    """A raw prompt is a text to go on with, which no chat can ask again, nor one that was recorded as ids alone."""
    known = row.recording.prompt.strip() and not row.recording.raw
    asked = [{"role": m["role"], "content": m["content"]} for m in row.recording.messages] if known else []
    return Prompt.of({"id": row.recording.id, "turn": 0, "category": ""}, row.steps, asked)


def _interval(done: ReplayResult) -> list[float] | None:
    """95 %, by the bootstrap over recordings and steps that evaluations use."""
    figures = estimate([_untimed(row.steps) for row in done.rows])
    return [round(value, 4) for value in figures.tau_interval] if figures else None


def _untimed(steps: Sequence[Step]) -> StepTiming:
    tokens = np.array([len(step.tokens) for step in steps if step.counted], dtype=float)
    return StepTiming(tokens, np.ones(len(tokens)), np.ones(1))


def shown(row: Replayed, tokenizer: Any, source: str) -> dict[str, Any]:
    """A replayed output as the Playground keeps its own answers: `messages`, `records`, `text`, `summary`."""
    stream = TextStream(tokenizer)
    records = list(stream.records(row.steps))
    said = f"Replayed from {source}: the tokens are recorded ones, the draft was run again."
    summary = summarize(row.steps).to_json() | {"notices": [said], "replayed": source}
    asked = [{"role": m["role"], "content": m["content"]} for m in row.recording.messages]
    return {"messages": asked, "records": records, "text": stream.text, "summary": summary}


def expected(done: ReplayResult, tokenizer: Any) -> dict[str, Any]:
    """What lossless sampling from the recorded probabilities would accept of these trees; nothing where there are none.

    At depth d the mean, over verifications whose recorded path the draft has followed so far, of the probability that
    one of the drafted children is taken: p summed over them. Tokens that were not among the recorded ones count 0, so
    it is a lower bound.
    """
    with_them = [row for row in done.rows if row.recording.logprobs]
    if not with_them:
        return {}
    piece = piece_reader(tokenizer)
    by_depth: dict[int, list[float]] = {}
    for row in with_them:
        for depth, chance in _chances(row, piece):
            by_depth.setdefault(depth, []).append(chance)
    means = [float(np.mean(by_depth[depth])) for depth in sorted(by_depth)]
    length = 1.0 + sum(math.prod(means[:depth]) for depth in range(1, len(means) + 1))
    return {
        "expected_acceptance_by_depth": [round(mean, 4) for mean in means],
        "expected_accepted_length": round(length, 4),
        "recordings_with_probabilities": len(with_them),
    }


def _chances(row: Replayed, piece: Callable[[int], str]) -> Iterator[tuple[int, float]]:
    """(depth, chance that a child is taken) of every counted verification, down the recorded path."""
    said = 0
    for step in row.steps:
        at, parent = said, -1
        said += len(step.tokens)
        if not step.counted or step.kind != "verify":
            continue
        for depth, node in enumerate((*step.accepted, None), 1):
            children = [n for n, p in enumerate(step.drafted.parents) if p == parent]
            if not children or at >= len(row.recording.logprobs):
                break
            yield depth, _mass(row.recording.logprobs[at], [step.drafted.tokens[n] for n in children], piece)
            at, parent = at + 1, node


def _mass(likely: Sequence[tuple[str | int, float]], tokens: Sequence[int], piece: Callable[[int], str]) -> float:
    known = dict(likely)
    chances = (known.get(token, known.get(piece(token), -math.inf)) for token in dict.fromkeys(tokens))
    return min(sum(math.exp(logprob) for logprob in chances), 1.0)


def projected(done: ReplayResult, costs: Costs) -> tuple[ReplayResult, dict[str, Any]]:
    """The steps with the times they would take where `costs` were measured, and what these come to: `speedup` over
    plain decoding, `tokens_per_second`, `step_ms`. Drafting that `costs` do not know keeps the time it took here."""
    rows = [replace(row, steps=[_retimed(step, costs) for step in row.steps]) for row in done.rows]
    counted = [step for row in rows for step in row.steps if step.counted]
    tokens = sum(len(step.tokens) for step in counted)
    spent = sum(map(milliseconds, counted))
    if not counted or not spent:
        return done, {}
    figures = {
        "projected_speedup": round(tokens * costs.step(DraftShape(PLAIN)) / spent, 3),
        "projected_tokens_per_second": round(tokens / spent * 1e3, 2),
        "projected_step_ms": round(spent / len(counted), 3),
    }
    return ReplayResult(rows, done.skipped), figures


def _retimed(step: Step, costs: Costs) -> Step:
    if step.kind == "prefill":
        return step
    drafted = step.drafted
    nodes, depth = len(drafted.tokens) + 1, max(drafted.depths, default=0)
    kind = PLAIN if not depth else CHAIN if depth == nodes - 1 else TREE
    drafting = costs.drafting(DraftShape(kind, nodes, depth), 1) if costs.draft and depth else step.ms_draft
    return replace(step, ms_draft=drafting, ms_verify=costs.verify(nodes, 1), ms_other=costs.other)

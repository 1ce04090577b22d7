"""Replay: evaluate a draft on recorded outputs of its target model, without running that model. Greedy.

Drafted tokens are compared with the recorded ones (Yan et al. 2024, *Decoding Speculative Decoding*, whose demo does
this for chains): the longest drafted path that matches the recording is accepted. It is the ordinary decoding loop with
a target that returns recorded tokens, so τ has its usual meaning.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from corpus.recordings import Recording
from corpus.rows import BadRow
from decoding.config import GenerateConfig
from decoding.drafters import WITHOUT_DRAFT, make_drafter
from decoding.drafters.base import Drafter
from decoding.drafters.ngram import NgramDrafter
from decoding.drafters.standalone import StandaloneDrafter
from decoding.generate import generate
from decoding.recorded import RecordedTarget, TeacherForcedTarget, UnloadedBase, forced_target
from decoding.stats import summarize
from decoding.step import Step
from decoding.target import fast_target
from decoding.text import TextStream, token_text_reader
from decoding.tree import chain_shape, shape_from_choices
from decoding.tuning import measure_forward
from evaluation.breakdown import PromptMetrics, breakdown, worst_first
from evaluation.costs import Costs
from evaluation.estimate import StepTiming, estimate, milliseconds
from evaluation.machine import describe_machine
from evaluation.shapes import CHAIN, PLAIN, TREE, DraftShape
from models.base import LoadedBase, decoding_dtype, load_base, load_tokenizer, read_eos_ids
from models.chat import render
from models.checkpoints import is_checkpoint
from models.methods import trees
from speculoos.errors import BadInput, Cancelled, SpeculoosError
from speculoos.reporting import Reporter, check_stop

MAX_LENGTH = 4096
ROUNDS = 5


@dataclass(frozen=True)
class ReplayedRow:
    """One recording and the decoding steps that reproduce it with the draft."""

    recording: Recording
    prompt: list[int]
    steps: list[Step]


@dataclass
class ReplayResult:
    """The replayed recordings; `skipped` are (id, reason)."""

    rows: list[ReplayedRow] = field(default_factory=list)
    skipped: list[tuple[str, str]] = field(default_factory=list)

    @property
    def steps(self) -> list[Step]:
        return [step for row in self.rows for step in row.steps]


def ids_of(recording: Recording, tokenizer: Any, eos_ids: frozenset[int]) -> tuple[list[int], list[int]]:
    """(prompt, output) as token ids: recorded ids, else texts tokenized (and, unless the prompt is raw, rendered with
    the chat template), with the end-of-turn token if the output was not truncated."""
    text = recording.messages[-1]["content"] if recording.raw else ""
    prompt = recording.prompt_ids
    if prompt is None:
        prompt = _ids(tokenizer, text) if recording.raw else render(tokenizer, recording.messages)
    if recording.token_ids is not None:
        return list(prompt), list(recording.token_ids)
    output = tokenizer(recording.output, add_special_tokens=False)["input_ids"]
    if recording.raw and (full_ids := _ids(tokenizer, text + recording.output))[: len(prompt)] == prompt:
        output = full_ids[len(prompt) :]
    ends = recording.finish == "stop" and tokenizer.eos_token_id in eos_ids
    return list(prompt), [*output, *([tokenizer.eos_token_id] if ends else [])]


def _ids(tokenizer: Any, text: str) -> list[int]:
    return [int(i) for i in tokenizer(text)["input_ids"]]


def replay(
    recordings: Iterable[Recording | BadRow],
    target: TeacherForcedTarget | RecordedTarget,
    new_drafter: Callable[[], Drafter],
    reporter: Reporter,
    total: int | None = None,
    max_tokens: int | None = None,
) -> ReplayResult:
    """Draft along every recording (its first `max_tokens` tokens), each with a new drafter.

    Unusable rows are logged and skipped; raises BadInput when none is usable, Cancelled between rows.
    """
    result = ReplayResult()
    for number, row in enumerate(recordings, 1):
        check_stop(reporter)
        if isinstance(row, BadRow):
            _skip(result, reporter, f"line {row.line}", row.reason)
            continue
        try:
            prompt, output = ids_of(row, target.base.tokenizer, target.base.eos_ids)
            steps = _steps(target, new_drafter(), prompt, output[:max_tokens], reporter)
            result.rows.append(ReplayedRow(row, prompt, steps))
        except Cancelled:
            raise
        except SpeculoosError as error:
            _skip(result, reporter, row.id, str(error))
        note = f"τ {summarize(result.steps).mean_accepted_length:.2f}"
        reporter.progress(number, total, "recordings", note)
    if not result.rows:
        reason = f" The first: {result.skipped[0][1]}" if result.skipped else ""
        raise BadInput(f"There is no recording that can be replayed.{reason}")
    return result


def _skip(result: ReplayResult, reporter: Reporter, name: str, reason: str) -> None:
    result.skipped.append((name, reason))
    reporter.log(f"{name}: left out, {reason}", "warning")


def _steps(
    target: TeacherForcedTarget | RecordedTarget,
    drafter: Drafter,
    prompt: list[int],
    output: list[int],
    reporter: Reporter,
) -> list[Step]:
    if not output:
        raise BadInput("the output has no tokens.")
    if max(output) >= target.base.vocab_size:
        raise BadInput(f"token id {max(output)} is not in this vocabulary; the recording is from another model family.")
    target.load(output, len(prompt))
    target.rewind(0)
    config = GenerateConfig(max_tokens=len(output), should_stop=reporter.stop_requested)
    return list(generate(target, drafter, prompt, config))


def replay_metrics(result: ReplayResult, tokenizer: Any) -> dict[str, Any]:
    """JSON-able metrics: τ with its interval, acceptance by depth, counts, `evaluation.breakdown`, and the prompts
    with the lowest τ."""
    summary = summarize(result.steps)
    return {
        "mean_accepted_length": round(summary.mean_accepted_length, 4),
        "mean_accepted_length_interval": _interval(result),
        "acceptance_by_depth": [round(share, 4) for share in summary.acceptance_by_depth],
        "verifications": summary.verifications,
        "tokens": summary.tokens,
        "prompts": len(result.rows),
        "skipped": [list(pair) for pair in result.skipped],
        **breakdown([row.steps for row in result.rows], token_text_reader(tokenizer)),
        "per_prompt": worst_first(map(_prompt, result.rows)),
    }


def _prompt(row: ReplayedRow) -> PromptMetrics:
    """Metrics of one prompt; without messages if a chat cannot repeat it (raw, or recorded as ids only)."""
    can_run_again = row.recording.prompt.strip() and not row.recording.raw
    messages = [{"role": m["role"], "content": m["content"]} for m in row.recording.messages] if can_run_again else []
    return PromptMetrics.of({"id": row.recording.id, "turn": 0, "category": ""}, row.steps, messages)


def _interval(result: ReplayResult) -> list[float] | None:
    estimated = estimate([_without_times(row.steps) for row in result.rows])
    return [round(value, 4) for value in estimated.tau_interval] if estimated else None


def _without_times(steps: Sequence[Step]) -> StepTiming:
    tokens = np.array([len(step.tokens) for step in steps if step.counted], dtype=float)
    return StepTiming(tokens, np.ones(len(tokens)), np.ones(1))


def playground_answer(row: ReplayedRow, tokenizer: Any, source: str) -> dict[str, Any]:
    """A replayed output in the format of Playground answers: `messages`, `records`, `text`, `summary`."""
    stream = TextStream(tokenizer)
    records = list(stream.records(row.steps))
    notice = f"Replayed from {source}: the tokens are recorded ones, the draft was run again."
    summary = summarize(row.steps).to_json() | {"notices": [notice], "replayed": source}
    messages = [{"role": m["role"], "content": m["content"]} for m in row.recording.messages]
    return {"messages": messages, "records": records, "text": stream.text, "summary": summary}


def project_times(result: ReplayResult, costs: Costs) -> tuple[ReplayResult, dict[str, Any]]:
    """The steps with predicted times on the machine of `costs` (without drafting costs: the measured drafting
    time), and `projected_speedup` over plain decoding, `projected_tokens_per_second`, `projected_step_ms`."""
    rows = [replace(row, steps=[_with_predicted_times(step, costs) for step in row.steps]) for row in result.rows]
    counted = [step for row in rows for step in row.steps if step.counted]
    tokens = sum(len(step.tokens) for step in counted)
    total_ms = sum(map(milliseconds, counted))
    if not counted or not total_ms:
        return result, {}
    metrics = {
        "projected_speedup": round(tokens * costs.step(DraftShape(PLAIN)) / total_ms, 3),
        "projected_tokens_per_second": round(tokens / total_ms * 1e3, 2),
        "projected_step_ms": round(total_ms / len(counted), 3),
    }
    return ReplayResult(rows, result.skipped), metrics


def _with_predicted_times(step: Step, costs: Costs) -> Step:
    if step.kind == "prefill":
        return step
    draft = step.draft_record
    nodes, depth = len(draft.tokens) + 1, max(draft.depths, default=0)
    kind = PLAIN if not depth else CHAIN if depth == nodes - 1 else TREE
    drafting = costs.drafting(DraftShape(kind, nodes, depth), 1) if costs.draft and depth else step.ms_draft
    return replace(step, ms_draft=drafting, ms_verify=costs.verify(nodes, 1), ms_other=costs.other)


@dataclass(frozen=True)
class ReplaySetup:
    """A target, and `new_drafter`, which creates a drafter for each recording."""

    target: TeacherForcedTarget | RecordedTarget
    new_drafter: Callable[[], Drafter]

    def costs(self) -> Costs | None:
        """Measured costs of the base's forwards at the length of the last recording; None without a base."""
        if not isinstance(self.target, TeacherForcedTarget) or not self.target.ids:
            return None
        forward = measure_forward(self.target, rounds=ROUNDS)
        return Costs({1: forward}, machine=describe_machine(self.target.base.device)) if forward else None


def open_with_base(base: LoadedBase, draft: Any, options: dict[str, Any]) -> ReplaySetup:
    """A draft with its base model."""
    target = forced_target(base, MAX_LENGTH)
    return ReplaySetup(target, lambda: make_drafter(target, draft, options))


def open_small_model(folder: Path, options: dict[str, Any], dtype: str = "float32", device: str = "cpu") -> ReplaySetup:
    """A small model with the same tokenizer as the recorded model, without that model."""
    if is_checkpoint(folder):
        raise BadInput(f"{folder}: is a draft made for a base; use BASE@DRAFT or a model's folder.")
    model = load_base(folder, decoding_dtype(dtype, device), device)
    _check(options, "draft", ("depth", "tree"))
    tree = options.get("tree")
    shape = shape_from_choices(tree) if tree else chain_shape(int(options.get("depth", 4)))
    draft = fast_target(model, MAX_LENGTH)
    target = RecordedTarget(UnloadedBase(model.tokenizer, model.eos_ids, model.vocab_size), draft.max_length)
    return ReplaySetup(target, lambda: StandaloneDrafter(draft, shape, model.vocab_size))


def open_prompt_lookup(folder: Path, options: dict[str, Any]) -> ReplaySetup:
    """Prompt lookup, which needs only a tokenizer."""
    tokenizer = load_tokenizer(folder)
    vocab_size = max(tokenizer.get_vocab().values()) + 1  # ids may have gaps
    unloaded = UnloadedBase(tokenizer, read_eos_ids(folder, tokenizer), vocab_size)
    lookup = {name: value for name, value in options.items() if name != "drafter"}
    _check(lookup, trees.NGRAM, WITHOUT_DRAFT[trees.NGRAM][0])
    return ReplaySetup(RecordedTarget(unloaded, MAX_LENGTH), lambda: NgramDrafter(**lookup))


def _check(options: dict[str, Any], drafter: str, known: tuple[str, ...]) -> None:
    trees.check_options(drafter, options, known)
    if zero := next((name for name, value in options.items() if name != "tree" and value < 1), ""):
        raise BadInput(f"{zero}: expected a whole number from 1, got {options[zero]}.")

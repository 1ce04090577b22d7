"""Tuning a checkpoint's tree on this machine: traces of a wide tree, the measured cost of forwards and of drafting,
then the tree with the most expected tokens per second (decoding.tuning). Greedy.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.parts import WIDE, TuningSpace
from decoding.generate import generate
from decoding.stats import acceptance_by_rank, summarize
from decoding.step import Step
from decoding.target import Target, fast_target
from decoding.tuning import TreePlan, measure_forward, plan_dynamic, plan_tree, values_from_steps
from evaluation.machine import describe_machine
from evaluation.questions import turns
from methods import METHODS
from methods.expectation import rising
from models.base import Base
from models.chat import render
from speculoos.reporting import Reporter, check_stop

MAX_LENGTH = 1024


@dataclass(frozen=True)
class TunedDraft:
    """`drafting`: options for `make_drafter` (empty where plain decoding is faster). `plan`: how they were found.
    `measured`: what it rests on, JSON-able, with which other trees can be reckoned (methods.expectation)."""

    drafting: dict[str, Any]
    plan: TreePlan
    measured: dict[str, Any] = field(default_factory=dict)

    def finding(self) -> dict[str, Any]:
        """What rows keep: the verdict, the tree, what it was chosen from."""
        plan = self.plan
        return {
            "verdict": plan.verdict,
            "plain_is_faster": plan.nodes == 0,
            "drafting": self.drafting,
            "nodes": plan.nodes,
            "depth": plan.depth,
            "expected_tau": round(plan.expected_tau, 4),
            "expected_speedup": round(plan.expected_speedup, 4),
            "sizes": [[size.nodes, round(size.expected_tau, 4), round(size.speedup, 4)] for size in plan.sizes],
            **self.measured,
        }


def tune(
    base: Base,
    draft: Any,
    questions: Sequence[dict[str, Any]],
    reporter: Reporter,
    *,
    max_tokens: int = 48,
    counts: bool = False,
) -> TunedDraft:
    """The best tree for `draft` here, from answers of up to `max_tokens` to the first turns of `questions`, which are
    cut where the context would not hold prompt and answer. `counts`: the reporter's progress is that of the tuning.

    Takes the base's weights over (fast_target). Raises Cancelled between questions when the reporter says stop.
    """
    target = fast_target(base, MAX_LENGTH)
    space = METHODS[draft.method].load("drafter").tuning(draft)
    prompts = prompts_of(base, questions, target.max_length - max_tokens)
    steps = []
    for number, prompt in enumerate(prompts, 1):
        steps += _run(target, draft, space.at_depth(space.deepest), prompt, max_tokens)
        note = f"τ {summarize(steps).mean_accepted_length:.2f} with the widest tree"
        if counts:
            reporter.progress(number, len(prompts) + 1, "measurements", note)
        check_stop(reporter)
    target.prefill(prompts[0])
    costs = rising(measure_forward(target))
    draft_ms = _draft_cost(target, draft, space, prompts[0])
    other_ms = statistics.median(s.ms_other for s in steps if s.kind == "verify")
    if space.dynamic:
        plan = plan_dynamic(steps, costs, draft_ms, other_ms)
        drafting = {"depth": plan.depth - 1, "top_k": WIDE["top_k"], "nodes": plan.nodes}
    else:
        plan = plan_tree(values_from_steps(steps), costs, draft_ms, other_ms)
        drafting = {"tree": [list(choice) for choice in plan.choices]}
    if counts:
        reporter.progress(len(prompts) + 1, len(prompts) + 1, "measurements")
    measured = _measured(base, steps, costs, [draft_ms(depth) for depth in range(1, space.deepest + 1)], other_ms)
    return TunedDraft(drafting if plan.nodes else {}, plan, {**measured, "questions": len(prompts)})


def _measured(
    base: Base, steps: Sequence[Step], costs: dict[int, float], draft_ms: Sequence[float], other_ms: float
) -> dict[str, Any]:
    """What a tree is reckoned from, and where it was measured."""
    shares = acceptance_by_rank(steps)
    return {
        "by_rank": [[None if s is None else round(s, 4) for s in ranks] for ranks in shares],
        "forward_ms": {str(nodes): round(ms, 4) for nodes, ms in costs.items()},
        "draft_ms": [round(ms, 4) for ms in draft_ms],
        "other_ms": round(other_ms, 4),
        "verifications": sum(step.counted for step in steps),
        "machine": describe_machine(base.device),
        "dtype": str(base.dtype).removeprefix("torch."),
    }


def can_be_tuned(draft: Any) -> bool:
    """Whether the draft's method says what there is to tune."""
    return hasattr(METHODS[draft.method].load("drafter"), "tuning")


def prompts_of(base: Base, questions: Sequence[dict[str, Any]], most: int) -> list[list[int]]:
    """Token ids of the first turns, cut to `most`."""
    return [
        render(base.tokenizer, [{"role": "user", "content": users[0]}], system)[:most]
        for system, users in map(turns, questions)
    ]


def _run(target: Target, draft: Any, options: dict[str, Any], prompt: list[int], max_tokens: int) -> list[Step]:
    drafter = make_drafter(target, draft, options)
    return list(generate(target, drafter, prompt, GenerateConfig(max_tokens=max_tokens)))


def _draft_cost(target: Target, draft: Any, space: TuningSpace, prompt: list[int]) -> Callable[[int], float]:
    """Milliseconds of drafting by depth: the straight line through the shallowest and the deepest setting."""
    ends = {}
    for depth in {1, space.deepest}:
        steps = _run(target, draft, space.at_depth(depth), prompt, 24)
        ends[depth] = statistics.median([s.ms_draft for s in steps if s.kind == "verify"] or [0.0])
    slope = (ends[space.deepest] - ends[1]) / (space.deepest - 1) if space.deepest > 1 else 0.0
    return lambda depth: ends[1] + max(slope, 0.0) * (depth - 1)

"""Tuning a checkpoint's tree on this machine: traces of a wide tree, the measured cost of forwards and of drafting,
then the tree with the most expected tokens per second (decoding.tuning). Greedy.
"""

import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.step import Step
from decoding.target import Target, fast_target
from decoding.tuning import TreePlan, measure_forward, plan_dynamic, plan_tree, values_from_steps, wide_choices
from evaluation.questions import turns
from models.base import Base
from models.chat import render
from speculoos.reporting import Reporter, check_stop

MAX_LENGTH = 1024
DEEPEST = 5
WIDE = {"top_k": 4, "nodes": 32}


@dataclass(frozen=True)
class Tuned:
    """`drafting`: options for `make_drafter` (empty where plain decoding is faster). `plan`: how they were found."""

    drafting: dict[str, Any]
    plan: TreePlan


@dataclass(frozen=True)
class _Space:
    """What can be tuned about a kind of draft: its widest setting, and the setting of a given depth."""

    deepest: int
    at_depth: Callable[[int], dict[str, Any]]
    dynamic: bool = False


def tune(
    base: Base, draft: Any, questions: Sequence[dict[str, Any]], reporter: Reporter, *, max_tokens: int = 48
) -> Tuned:
    """The best tree for `draft` here, from answers of up to `max_tokens` to the first turns of `questions`, which are
    cut where the context would not hold prompt and answer.

    Takes the base's weights over (fast_target). Raises Cancelled between questions when the reporter says stop.
    """
    target = fast_target(base, MAX_LENGTH)
    space = _space(draft)
    prompts = [_prompt(base, row)[: target.max_length - max_tokens] for row in questions]
    steps = []
    for prompt in prompts:
        steps += _run(target, draft, space.at_depth(space.deepest), prompt, max_tokens)
        check_stop(reporter)
    target.prefill(prompts[0])
    costs = measure_forward(target)
    draft_ms = _draft_cost(target, draft, space, prompts[0])
    other_ms = statistics.median(s.ms_other for s in steps if s.kind == "verify")
    if space.dynamic:
        plan = plan_dynamic(steps, costs, draft_ms, other_ms)
        drafting = {"depth": plan.depth - 1, "top_k": WIDE["top_k"], "nodes": plan.nodes}
    else:
        plan = plan_tree(values_from_steps(steps), costs, draft_ms, other_ms)
        drafting = {"tree": [list(choice) for choice in plan.choices]}
    return Tuned(drafting if plan.nodes else {}, plan)


def _space(draft: Any) -> _Space:
    """Medusa: trees as deep as it has heads. EAGLE: dynamic trees. A standalone draft: chains."""
    if draft.method == "medusa":
        return _Space(draft.num_heads, lambda depth: {"tree": wide_choices(depth, WIDE["nodes"])})
    if draft.method == "draft":
        return _Space(DEEPEST, lambda depth: {"tree": [[0] * depth]})
    return _Space(DEEPEST, lambda depth: {"depth": depth - 1, **WIDE}, dynamic=True)


def _prompt(base: Base, row: dict[str, Any]) -> list[int]:
    system, users = turns(row)
    return render(base.tokenizer, [{"role": "user", "content": users[0]}], system)


def _run(target: Target, draft: Any, options: dict[str, Any], prompt: list[int], max_tokens: int) -> list[Step]:
    drafter = make_drafter(target, draft, options)
    return list(generate(target, drafter, prompt, GenerateConfig(max_tokens=max_tokens)))


def _draft_cost(target: Target, draft: Any, space: _Space, prompt: list[int]) -> Callable[[int], float]:
    """Milliseconds of drafting by depth: the straight line through the shallowest and the deepest setting."""
    ends = {}
    for depth in {1, space.deepest}:
        steps = _run(target, draft, space.at_depth(depth), prompt, 24)
        ends[depth] = statistics.median([s.ms_draft for s in steps if s.kind == "verify"] or [0.0])
    slope = (ends[space.deepest] - ends[1]) / (space.deepest - 1) if space.deepest > 1 else 0.0
    return lambda depth: ends[1] + max(slope, 0.0) * (depth - 1)

"""Tune a checkpoint's tree for this machine: record traces of a wide tree, measure forwards and drafting, and select
the tree with the most expected tokens per second (decoding.tuning). Greedy.
"""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.base import WIDEST_TREE, TuningSpace
from decoding.generate import generate
from decoding.stats import acceptance_by_rank, summarize
from decoding.step import Step
from decoding.step_costs import interpolate, non_decreasing
from decoding.target import Target, fast_target
from decoding.tuning import TreePlan, lengths_by_size, measure_forward, plan_dynamic, plan_tree, values_from_steps
from evaluation.estimate import DRAWS, SEED, interval_of
from evaluation.machine import cpu_load_result, describe_machine
from evaluation.questions import turns
from models.base import LoadedBase
from models.chat import render
from models.methods import METHODS
from speculoos.cpu_load import OtherCpuLoad
from speculoos.reporting import Reporter, check_stop

MAX_LENGTH = 1024
ROUNDS = 7
"""Number of measurements of each forward size."""


@dataclass(frozen=True)
class TunedDraft:
    """`drafting`: options for `make_drafter`, empty if plain decoding is faster. `plan`: their derivation. `measured`:
    the measurements, JSON-able."""

    drafting: dict[str, Any]
    plan: TreePlan
    measured: dict[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """The result stored in database rows: verdict, tree and candidates."""
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
    base: LoadedBase,
    draft: Any,
    questions: Sequence[dict[str, Any]],
    reporter: Reporter,
    *,
    max_tokens: int = 48,
    report_progress: bool = False,
) -> TunedDraft:
    """The best tree for `draft` on this machine, from answers of up to `max_tokens` to the first turns of `questions`,
    which are truncated to fit the context. `report_progress`: report the questions done.

    Repacks the base's weights (fast_target). Raises Cancelled between questions when the reporter requests a stop.
    """
    target, load = fast_target(base, MAX_LENGTH), OtherCpuLoad()
    space = METHODS[draft.method].load("drafter").tuning(draft)
    prompts = prompts_of(base, questions, target.max_length - max_tokens)
    answers, steps = list[list[Step]](), list[Step]()
    for number, prompt in enumerate(prompts, 1):
        answers.append(_run(target, draft, space.at_depth(space.deepest), prompt, max_tokens))
        steps += answers[-1]
        note = f"τ {summarize(steps).mean_accepted_length:.2f} with the widest tree"
        if report_progress:
            reporter.progress(number, len(prompts) + 1, "measurements", note)
        check_stop(reporter)
    target.prefill(prompts[0])
    times = _StepTimes(
        [measure_forward(target, rounds=1) for _ in range(ROUNDS)],
        _draft_times(target, draft, space, prompts[0]),
        [s.ms_other for s in steps if s.kind == "verify"],
    )
    costs, draft_ms, other_ms = times.costs()
    if space.dynamic:
        plan = plan_dynamic(steps, costs, draft_ms, other_ms)
        drafting = {"depth": plan.depth - 1, "top_k": WIDEST_TREE["top_k"], "nodes": plan.nodes}
    else:
        plan = plan_tree(values_from_steps(steps), costs, draft_ms, other_ms)
        drafting = {"tree": [list(choice) for choice in plan.choices]}
    if report_progress:
        reporter.progress(len(prompts) + 1, len(prompts) + 1, "measurements")
    measured = _measurements(base, steps, costs, [draft_ms(depth) for depth in range(1, space.deepest + 1)], other_ms)
    intervals = _intervals(plan, answers, times)
    measured |= intervals | cpu_load_result(load, reporter, intervals["timing_noise"])
    return TunedDraft(drafting if plan.nodes else {}, plan, {**measured, "questions": len(prompts)})


def _measurements(
    base: LoadedBase, steps: Sequence[Step], costs: dict[int, float], draft_ms: Sequence[float], other_ms: float
) -> dict[str, Any]:
    acceptance = acceptance_by_rank(steps)
    return {
        "by_rank": [[None if s is None else round(s, 4) for s in ranks] for ranks in acceptance],
        "forward_ms": {str(nodes): round(ms, 4) for nodes, ms in costs.items()},
        "draft_ms": [round(ms, 4) for ms in draft_ms],
        "other_ms": round(other_ms, 4),
        "verifications": sum(step.counted for step in steps),
        "machine": describe_machine(base.device),
        "dtype": str(base.dtype).removeprefix("torch."),
    }


def can_be_tuned(draft: Any) -> bool:
    """Whether the draft's method has a tuning space."""
    return hasattr(METHODS[draft.method].load("drafter"), "tuning")


def prompts_of(base: LoadedBase, questions: Sequence[dict[str, Any]], max_tokens: int) -> list[list[int]]:
    """Token ids of the first turns, truncated to `max_tokens`."""
    return [
        render(base.tokenizer, [{"role": "user", "content": users[0]}], system)[:max_tokens]
        for system, users in map(turns, questions)
    ]


def _run(target: Target, draft: Any, options: dict[str, Any], prompt: list[int], max_tokens: int) -> list[Step]:
    drafter = make_drafter(target, draft, options)
    return list(generate(target, drafter, prompt, GenerateConfig(max_tokens=max_tokens)))


def _draft_times(target: Target, draft: Any, space: TuningSpace, prompt: list[int]) -> dict[int, list[float]]:
    """{depth: drafting milliseconds of each step}, at the minimum and the maximum depth."""
    by_depth = {}
    for depth in sorted({1, space.deepest}):
        steps = _run(target, draft, space.at_depth(depth), prompt, 24)
        by_depth[depth] = [s.ms_draft for s in steps if s.kind == "verify"] or [0.0]
    return by_depth


@dataclass(frozen=True)
class _StepTimes:
    """Measured milliseconds. `rounds`: a forward by nodes, per round; `draft`: drafting by depth; `other`: the rest of
    the steps."""

    rounds: Sequence[Mapping[int, float]]
    draft: Mapping[int, Sequence[float]]
    other: Sequence[float]

    def costs(self) -> tuple[dict[int, float], Callable[[int], float], float]:
        """Medians of: forwards by nodes, drafting by depth (linear between both ends), the rest of a step."""
        forward = non_decreasing(
            {size: statistics.median(each[size] for each in self.rounds) for size in self.rounds[0]}
        )
        first, last = min(self.draft), max(self.draft)
        low, high = statistics.median(self.draft[first]), statistics.median(self.draft[last])
        slope = max((high - low) / (last - first), 0.0) if last > first else 0.0
        return forward, lambda depth: low + slope * (depth - first), statistics.median(self.other)

    def resampled(self, rng: np.random.Generator) -> "_StepTimes":
        """A bootstrap sample: each list resampled with replacement."""
        draft = {depth: rng.choice(times, len(times)) for depth, times in self.draft.items()}
        rounds = [self.rounds[n] for n in rng.integers(len(self.rounds), size=len(self.rounds))]
        return _StepTimes(rounds, draft, rng.choice(self.other, len(self.other)))

    def step_ratio(self, nodes: int, depth: int) -> float:
        """Time of a plain step divided by that of a step with such a tree."""
        forward, draft_ms, other = self.costs()
        return (forward[1] + other) / (interpolate(forward, nodes) + draft_ms(depth) + other)


def _intervals(plan: TreePlan, answers: Sequence[Sequence[Step]], times: _StepTimes) -> dict[str, Any]:
    """95 % intervals of the plan's estimates by a bootstrap over answers, their steps and the measured times, and
    `timing_noise`, the relative standard error of the speedup due to timing. If plain decoding is faster, the noise is
    that of the smallest tree, and the intervals are None."""
    rng = np.random.default_rng(SEED)
    ratios = np.array([times.resampled(rng).step_ratio(plan.nodes or 2, plan.depth or 1) for _ in range(DRAWS)])
    noise = {"timing_noise": round(float(ratios.std() / ratios.mean()), 4)}
    lengths = [np.array(values) for answer in answers if (values := _lengths(plan, answer))]
    if not plan.nodes or not lengths:
        return {"expected_tau_interval": None, "expected_speedup_interval": None, **noise}
    taus = np.array([_resampled_mean(lengths, rng) for _ in range(DRAWS)])
    intervals = {"expected_tau_interval": interval_of(taus), "expected_speedup_interval": interval_of(taus * ratios)}
    return {key: [round(end, 4) for end in ends] for key, ends in intervals.items()} | noise


def _resampled_mean(lengths: Sequence[np.ndarray], rng: np.random.Generator) -> float:
    """Mean over answers resampled with replacement, and resampled steps of each."""
    chosen = (lengths[n] for n in rng.integers(len(lengths), size=len(lengths)))
    return float(np.concatenate([rng.choice(each, len(each)) for each in chosen]).mean())


def _lengths(plan: TreePlan, answer: Sequence[Step]) -> list[float]:
    """Tokens that each verification of an answer would emit with the plan's tree."""
    counted = [step for step in answer if step.counted and step.kind == "verify"]
    if plan.choices:
        return [1.0 + len(set(values_from_steps([step])) & set(plan.choices)) for step in counted]
    return [lengths_by_size([step], [plan.nodes], plan.depth)[plan.nodes] for step in counted]

"""The planner: predicts which drafting pays on a machine, before anything is trained or served.

    tokens per second = sequences · τ · 1000 / (verify(nodes, sequences) + drafting(shape, sequences) + rest of step)

for every chain and tree whose τ is known from traces, and for standalone drafts made of the base's layers.
Yan et al. 2024 (*Decoding Speculative Decoding*): a draft is limited by its latency more than by its accuracy. So its
cost is measured first, and the acceptance rate at which it breaks even is computed.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.base import TuningSpace
from decoding.generate import generate
from decoding.step import Step
from decoding.target import Target, fast_target
from decoding.tuning import lengths_by_size, values_from_steps
from evaluation.costs import Costs
from evaluation.estimate import SEED, interval_of
from evaluation.machine import cpu_load_result
from evaluation.meter import BATCHES, ROWS, Meter
from evaluation.shapes import (
    CHAINS,
    TREES,
    AcceptanceCurves,
    DraftShape,
    chain_options,
    chain_rates,
    expected_chain,
    has_trees,
)
from evaluation.tuning import prompts_of
from models.base import LoadedBase
from models.methods import METHODS
from speculoos.cpu_load import OtherCpuLoad
from speculoos.errors import BadInput, Unsupported
from speculoos.reporting import Reporter, check_stop

MAX_LENGTH = 1024
PLAN_TEXT_TOKENS = 128
"""Tokens in the cache while forwards are measured."""
LAYERS = (2, 4, 8)
ROUNDS = 5
PLAN_DRAWS = 200
"""Bootstrap draws for the intervals of speedups."""
MEASURED, OTHER_MACHINE = "measured here", "of another machine"
NEVER_PAYS = "Speculative decoding with this draft is slower than plain decoding on this machine, even at batch size 1."
MAX_ACCEPTANCE = 0.999
"""A draft that needs a higher acceptance rate cannot break even."""


@dataclass(frozen=True)
class PlanOptions:
    """What to measure and to plan for."""

    batches: tuple[int, ...] = BATCHES
    layers: tuple[int, ...] = LAYERS
    rounds: int = ROUNDS
    max_tokens: int = 48


def plan(
    base: LoadedBase,
    draft: Any,
    questions: Sequence[dict[str, Any]],
    reporter: Reporter,
    *,
    costs: Costs | None = None,
    curves: AcceptanceCurves | None = None,
    options: PlanOptions | None = None,
) -> dict[str, Any]:
    """Predicted throughput of every shape, JSON-able: see `throughput_table`. `costs` of another machine and `curves`
    of a stored trace replace measurements.

    Repacks the base's weights (fast_target). Raises Cancelled between measurements, BadInput for missing measurements.
    """
    options = options or PlanOptions()
    if not questions:
        raise BadInput("There is no question to plan with.")
    target = fast_target(base, MAX_LENGTH)
    prompts = prompts_of(base, questions, target.max_length - options.max_tokens)
    space = tuning_space(draft)
    runs = 0 if draft is None or curves is not None else len(prompts) * (2 if has_trees(space) else 1)
    progress_count, total = count(1), runs + options.rounds * (costs is None)

    def progress(note: str) -> None:
        """Count one measurement. Raises Cancelled when the reporter requests a stop."""
        reporter.progress(next(progress_count), total, "measurements", note)
        check_stop(reporter)

    basis = MEASURED if costs is None else OTHER_MACHINE
    if curves is None and draft is not None:
        curves = measure_curves(target, draft, space, prompts, options.max_tokens, progress)
    if costs is None:
        text = (prompts[0] * PLAN_TEXT_TOKENS)[: min(PLAN_TEXT_TOKENS, target.max_length // 2)]
        meter = Meter(target, text, draft, space, batches=options.batches, layers=options.layers)
        meter.round()
        meter.times.clear()  # the first round only allocates buffers and lets libraries select kernels
        load = OtherCpuLoad()
        for _ in range(options.rounds):
            meter.round()
            progress("forwards")
        costs = meter.costs()
        result = predict_plan(costs, curves, basis)
        _add_intervals(result, meter, _measured_shapes(costs, curves))
        return result | cpu_load_result(load, reporter, result["timing_noise"])
    return predict_plan(costs, curves, basis)


def _add_intervals(result: dict[str, Any], meter: Meter, shapes: Sequence[DraftShape]) -> None:
    """Add to each of the `shapes` the 95 % interval of its speedup for one sequence, by a bootstrap over the timing
    rounds, and to the plan `timing_noise`, the largest relative standard error. τ is assumed to be exact."""
    rng = np.random.default_rng(SEED)
    sampled_costs = [meter.resampled(rng) for _ in range(PLAN_DRAWS)]
    plain, noise = DraftShape("plain"), 0.0
    for row, shape in zip(result["shapes"], shapes, strict=True):
        speedups = np.array([_speed(shape, costs, 1) / _speed(plain, costs, 1) for costs in sampled_costs])
        row["by_batch"]["1"]["speedup_interval"] = [round(end, 3) for end in interval_of(speedups)]
        noise = max(noise, float(speedups.std() / speedups.mean()))
    result["timing_noise"] = round(noise, 4)


def predict_plan(costs: Costs, curves: AcceptanceCurves | None, basis: str = OTHER_MACHINE) -> dict[str, Any]:
    """The throughput table and the costs it is computed from; needs no model."""
    return {**throughput_table(costs, curves), "costs": costs.to_json(), "basis": basis, "machine": costs.machine}


def throughput_table(costs: Costs, curves: AcceptanceCurves | None) -> dict[str, Any]:
    """`plain` and `shapes` with their throughput by number of sequences (`by_batch`), the `best` shape of each,
    `stops_at` (number of sequences from which on plain decoding is faster; None: not among the measured ones),
    `standalone` drafts with their break-even acceptance rate, and a `verdict` as text."""
    plain = _row(DraftShape("plain"), costs)
    shapes = [_row(shape, costs) for shape in _measured_shapes(costs, curves)]
    best = {str(batch): _best(shapes, batch) for batch in costs.batches}
    plan_result = {
        "plain": plain,
        "shapes": shapes,
        "best": best,
        "stops_at": break_even_batch(costs, best) if shapes else None,
        "standalone": [standalone(costs, layers) for layers in sorted(costs.standalone)],
        "acceptance": curves.to_json() if curves else None,
    }
    return {**plan_result, "verdict": verdict(plan_result)}


def _measured_shapes(costs: Costs, curves: AcceptanceCurves | None) -> list[DraftShape]:
    """Shapes within the measured forwards; of trees with the same size, the depth that is fastest for one sequence."""
    if curves is None:
        return []
    max_nodes = max(costs.target[1])
    trees: dict[int, DraftShape] = {}
    for shape in curves.trees():
        if shape.nodes <= max_nodes and _speed(shape, costs, 1) > _speed(trees.get(shape.nodes), costs, 1):
            trees[shape.nodes] = shape
    return [*(chain for chain in curves.chains() if chain.nodes <= max_nodes), *(trees[n] for n in sorted(trees))]


def _speed(shape: DraftShape | None, costs: Costs, batch: int) -> float:
    return batch * shape.tau * 1e3 / costs.step(shape, batch) if shape else 0.0


def _row(shape: DraftShape, costs: Costs) -> dict[str, Any]:
    plain = DraftShape("plain")
    return {
        "name": shape.name,
        "kind": shape.kind,
        "nodes": shape.nodes,
        "depth": shape.depth,
        "tau": round(shape.tau, 4),
        "options": shape.options,
        "by_batch": {
            str(batch): {
                "step_ms": round(costs.step(shape, batch), 3),
                "draft_ms": round(costs.drafting(shape, batch), 3),
                "tokens_per_second": round(_speed(shape, costs, batch), 2),
                "speedup": round(_speed(shape, costs, batch) / _speed(plain, costs, batch), 3),
            }
            for batch in costs.batches
        },
    }


def _best(shapes: Sequence[dict[str, Any]], batch: int) -> str:
    fastest = max(shapes, key=lambda shape: shape["by_batch"][str(batch)]["speedup"], default=None)
    return fastest["name"] if fastest and fastest["by_batch"][str(batch)]["speedup"] > 1 else "plain"


def break_even_batch(costs: Costs, best: dict[str, str]) -> int | None:
    """The smallest measured number of sequences from which on plain decoding is faster, or None."""
    last = max((batch for batch in costs.batches if best[str(batch)] != "plain"), default=0)
    return next((batch for batch in costs.batches if batch > last), None)


def standalone(costs: Costs, layers: int) -> dict[str, Any]:
    """A standalone draft of `layers` layers, for one sequence: its cost per token, its break-even acceptance rate with
    the best chain, and its speedup at common acceptance rates."""
    depths = [depth for depth in CHAINS if depth + 1 <= max(costs.target[1])]
    plain = costs.step(DraftShape("plain"))

    def speedup(acceptance: float) -> tuple[float, int]:
        """(best speedup over all depths, its depth)."""
        steps = {depth: costs.standalone_step(layers, depth) for depth in depths}
        return max((expected_chain(acceptance, depth) * plain / ms, depth) for depth, ms in steps.items())

    break_even = _break_even(lambda acceptance: speedup(acceptance)[0])
    return {
        "layers": layers,
        "token_ms": round(costs.standalone[layers][1], 3),
        "needed_acceptance": None if break_even is None else round(break_even, 3),
        "speedups": {
            f"{share:.1f}": {"speedup": round(speedup(share)[0], 3), "depth": speedup(share)[1]}
            for share in (0.5, 0.6, 0.7, 0.8, 0.9)
        },
    }


def _break_even(speedup: Any) -> float | None:
    """The smallest acceptance rate with a speedup of 1, by bisection; None if even a perfect draft is slower."""
    low, high = 0.0, MAX_ACCEPTANCE
    if speedup(high) < 1:
        return None
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if speedup(middle) >= 1 else (middle, high)
    return high


def verdict(plan_result: dict[str, Any]) -> str:
    """Two or three sentences."""
    return " ".join(filter(None, (_shapes_verdict(plan_result), _standalone_verdict(plan_result["standalone"]))))


def _shapes_verdict(plan_result: dict[str, Any]) -> str:
    if not plan_result["shapes"]:
        return ""
    name = plan_result["best"]["1"]
    if name == "plain":
        return NEVER_PAYS
    fastest = next(shape for shape in plan_result["shapes"] if shape["name"] == name)
    one_sequence = fastest["by_batch"]["1"]
    share = one_sequence["draft_ms"] / one_sequence["step_ms"]
    speedup, tau = one_sequence["speedup"], fastest["tau"]
    sentence = f"One request at a time: {name} is fastest, {speedup:.2f} × the baseline with τ {tau:.2f}; "
    sentence += f"{share:.0%} of its step is drafting."
    batches = [int(batch) for batch in plan_result["best"]]
    if plan_result["stops_at"]:
        return f"{sentence} At batch sizes of {plan_result['stops_at']} or more, plain decoding is faster."
    return sentence + (
        f" Speculative decoding is faster at all batch sizes tried, up to {max(batches)}." if len(batches) > 1 else ""
    )


def _standalone_verdict(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    parts = [
        f"{row['layers']} layers need {row['needed_acceptance']:.0%} of their tokens accepted"
        if row["needed_acceptance"] is not None
        else f"{row['layers']} layers cannot break even"
        for row in rows
    ]
    return f"Standalone drafts with layers of this base model: {', '.join(parts)}."


def tuning_space(draft: Any) -> TuningSpace | None:
    """The tuning space of a draft. Raises Unsupported for a method without one."""
    if draft is None:
        return None
    module = METHODS[draft.method].load("drafter")
    if not hasattr(module, "tuning"):
        raise Unsupported(f"The method {draft.method!r} has no tuning space, so its drafts cannot be planned.")
    return module.tuning(draft)


def measure_curves(
    target: Target,
    draft: Any,
    space: TuningSpace,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    progress: Callable[[str], None],
) -> AcceptanceCurves:
    """Acceptance of the draft's deepest chain and widest tree, in answers of up to `max_tokens`."""
    chain = generate_steps(target, draft, chain_options(space.deepest, space.dynamic), prompts, max_tokens, progress)
    shares = chain_rates(chain, space.deepest)
    counted = sum(step.counted for step in chain)
    if not has_trees(space):
        return AcceptanceCurves(shares, one_pass=space.one_pass, dynamic=space.dynamic, verifications=counted)
    wide = generate_steps(target, draft, space.at_depth(space.deepest), prompts, max_tokens, progress)
    if not space.dynamic:
        return AcceptanceCurves(shares, {}, values_from_steps(wide), space.one_pass, False, counted)
    sizes = [size for size in TREES if size <= max(ROWS)]
    by_depth = {depth: lengths_by_size(wide, sizes, depth) for depth in range(1, space.deepest + 1)}
    return AcceptanceCurves(shares, by_depth, one_pass=space.one_pass, verifications=counted)


def generate_steps(
    target: Target,
    draft: Any,
    options: dict[str, Any],
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    progress: Callable[[str], None],
) -> list[Step]:
    """All steps of the answers to `prompts`."""
    drafter, steps = make_drafter(target, draft, options), []
    for prompt in prompts:
        target.rewind(0)
        steps += generate(target, drafter, prompt, GenerateConfig(max_tokens=max_tokens))
        progress("acceptance")
    return steps

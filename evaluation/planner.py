"""The planner: which drafting pays on a machine, before anything is trained or served.

    tokens a second = sequences · τ · 1000 / (verify(nodes, sequences) + drafting(shape, sequences) + the rest)

for every chain and tree that traces tell the τ of, and for standalone drafts that are still to be cut from the base.
Yan et al. 2024 (*Decoding Speculative Decoding*): what limits is the draft's latency rather than its accuracy, so its
cost is measured first, and the acceptance that would pay for it is what is asked.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.drafters.parts import TuningSpace
from decoding.generate import generate
from decoding.step import Step
from decoding.target import Target, fast_target
from decoding.tuning import lengths_by_size, values_from_steps
from evaluation.costs import Costs
from evaluation.estimate import SEED, interval_of
from evaluation.load import Load
from evaluation.meter import BATCHES, ROWS, Meter
from evaluation.shapes import CHAINS, TREES, Curves, DraftShape, chain_options, chain_shares, expected_chain
from evaluation.tuning import prompts_of
from models.base import LoadedBase
from models.methods import METHODS
from speculoos.errors import BadInput, Unsupported
from speculoos.reporting import Reporter, check_stop

MAX_LENGTH = 1024
TEXT = 128
"""Tokens in the cache while forwards are measured."""
LAYERS = (2, 4, 8)
ROUNDS = 5
PLAN_DRAWS = 200
"""Of the bootstrap that gives speedups their intervals."""
MEASURED, GIVEN = "measured here", "of another machine"
NEVER = "Speculation does not pay on this machine with this draft, not for one sequence either."
SURE = 0.999
"""Acceptance above which a draft counts as one that cannot pay."""


@dataclass(frozen=True)
class Choices:
    """What is measured and planned for."""

    batches: tuple[int, ...] = BATCHES
    layers: tuple[int, ...] = LAYERS
    rounds: int = ROUNDS
    max_tokens: int = 48
    draft_hidden_size: int = 0
    """Width of standalone drafts; 0 for the base's."""


class Progress:
    """How far a plan is."""

    def __init__(self, reporter: Reporter, total: int):
        self.reporter, self.total, self.done = reporter, total, 0

    def step(self, note: str) -> None:
        """One more. Raises Cancelled when the reporter says stop."""
        self.done += 1
        self.reporter.progress(self.done, self.total, "measurements", note)
        check_stop(self.reporter)


def plan(
    base: LoadedBase,
    draft: Any,
    questions: Sequence[dict[str, Any]],
    reporter: Reporter,
    *,
    costs: Costs | None = None,
    curves: Curves | None = None,
    choices: Choices | None = None,
) -> dict[str, Any]:
    """Predicted throughput of every shape, JSON-able: see `surface`. `costs` of another machine and `curves` of a
    stored trace stand in for what would be measured here.

    Takes the base's weights over (fast_target). Raises Cancelled between measurements, BadInput where figures lack.
    """
    choices = choices or Choices()
    if not questions:
        raise BadInput("There is no question to plan with.")
    target = fast_target(base, MAX_LENGTH)
    prompts = prompts_of(base, questions, target.max_length - choices.max_tokens)
    space = space_of(draft)
    asked = 0 if draft is None or curves is not None else len(prompts) * (1 if draft.method == "draft" else 2)
    progress = Progress(reporter, asked + choices.rounds * (costs is None))
    basis = MEASURED if costs is None else GIVEN
    if curves is None and draft is not None:
        curves = measure_curves(target, draft, space, prompts, choices.max_tokens, progress)
    if costs is None:
        text = (prompts[0] * TEXT)[: min(TEXT, target.max_length // 2)]
        sizes = {"layers": choices.layers, "hidden_size": choices.draft_hidden_size}
        meter = Meter(target, text, draft, space, batches=choices.batches, **sizes)
        meter.round()
        meter.taken.clear()  # storage is made and libraries pick their kernels
        load = Load()
        for _ in range(choices.rounds):
            meter.round()
            progress.step("forwards")
        costs = meter.costs()
        found = predicted(costs, curves, basis)
        _add_intervals(found, meter, _reachable(costs, curves))
        return found | load.figures(reporter, found["timing_noise"])
    return predicted(costs, curves, basis)


def _add_intervals(found: dict[str, Any], meter: Meter, shapes: Sequence[DraftShape]) -> None:
    """Give each of the `shapes` the 95 % interval of its speedup for one sequence, by a bootstrap over the rounds of
    timing, and the plan `timing_noise`, the largest relative standard error of them. τ counts as known."""
    draw = np.random.default_rng(SEED)
    draws = [meter.drawn(draw) for _ in range(PLAN_DRAWS)]
    plain, noise = DraftShape("plain"), 0.0
    for row, shape in zip(found["shapes"], shapes, strict=True):
        speedups = np.array([_speed(shape, costs, 1) / _speed(plain, costs, 1) for costs in draws])
        row["by_batch"]["1"]["speedup_interval"] = [round(end, 3) for end in interval_of(speedups)]
        noise = max(noise, float(speedups.std() / speedups.mean()))
    found["timing_noise"] = round(noise, 4)


def predicted(costs: Costs, curves: Curves | None, basis: str = GIVEN) -> dict[str, Any]:
    """The surface with the costs it rests on; no model is needed for that."""
    return {**surface(costs, curves), "costs": costs.to_json(), "basis": basis, "machine": costs.machine}


def surface(costs: Costs, curves: Curves | None) -> dict[str, Any]:
    """`plain` and `shapes` with their throughput for each number of sequences (`by_batch`), `best` of each, `stops_at`
    (sequences from which on plain decoding is faster; None: not among the measured), `standalone` drafts with the
    acceptance they need, and a `verdict` in words."""
    plain = _row(DraftShape("plain"), costs)
    shapes = [_row(shape, costs) for shape in _reachable(costs, curves)]
    best = {str(batch): _best(shapes, batch) for batch in costs.batches}
    made = {
        "plain": plain,
        "shapes": shapes,
        "best": best,
        "stops_at": stops_at(costs, best) if shapes else None,
        "standalone": [standalone(costs, layers) for layers in sorted(costs.standalone)],
        "acceptance": curves.to_json() if curves else None,
    }
    return {**made, "verdict": verdict(made)}


def _reachable(costs: Costs, curves: Curves | None) -> list[DraftShape]:
    """Shapes whose forward was measured, and of trees of one size the depth that is fastest for one sequence."""
    if curves is None:
        return []
    most = max(costs.target[1])
    trees: dict[int, DraftShape] = {}
    for shape in curves.trees():
        if shape.nodes <= most and _speed(shape, costs, 1) > _speed(trees.get(shape.nodes), costs, 1):
            trees[shape.nodes] = shape
    return [*(shape for shape in curves.chains() if shape.nodes <= most), *(trees[nodes] for nodes in sorted(trees))]


def _speed(shape: DraftShape | None, costs: Costs, batch: int) -> float:
    """Tokens a second of all sequences."""
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
    """Name of the fastest shape, or plain."""
    top = max(shapes, key=lambda shape: shape["by_batch"][str(batch)]["speedup"], default=None)
    return top["name"] if top and top["by_batch"][str(batch)]["speedup"] > 1 else "plain"


def stops_at(costs: Costs, best: dict[str, str]) -> int | None:
    """The fewest sequences from which on plain decoding is the faster, as far as was measured."""
    last = max((batch for batch in costs.batches if best[str(batch)] != "plain"), default=0)
    return next((batch for batch in costs.batches if batch > last), None)


def standalone(costs: Costs, layers: int) -> dict[str, Any]:
    """A draft of so many layers: what a token of it costs, the acceptance at which it breaks even with its best chain,
    for one sequence, and what it would give at usual acceptances."""
    depths = [depth for depth in CHAINS if depth + 1 <= max(costs.target[1])]
    plain = costs.step(DraftShape("plain"))

    def speedup(acceptance: float) -> tuple[float, int]:
        """(the best of all depths, that depth)."""
        steps = {depth: costs.standalone_step(layers, depth) for depth in depths}
        return max((expected_chain(acceptance, depth) * plain / ms, depth) for depth, ms in steps.items())

    needed = _break_even(lambda acceptance: speedup(acceptance)[0])
    width = {"hidden_size": costs.standalone_hidden_size} if costs.standalone_hidden_size else {}
    return {
        "layers": layers,
        **width,
        "token_ms": round(costs.standalone[layers][1], 3),
        "of_a_plain_step": round(costs.standalone[layers][1] / plain, 4),
        "needed_acceptance": None if needed is None else round(needed, 3),
        "speedups": {
            f"{share:.1f}": {"speedup": round(speedup(share)[0], 3), "depth": speedup(share)[1]}
            for share in (0.5, 0.6, 0.7, 0.8, 0.9)
        },
    }


def _break_even(speedup: Any) -> float | None:
    """The smallest acceptance at which the speedup is 1, by bisection; None where even a perfect draft loses."""
    low, high = 0.0, SURE
    if speedup(high) < 1:
        return None
    for _ in range(30):
        middle = (low + high) / 2
        low, high = (low, middle) if speedup(middle) >= 1 else (middle, high)
    return high


def verdict(made: dict[str, Any]) -> str:
    """Two or three sentences."""
    return " ".join(filter(None, (_of_shapes(made), _of_standalone(made["standalone"]))))


def _of_shapes(made: dict[str, Any]) -> str:
    if not made["shapes"]:
        return ""
    name = made["best"]["1"]
    if name == "plain":
        return NEVER
    top = next(shape for shape in made["shapes"] if shape["name"] == name)
    at = top["by_batch"]["1"]
    share = at["draft_ms"] / at["step_ms"]
    first = f"For one sequence a {name} is fastest: {at['speedup']:.2f} × plain, τ {top['tau']:.2f}; {share:.0%} "
    first += "of its step is drafting."
    batches = [int(batch) for batch in made["best"]]
    if made["stops_at"]:
        return f"{first} From {made['stops_at']} sequences at once on plain decoding is faster."
    return first + (
        f" Speculation pays up to the {max(batches)} sequences at once that were tried." if len(batches) > 1 else ""
    )


def _of_standalone(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    parts = [
        f"{row['layers']} layers need {row['needed_acceptance']:.0%} of their tokens accepted"
        if row["needed_acceptance"] is not None
        else f"{row['layers']} layers cannot pay"
        for row in rows
    ]
    width = rows[0].get("hidden_size")
    named = f"Standalone drafts of hidden size {width}" if width else "Standalone drafts cut from this base"
    return f"{named}: {', '.join(parts)}."


def space_of(draft: Any) -> TuningSpace | None:
    """What can be set about a draft. Raises Unsupported for a method that does not say."""
    if draft is None:
        return None
    module = METHODS[draft.method].load("drafter")
    if not hasattr(module, "tuning"):
        raise Unsupported(f"The method {draft.method!r} does not say what there is to plan about its drafts.")
    return module.tuning(draft)


def measure_curves(
    target: Target,
    draft: Any,
    space: TuningSpace,
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    progress: Progress,
) -> Curves:
    """What the draft gets right in answers of up to `max_tokens`: its deepest chain, then its widest tree."""
    chain = steps_of(target, draft, chain_options(space.deepest, space.dynamic), prompts, max_tokens, progress)
    shares = chain_shares(chain, space.deepest)
    one_pass = draft.method == "medusa"
    counted = sum(step.counted for step in chain)
    if draft.method == "draft":
        return Curves(shares, one_pass=False, dynamic=False, verifications=counted)
    wide = steps_of(target, draft, space.at_depth(space.deepest), prompts, max_tokens, progress)
    if not space.dynamic:
        return Curves(shares, {}, values_from_steps(wide), one_pass, False, counted)
    sizes = [size for size in TREES if size <= max(ROWS)]
    by_depth = {depth: lengths_by_size(wide, sizes, depth) for depth in range(1, space.deepest + 1)}
    return Curves(shares, by_depth, verifications=counted)


def steps_of(
    target: Target,
    draft: Any,
    options: dict[str, Any],
    prompts: Sequence[Sequence[int]],
    max_tokens: int,
    progress: Progress,
) -> list[Step]:
    """Every step of answers to `prompts`."""
    drafter, steps = make_drafter(target, draft, options), []
    for prompt in prompts:
        target.rewind(0)
        steps += generate(target, drafter, prompt, GenerateConfig(max_tokens=max_tokens))
        progress.step("acceptance")
    return steps

"""Checks the planner: predicted and measured throughput of the starter's head.

    python -m benchmarks.planner --json FILE [--questions FILE]

Acceptance is measured on every second question of a category, throughput on the others, so that predictions are for
unseen questions. `--questions`: a file in MT-Bench format instead of the built-in questions; with few questions, their
differences exceed the planner's error. Contenders are plain decoding, chains of 1 to 5, trees of 4 to 16 nodes, and
untrained standalone drafts of 2, 4 and 8 layers of the base model. All contenders answer each question in turn, and the
planner measures its costs again between questions, under the same machine load. A contender's throughput is its tokens
divided by verifications times the median step time of each question. The goals are an error of at most 15 % for the
head's shapes, and the correct order of the standalone drafts.
"""

import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.report import conditions, finish, load_average, make_parser, table_lines
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.step import Step
from decoding.target import Target, fast_target
from evaluation.costs import Costs
from evaluation.estimate import milliseconds
from evaluation.meter import Meter
from evaluation.planner import (
    MAX_LENGTH,
    PLAN_TEXT_TOKENS,
    PlanProgress,
    generate_steps,
    measure_curves,
    prompts_of,
    tuning_space,
)
from evaluation.questions import BUILT_IN, read_questions, spread_over_categories
from evaluation.shapes import DraftShape, chain_shares
from models.base import load_base
from models.checkpoints import load_draft
from models.standalone import StandaloneDraft
from models.starter import STARTER_HEAD, starter_path
from speculoos.reporting import SilentReporter

ALLOWED = 0.15
"""Allowed relative error of a prediction."""
DEPTHS = (1, 3)
"""Chain depths of the standalone drafts."""
STANDALONE_TOKENS = 24
"""Maximum tokens of their answers: untrained, only their cost matters."""
STANDALONE = "standalone"
MAX_TOKENS, LAYERS = 64, (2, 4, 8)


@dataclass
class PlannerContender:
    """One decoding configuration. `layers` and `depth` are for a standalone draft, else 0."""

    name: str
    draft: Any
    options: dict[str, Any]
    tau: float
    layers: int = 0
    depth: int = 0
    shape: DraftShape | None = None
    answers: list[list[Step]] = field(default_factory=list)

    def figures(self) -> dict[str, float]:
        """Measured throughput, accepted length τ and step time."""
        counted = [[step for step in answer if step.counted] for answer in self.answers]
        whole = [steps for steps in counted if steps]
        medians = [statistics.median(map(milliseconds, steps)) for steps in whole]
        tokens = sum(len(step.tokens) for steps in whole for step in steps)
        spent = sum(len(steps) * median for steps, median in zip(whole, medians, strict=True))
        count = sum(map(len, whole))
        return {
            "tokens_per_second": round(tokens / spent * 1e3, 2),
            "tau": round(tokens / count, 4),
            "step_ms": round(spent / count, 3),
        }


def contenders(
    target: Target, head: Any, cuts: dict[int, Any], prompts: Sequence[Sequence[int]]
) -> list[PlannerContender]:
    """All contenders, with the τ that the planner predicts."""
    progress = PlanProgress(SilentReporter(), 1)
    curves = measure_curves(target, head, tuning_space(head), prompts, MAX_TOKENS, progress)
    trees: dict[int, DraftShape] = {}  # of each size the one with the highest τ; the fastest is known only with costs
    for shape in sorted(curves.trees(), key=lambda shape: -shape.tau):
        trees.setdefault(shape.nodes, shape)
    shapes = [*curves.chains(), *(trees[nodes] for nodes in sorted(trees))]
    result = [PlannerContender("plain", None, {"drafter": "none"}, 1.0, shape=DraftShape("plain"))]
    result += [PlannerContender(shape.name, head, shape.options, shape.tau, shape=shape) for shape in shapes]
    for layers, draft in cuts.items():
        steps = generate_steps(target, draft, {"depth": max(DEPTHS)}, prompts[:4], STANDALONE_TOKENS, progress)
        shares = chain_shares(steps, max(DEPTHS))
        for depth in DEPTHS:
            tau, name = 1 + sum(shares[:depth]), f"{layers} layers, chain {depth}"
            result.append(PlannerContender(name, draft, {"depth": depth}, tau, layers, depth))
    return result


def race(questions: Path, limit: int) -> dict[str, Any]:
    """Measure and predict all contenders."""
    load, base = load_average(), load_base(starter_path())
    head = load_draft(STARTER_HEAD, base)
    cuts = {count: StandaloneDraft.from_base(base, count).eval() for count in LAYERS}
    target = fast_target(base, MAX_LENGTH)
    rows = spread_over_categories(read_questions(questions), 2 * limit)
    rows.sort(key=lambda row: row.get("category") or "")
    prompts = prompts_of(base, rows, target.max_length - MAX_TOKENS)
    known, asked = prompts[::2], prompts[1::2]
    entries = contenders(target, head, cuts, known)
    text = (known[0] * PLAN_TEXT_TOKENS)[: min(PLAN_TEXT_TOKENS, target.max_length // 2)]
    meter = Meter(target, text, head, tuning_space(head), batches=(1,), layers=LAYERS)
    meter.round()
    meter.taken.clear()
    for number, prompt in enumerate(asked, 1):
        for entry in entries if number % 2 else reversed(entries):
            target.rewind(0)
            drafter = make_drafter(target, entry.draft, entry.options)
            config = GenerateConfig(max_tokens=STANDALONE_TOKENS if entry.layers else MAX_TOKENS)
            entry.answers.append(list(generate(target, drafter, prompt, config)))
        meter.round()
        print(f"{number}/{len(asked)} questions", file=sys.stderr)
    costs = meter.costs()
    results = [compared(entry, costs) for entry in entries]
    return {"contenders": results, **verdict(results), "costs": costs.to_json(), **conditions(load)}


def compared(entry: PlannerContender, costs: Costs) -> dict[str, Any]:
    """Prediction, measurement and errors of a contender."""
    measured = entry.figures()
    step = costs.step(entry.shape) if entry.shape else costs.standalone_step(entry.layers, entry.depth)
    speed = entry.tau * 1e3 / step
    return {
        "name": entry.name,
        "kind": STANDALONE if entry.layers else "head",
        "layers": entry.layers,
        "depth": entry.depth,
        "predicted": {"tokens_per_second": round(speed, 2), "tau": round(entry.tau, 4), "step_ms": round(step, 3)},
        "measured": measured,
        "error": round(speed / measured["tokens_per_second"] - 1, 4),
        "error_of_step": round(step / measured["step_ms"] - 1, 4),
    }


def verdict(results: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Whether the goals are met."""
    worst = max(abs(row["error"]) for row in results if row["kind"] != STANDALONE)
    right = all(_order(results, depth, "predicted") == _order(results, depth, "measured") for depth in DEPTHS)
    return {"worst_error": worst, "within": worst <= ALLOWED, "order_right": right}


def _order(results: Sequence[dict[str, Any]], depth: int, which: str) -> list[int]:
    """Layer counts of the standalone drafts, fastest first."""
    rows = [row for row in results if row["kind"] == STANDALONE and row["depth"] == depth]
    return [row["layers"] for row in sorted(rows, key=lambda row: -row[which]["tokens_per_second"])]


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    rows = []
    for one in result["contenders"]:
        p, m = one["predicted"], one["measured"]
        cells = (one["name"], p["tokens_per_second"], m["tokens_per_second"], f"{one['error']:+.1%}")
        rows.append((*cells, p["tau"], m["tau"], p["step_ms"], m["step_ms"]))
    head = "| | predicted tokens/s | measured | error | τ predicted | τ measured | step ms predicted | measured |"
    lines = table_lines(head, rows)
    words = "right" if result["order_right"] else "WRONG"
    lines.append(
        f"\nWorst error of the head's shapes {result['worst_error']:.1%} (allowed {ALLOWED:.0%}); order of the "
        f"standalone drafts {words}; load {result['load'][0]} before, {result['load'][1]} after."
    )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--questions", type=Path, default=BUILT_IN)
    parser.add_argument("--limit", type=int, default=20, help="questions for acceptance, and as many for throughput")
    args = parser.parse_args(arguments)
    result = race(args.questions, args.limit)
    finish(result, table(result), args.json)
    return 0 if result["within"] and result["order_right"] else 1


if __name__ == "__main__":
    sys.exit(main())

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

import argparse
import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

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
    generate_steps,
    measure_curves,
    prompts_of,
    tuning_space,
)
from evaluation.questions import BUILT_IN, read_questions, spread_over_categories
from evaluation.shapes import DraftShape, chain_shares
from models.base import LoadedBase, load_base
from models.checkpoints import load_draft
from models.eagle3 import Eagle3Draft
from models.standalone import StandaloneDraft
from models.starter import STARTER_HEAD, starter_path
from models.tiny import make_tiny_base

ALLOWED = 0.15
"""Allowed relative error of a prediction."""
DEPTHS = (1, 3)
"""Chain depths of the standalone drafts."""
STANDALONE_TOKENS = 24
"""Maximum tokens of their answers: untrained, only their cost matters."""
STANDALONE = "standalone"


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


def silent(_note: str) -> None:
    """No progress is shown."""


def contenders(
    target: Target, head: Any, cuts: dict[int, Any], prompts: Sequence[Sequence[int]], args: argparse.Namespace
) -> list[PlannerContender]:
    """All contenders, with the τ that the planner predicts."""
    curves = measure_curves(target, head, tuning_space(head), prompts, args.max_tokens, silent)
    shapes = [*curves.chains(), *_longest(curves.trees())]
    result = [PlannerContender("plain", None, {"drafter": "none"}, 1.0, shape=DraftShape("plain"))]
    result += [PlannerContender(shape.name, head, shape.options, shape.tau, shape=shape) for shape in shapes]
    for layers, draft in cuts.items():
        steps = generate_steps(target, draft, {"depth": max(DEPTHS)}, prompts[:4], STANDALONE_TOKENS, silent)
        shares = chain_shares(steps, max(DEPTHS))
        for depth in DEPTHS:
            tau = 1 + sum(shares[:depth])
            name = f"{layers} layers, chain {depth}"
            result.append(PlannerContender(name, draft, {"depth": depth}, tau, layers, depth))
    return result


def _longest(trees: list[DraftShape]) -> list[DraftShape]:
    """The tree with the highest predicted τ of each size; the fastest is known only after measuring costs."""
    best: dict[int, DraftShape] = {}
    for shape in sorted(trees, key=lambda shape: -shape.tau):
        best.setdefault(shape.nodes, shape)
    return [best[nodes] for nodes in sorted(best)]


def race(base: LoadedBase, head: Any, args: argparse.Namespace) -> dict[str, Any]:
    """Measure and predict all contenders."""
    before = load_average()
    layers = [count for count in args.layers if count < base.num_layers]
    cuts = {count: StandaloneDraft.from_base(base, count).eval() for count in layers}
    target = fast_target(base, MAX_LENGTH)
    rows = spread_over_categories(read_questions(args.questions), 2 * args.limit)
    rows.sort(key=lambda row: row.get("category") or "")
    prompts = prompts_of(base, rows, target.max_length - args.max_tokens)
    known, asked = prompts[::2], prompts[1::2]
    entries = contenders(target, head, cuts, known, args)
    text = (known[0] * PLAN_TEXT_TOKENS)[: min(PLAN_TEXT_TOKENS, target.max_length // 2)]
    meter = Meter(target, text, head, tuning_space(head), batches=(1,), layers=layers)
    meter.round()
    meter.taken.clear()
    for number, prompt in enumerate(asked, 1):
        for entry in entries if number % 2 else reversed(entries):
            target.rewind(0)
            drafter = make_drafter(target, entry.draft, entry.options)
            most = min(args.max_tokens, STANDALONE_TOKENS) if entry.layers else args.max_tokens
            entry.answers.append(list(generate(target, drafter, prompt, GenerateConfig(max_tokens=most))))
        meter.round()
        print(f"{number}/{len(asked)} questions", file=sys.stderr)
    costs = meter.costs()
    results = [compared(entry, costs) for entry in entries]
    return {"contenders": results, **verdict(results), "costs": costs.to_json(), **conditions(before)}


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


def subject(args: argparse.Namespace) -> tuple[LoadedBase, Any]:
    """The starter with its head, or with --tiny a random base and a random EAGLE-3 draft."""
    if not args.tiny:
        base = load_base(args.model, dtype=args.dtype, device=args.device)
        return base, load_draft(args.head, base)
    torch.manual_seed(0)
    base = load_base(make_tiny_base(Path(tempfile.mkdtemp())))
    return base, Eagle3Draft.from_base(base)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    parser.add_argument("--model", type=Path, default=starter_path())
    parser.add_argument("--head", type=Path, default=STARTER_HEAD)
    parser.add_argument("--questions", type=Path, default=BUILT_IN)
    parser.add_argument("--limit", type=int, default=20, help="questions for acceptance, and as many for throughput")
    parser.add_argument("--max-tokens", type=int, default=64)
    parser.add_argument("--layers", type=int, nargs="+", default=[2, 4, 8])
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--tiny", action="store_true", help="use a random base model, to test this script")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    args = parse(arguments)
    result = race(*subject(args), args)
    finish(result, table(result), args.json)
    return 0 if args.tiny or (result["within"] and result["order_right"]) else 1


if __name__ == "__main__":
    sys.exit(main())

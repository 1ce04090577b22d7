"""Checks the planner: predicted and measured throughput of the starter's head.

    python -m benchmarks.planner --json FILE [--questions FILE]

Acceptance is measured on every second question of a category, throughput on the others, so that predictions are for
unseen questions. `--questions`: a file in MT-Bench format instead of the built-in questions; with few questions, their
differences exceed the planner's error. Contenders are plain decoding, chains of 1 to 5 and trees of 4 to 16 nodes. All
answer each question in turn, and the planner measures its costs again between questions, under the same machine load. A
contender's throughput is its tokens divided by verifications times the median step time of each question. The goal is
an error of at most 15 %.
"""

import statistics
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.report import conditions, finish, load_average, make_parser, table_lines
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.step import Step
from decoding.target import fast_target
from evaluation.costs import Costs
from evaluation.estimate import milliseconds
from evaluation.meter import Meter
from evaluation.planner import MAX_LENGTH, PLAN_TEXT_TOKENS, measure_curves, prompts_of, tuning_space
from evaluation.questions import BUILT_IN, read_questions, spread_over_categories
from evaluation.shapes import DraftShape
from models.base import load_base
from models.checkpoints import load_draft
from models.starter import STARTER_HEAD, starter_path

ALLOWED = 0.15
"""Allowed relative error of a prediction."""
MAX_TOKENS = 64


def race(questions: Path, limit: int) -> dict[str, Any]:
    """Measure and predict all contenders."""
    load, base = load_average(), load_base(starter_path())
    head, target = load_draft(STARTER_HEAD, base), fast_target(base, MAX_LENGTH)
    rows = spread_over_categories(read_questions(questions), 2 * limit)
    rows.sort(key=lambda row: row.get("category") or "")
    prompts = prompts_of(base, rows, target.max_length - MAX_TOKENS)
    tuned_on, measured_on, space = prompts[::2], prompts[1::2], tuning_space(head)
    curves = measure_curves(target, head, space, tuned_on, MAX_TOKENS, lambda note: None)
    trees: dict[int, DraftShape] = {}  # of each size the one with the highest τ; the fastest is known only with costs
    for shape in sorted(curves.trees(), key=lambda shape: -shape.tau):
        trees.setdefault(shape.nodes, shape)
    shapes = [DraftShape("plain"), *curves.chains(), *(trees[nodes] for nodes in sorted(trees))]
    drafters = [make_drafter(target)] + [make_drafter(target, head, shape.options) for shape in shapes[1:]]
    answers: list[list[list[Step]]] = [[] for _ in shapes]
    text = (tuned_on[0] * PLAN_TEXT_TOKENS)[: min(PLAN_TEXT_TOKENS, target.max_length // 2)]
    meter = Meter(target, text, head, space, batches=(1,), layers=())
    meter.round()
    meter.times.clear()
    for number, prompt in enumerate(measured_on, 1):
        pairs = list(zip(drafters, answers, strict=True))
        for drafter, taken in pairs if number % 2 else reversed(pairs):
            target.rewind(0)
            taken.append(list(generate(target, drafter, prompt, GenerateConfig(max_tokens=MAX_TOKENS))))
        meter.round()
        print(f"{number}/{len(measured_on)} questions", file=sys.stderr)
    costs = meter.costs()
    results = [compared(shape, taken, costs) for shape, taken in zip(shapes, answers, strict=True)]
    worst = max(abs(row["error"]) for row in results)
    goal = {"worst_error": worst, "within": worst <= ALLOWED}
    return {"contenders": results, **goal, "costs": costs.to_json(), **conditions(load)}


def compared(shape: DraftShape, answers: Sequence[Sequence[Step]], costs: Costs) -> dict[str, Any]:
    """Prediction and measurement of a contender, each {tokens_per_second, tau, step_ms}, and errors."""
    counted = [steps for steps in ([step for step in answer if step.counted] for answer in answers) if steps]
    tokens, count = sum(len(step.tokens) for steps in counted for step in steps), sum(map(len, counted))
    spent = sum(len(steps) * statistics.median(map(milliseconds, steps)) for steps in counted)
    step, tau = costs.step(shape), shape.tau
    return {
        "name": shape.name,
        "predicted": {
            "tokens_per_second": round(tau * 1e3 / step, 2),
            "tau": round(tau, 4),
            "step_ms": round(step, 3),
        },
        "measured": {
            "tokens_per_second": round(tokens / spent * 1e3, 2),
            "tau": round(tokens / count, 4),
            "step_ms": round(spent / count, 3),
        },
        "error": round(tau * 1e3 / step / (tokens / spent * 1e3) - 1, 4),
        "error_of_step": round(step / (spent / count) - 1, 4),
    }


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    rows = []
    for one in result["contenders"]:
        p, m = one["predicted"], one["measured"]
        cells = (one["name"], p["tokens_per_second"], m["tokens_per_second"], f"{one['error']:+.1%}")
        rows.append((*cells, p["tau"], m["tau"], p["step_ms"], m["step_ms"]))
    head = "| | predicted tokens/s | measured | error | τ predicted | τ measured | step ms predicted | measured |"
    lines = table_lines(head, rows)
    lines.append(
        f"\nWorst error {result['worst_error']:.1%} (allowed {ALLOWED:.0%}); "
        f"load {result['load'][0]} before, {result['load'][1]} after."
    )
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--questions", type=Path, default=BUILT_IN)
    parser.add_argument("--limit", type=int, default=20, help="questions for acceptance, and as many for throughput")
    args = parser.parse_args(arguments)
    result = race(args.questions, args.limit)
    finish(result, table(result), args.json)
    return 0 if result["within"] else 1


if __name__ == "__main__":
    sys.exit(main())

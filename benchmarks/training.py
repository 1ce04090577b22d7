"""Compares training with nvidia-modelopt 0.47 and speculators 0.9: tokens per second and peak memory.

    python -m benchmarks.training --data FOLDER --modelopt VENV --speculators VENV --json FILE

EAGLE-3 (three unrolled steps, full vocabulary, LM head of the base model) and Medusa (two heads of one layer with their
own matrices) on the same conversations with the base model's answers, in the same batches, with the same AdamW. All
contenders run the frozen base model in every step. In each round all contenders run the same step in turn, so that
disturbances affect all; speeds are medians over rounds, ratios are medians of the rounds' ratios. Our base model and LM
head run in bfloat16, and in a second run everything in fp32; the other libraries run in fp32.

--data is a data set folder, as `speculoos data generate` makes it. --make-peers DIR creates the libraries' environments
(minutes, some GB). A library without an environment is reported as not raced.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from benchmarks.race import Contender, ask_in_turn
from benchmarks.report import conditions, finish, goal_lines, load_average, make_parser, table_lines
from benchmarks.training_plan import (
    PEERS,
    BenchmarkPlan,
    BenchmarkSettings,
    add_options,
    conversations,
    ours,
    peers,
    training_sides,
)

OURS, OURS_FP32, BEFORE = "ours", "ours, all fp32", "before"
WANTED = {"eagle3": 1.5, "medusa": 2.0}
"""Goal of our speedup over the fastest other library."""


def race(args: argparse.Namespace, method: str, plan: BenchmarkPlan) -> dict[str, Any]:
    """Run all rounds of one method; returns figures of each contender, and comparisons."""
    contenders, missing = entries(args, method)
    rounds: list[dict[str, dict[str, Any]]] = []
    with training_sides(contenders, method, args, plan) as (sides, failed):
        for number in range(min(args.warm_up + args.rounds, len(plan.steps))):
            rounds.append(ask_in_turn(sides, number, step=number, lr=plan.lr(number)))
            spoken = (f"{name} {plan.tokens(number) / one['seconds']:.0f} tokens/s" for name, one in rounds[-1].items())
            print(f"{method}: round {number + 1}, {', '.join(spoken)}", flush=True)
    figures = {side.name: {**contender_figures(side.name, rounds, plan, args.warm_up), **side.facts} for side in sides}
    return {"contenders": figures, **against(rounds, figures, method, args.warm_up), "not_raced": missing | failed}


def entries(args: argparse.Namespace, method: str) -> tuple[list[Contender], dict[str, str]]:
    """(contenders, alternating between ours and others; {library: reason} of missing ones)."""
    own = [ours(OURS, args.base_dtype), ours(OURS_FP32, "float32")]
    own += [ours(BEFORE, args.base_dtype, args.before.resolve())] if args.before else []
    others, missing = peers(args, method)
    mixed = [one for pair in zip(own, others, strict=False) for one in pair]
    return mixed + [one for one in [*own, *others] if one not in mixed], missing


def contender_figures(name: str, rounds: list[dict[str, Any]], plan: BenchmarkPlan, warm_up: int) -> dict[str, Any]:
    """Medians over the rounds after warm-up."""
    counted = [(plan.tokens(i), taken[name]) for i, taken in enumerate(rounds) if i >= warm_up]
    return {
        "tokens_per_second": round(statistics.median(n / taken["seconds"] for n, taken in counted), 1),
        "tokens_per_cpu_second": round(statistics.median(n / taken["cpu_seconds"] for n, taken in counted), 1),
        "losses": [round(taken[name]["loss"], 4) for taken in rounds],
        "peak_memory_mb": rounds[-1][name]["peak_memory_mb"],
    }


def against(rounds: list[dict[str, Any]], figures: dict[str, Any], method: str, warm_up: int) -> dict[str, Any]:
    """Speed ratios to each library, goals, and the loss difference between bfloat16 and fp32."""
    peers = [name for name in figures if name in PEERS or name == BEFORE]
    ratios = {
        mine: {name: round(_ratio(rounds[warm_up:], mine, name), 3) for name in peers}
        for mine in (OURS, OURS_FP32)
        if mine in figures
    }
    result: dict[str, Any] = {"times_as_fast": ratios}
    wanted = _wanted(figures, ratios.get(OURS, {}), method)
    if OURS in figures and OURS_FP32 in figures:
        apart = [abs(taken[OURS]["loss"] / taken[OURS_FP32]["loss"] - 1) for taken in rounds]
        result["loss_difference"] = round(max(apart), 5)
        if wanted:
            wanted["loss within 1 % of all fp32"] = result["loss_difference"] <= 0.01
    return result | ({"wanted": wanted} if wanted else {})


def _wanted(figures: dict[str, Any], ratios: dict[str, float], method: str) -> dict[str, bool]:
    peaks = {name: one["peak_memory_mb"] for name, one in figures.items()}
    wanted = {}
    if peers := [name for name in ratios if name in PEERS]:
        fastest = min(ratios[name] for name in peers)
        wanted[f"at least {WANTED[method]} times the fastest peer"] = fastest >= WANTED[method]
        wanted["peak memory no higher"] = peaks[OURS] <= min(peaks[name] for name in peers)
    if BEFORE in ratios:
        wanted["at least 0.98 times the commit before"] = ratios[BEFORE] >= 0.98
        wanted["at most 1.02 of its memory"] = peaks[OURS] <= 1.02 * peaks[BEFORE]
    return wanted


def _ratio(rounds: list[dict[str, Any]], mine: str, theirs: str) -> float:
    return statistics.median(taken[theirs]["seconds"] / taken[mine]["seconds"] for taken in rounds)


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    machine, data = result["machine"], result["data"]
    lines = [
        f"{result['date']}, {machine['processor']}, {machine['cores']} cores, {result['threads']} threads, "
        f"load {result['load'][0]} to {result['load'][1]}; {data['conversations']} conversations, "
        f"{data['tokens']} tokens ({data['answer_tokens']} of answers), padding {data['padding']:.1%}.",
    ]
    for method, numbers in result["methods"].items():
        rows = []
        for name, one in numbers["contenders"].items():
            ratios = [numbers["times_as_fast"].get(mine, {}).get(name, "") for mine in (OURS, OURS_FP32)]
            versions = ", ".join(f"{k} {v}" for k, v in one["versions"].items())
            millions = f"{one['trainable'] / 1e6:.1f} M"
            rows.append((name, one["tokens_per_second"], *ratios, one["peak_memory_mb"], millions, versions))
        head = "| | real tokens/s | ours is × | all-fp32 ours is × | peak MiB | trained | versions |"
        lines += [f"\n**{method}**", "", *table_lines(head, rows)]
        if "loss_difference" in numbers:
            lines.append(
                f"\nLargest difference of our losses, bf16 base against all fp32: {numbers['loss_difference']:.2%}."
            )
        lines += [f"{name}: not raced, {reason}." for name, reason in numbers["not_raced"].items()]
        lines += goal_lines(numbers.get("wanted", {}))
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    add_options(parser, batch_tokens=1024)
    parser.add_argument("--before", type=Path, help="a worktree of another commit, which takes part")
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=16, help="rounds that count")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before them")
    parser.add_argument("--methods", nargs="+", choices=WANTED, default=list(WANTED))
    args = parser.parse_args(arguments)
    rows = conversations(args.base, args.data, args.max_length)[: args.conversations]
    epochs = args.warm_up + args.rounds  # more than enough steps; the rounds end the race
    plan, before = BenchmarkPlan.make(rows, args.batch_tokens, epochs, BenchmarkSettings()), load_average()
    methods = {method: race(args, method, plan) for method in args.methods}
    result = conditions(before) | {"threads": args.threads, "data": plan.facts(), "methods": methods}
    finish(result, table(result), args.json)


if __name__ == "__main__":
    main()

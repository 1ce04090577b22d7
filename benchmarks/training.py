"""Compares training with nvidia-modelopt 0.47 and speculators 0.9: tokens per second and peak memory.

    python -m benchmarks.training --data FOLDER --modelopt VENV --speculators VENV --json FILE

EAGLE-3 (three unrolled steps, full vocabulary, LM head of the base model) and Medusa (two heads of one layer with their
own matrices) on the same conversations with the base model's answers, in the same batches, with the same AdamW. All
contenders run the frozen base model in every step. In each round all contenders run the same step in turn, so that
disturbances affect all; speeds are medians over rounds, ratios are medians of the rounds' ratios. Our base model and LM
head run in bfloat16, and in a second run everything in fp32; the other libraries run in fp32.

--data is a data set folder; with --prompts it is created if missing. --make-peers DIR creates the libraries'
environments (minutes, some GB). A library without an environment is reported as not raced.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from benchmarks.answers import AnswerRequest, make_answers
from benchmarks.environments import make_environment
from benchmarks.plan import BenchmarkPlan, BenchmarkSettings, conversations
from benchmarks.race import PEERS, Contender, add_options, ours, peer, run_round, start_contenders
from benchmarks.report import conditions, finish, load_average
from benchmarks.tables import goal_lines, table_lines

OURS, OURS_FP32, BEFORE = "ours", "ours, all fp32", "before"
WANTED = {"eagle3": 1.5, "medusa": 2.0}
"""Goal of our speedup over the fastest other library."""


def race(args: argparse.Namespace, method: str, plan: BenchmarkPlan) -> dict[str, Any]:
    """Run all rounds of one method; returns figures of each contender, and comparisons."""
    contenders, missing = entries(args, method)
    with start_contenders(contenders, method, args.base, plan, args.threads) as (runners, failed):
        facts = {runner.name: runner.facts for runner in runners}
        rounds: list[dict[str, dict[str, float]]] = []
        for number in range(min(args.warm_up + args.rounds, len(plan.steps))):
            rounds.append(run_round(runners, number, plan))
            print(f"{method}: round {number + 1}, {_spoken(rounds[-1], plan.tokens(number))}", flush=True)
        peaks = {runner.name: runner.finish() for runner in runners}
    figures = {
        name: {
            **contender_figures(name, rounds, plan, args.warm_up),
            "peak_memory_mb": peaks[name],
            "trainable": fact["trainable"],
            "versions": fact["versions"],
        }
        for name, fact in facts.items()
    }
    return {"contenders": figures, **against(rounds, figures, method, args.warm_up), "not_raced": missing | failed}


def entries(args: argparse.Namespace, method: str) -> tuple[list[Contender], dict[str, str]]:
    """(contenders, alternating between ours and others; {library: reason} of missing ones)."""
    own = [ours(OURS, args.base_dtype), ours(OURS_FP32, "float32")]
    own += [ours(BEFORE, args.base_dtype, args.before.resolve())] if args.before else []
    peers, missing = [], {}
    for name, methods in PEERS.items():
        if method not in methods:
            missing[name] = f"trains no {method}"
        elif (environment := environment_of(args, name)) is None:
            missing[name] = f"no environment: give --{name} or --make-peers"
        else:
            peers.append(peer(name, environment))
    mixed = [one for pair in zip(own, peers, strict=False) for one in pair]
    return mixed + [one for one in [*own, *peers] if one not in mixed], missing


def environment_of(args: argparse.Namespace, name: str) -> Path | None:
    return getattr(args, name) or (make_environment(name, args.make_peers) if args.make_peers else None)


def contender_figures(name: str, rounds: list[dict[str, Any]], plan: BenchmarkPlan, warm_up: int) -> dict[str, Any]:
    """Medians over the rounds after warm-up."""
    counted = [(plan.tokens(i), taken[name]) for i, taken in enumerate(rounds) if i >= warm_up]
    return {
        "tokens_per_second": round(statistics.median(n / taken["seconds"] for n, taken in counted), 1),
        "tokens_per_cpu_second": round(statistics.median(n / taken["cpu_seconds"] for n, taken in counted), 1),
        "losses": [round(taken[name]["loss"], 4) for taken in rounds],
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


def _spoken(taken: dict[str, dict[str, float]], tokens: int) -> str:
    return ", ".join(f"{name} {tokens / one['seconds']:.0f} tokens/s" for name, one in taken.items())


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


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--prompts", type=Path, help="JSONL of prompts to make --data from, if it is missing")
    parser.add_argument("--before", type=Path, help="a worktree of another commit, which takes part")
    parser.add_argument("--conversations", type=int, default=64)
    parser.add_argument("--batch-tokens", type=int, default=1024, help="tokens of one step, padding included")
    parser.add_argument("--rounds", type=int, default=16, help="rounds that count")
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before them")
    parser.add_argument("--methods", nargs="+", choices=WANTED, default=list(WANTED))
    parser.add_argument(
        "--make-peers", type=Path, metavar="DIR", help="make the environments that are not given in DIR"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    if args.prompts and not (args.data / "dataset.json").exists():
        make_answers(args.base, args.prompts, args.data, AnswerRequest(args.conversations))
    rows = conversations(args.base, args.data, args.max_length)[: args.conversations]
    epochs = args.warm_up + args.rounds  # more than enough steps; the rounds end the race
    plan = BenchmarkPlan.make(rows, args.batch_tokens, epochs, BenchmarkSettings())
    before = load_average()
    methods = {method: race(args, method, plan) for method in args.methods}
    result = conditions(before) | {
        "threads": args.threads,
        "data": plan.facts(),
        "methods": methods,
    }
    finish(result, table(result), args.json)


if __name__ == "__main__":
    main()

"""Compares decoding of two commits: plain and with the starter's head, tokens per second and memory.

    python -m benchmarks.commits --before ../older --questions MT_BENCH --json OUT

Greedy, batch 1, the same tree for both. Both commits answer every prompt with both drafters before the next prompt, in
alternating order. Each commit runs in its own process per dtype, restarted `--starts` times, as the memory layout of a
process changes its speed by up to 10 %. Ratios are ratios of medians over all answers; their 95 % intervals are from a
bootstrap over the starts of each side. To compare training, use `python -m benchmarks.training --before`; to compare
data generation, `python -m benchmarks.datagen --before`.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.decode import prompts_of
from benchmarks.report import conditions, finish, load_average
from benchmarks.side import BenchmarkSide
from benchmarks.tables import goal_lines, table_lines
from models.base import load_tokenizer
from models.starter import STARTER_HEAD, starter_path

SIDE = Path(__file__).with_name("commits_side.py")
DRAFTERS = ("plain", "head")
WARM_UP = 1
"""Prompts of each start that are not measured."""
LEAST_SPEED, MOST_MEMORY = 0.98, 1.02

SIDES = ("before", "now")
Answer = dict[str, dict[str, Any]]
"""{commit: report} for one prompt and drafter."""
Answers = list[dict[str, Answer]]
"""One entry per prompt: {drafter: answer}."""


def race(args: argparse.Namespace, dtype: str, prompts: Path, count: int) -> dict[str, Any]:
    """Run both commits on all prompts; returns figures by drafter, and peak memory."""
    starts = [of_start(args, dtype, prompts, range(first, count, args.starts)) for first in range(args.starts)]
    last = starts[-1][-1][DRAFTERS[-1]]
    memory = {who: round(last[who]["peak_memory_mb"]) for who in SIDES}
    return {
        "starts": args.starts,
        "drafters": {d: figures([[answer[d] for answer in one[WARM_UP:]] for one in starts]) for d in DRAFTERS},
        "peak_memory_mb": memory | {"ratio": round(memory["now"] / memory["before"], 3)},
    }


def of_start(args: argparse.Namespace, dtype: str, prompts: Path, numbers: range) -> Answers:
    """Answers of a new process of each commit to some of the prompts."""
    options = {"model": str(args.model), "dtype": dtype, "prompts": str(prompts), "checkpoint": str(args.checkpoint)}
    options |= {"tokens": args.tokens, "threads": args.threads}
    answers: Answers = []
    with BenchmarkSide(SIDE, options) as now, BenchmarkSide(SIDE, options, args.before.resolve()) as before:
        sides = {"now": now, "before": before}
        for i, number in enumerate(numbers):
            order = SIDES if i % 2 else SIDES[::-1]
            prompt = {"prompt": number}
            answers.append({d: {who: sides[who].ask(prompt | {"drafter": d}) for who in order} for d in DRAFTERS})
    print(f"{dtype}: start {numbers.start + 1}/{numbers.step}", file=sys.stderr)
    return answers


def figures(starts: list[list[Answer]]) -> dict[str, Any]:
    """Median speeds of one drafter, the speed ratio, and the number of equal answers."""
    answers = [answer for one in starts for answer in one]
    speeds = {who: [[each[who]["tokens"] / each[who]["seconds"] for each in one] for one in starts] for who in SIDES}
    whole = {who: np.concatenate(values) for who, values in speeds.items()}
    return {
        "tokens_per_second": {who: round(float(np.median(values)), 2) for who, values in whole.items()},
        "of_each_start": {who: [round(float(np.median(x)), 2) for x in values] for who, values in speeds.items()},
        "times_as_fast": round(float(np.median(whole["now"]) / np.median(whole["before"])), 3),
        "interval": _interval(speeds),
        "same_answers": sum(taken["now"]["digest"] == taken["before"]["digest"] for taken in answers),
        "answers": len(answers),
    }


def _interval(speeds: dict[str, list[list[float]]]) -> list[float]:
    """Bootstrap interval of the ratio of medians; the starts of each side are resampled independently."""
    random = np.random.default_rng(0)

    def median(who: str) -> float:
        drawn = random.integers(len(speeds[who]), size=len(speeds[who]))
        return float(np.median(np.concatenate([speeds[who][start] for start in drawn])))

    ratios = [median("now") / median("before") for _ in range(1000)]
    return [round(float(x), 3) for x in np.percentile(ratios, (2.5, 97.5))]


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    rows = []
    for dtype, part in result["dtypes"].items():
        for drafter, f in part["drafters"].items():
            speeds, (low, high) = f["tokens_per_second"], f["interval"]
            same = f"{f['same_answers']} of {f['answers']}"
            rows.append(
                (f"{dtype}, {drafter}", speeds["before"], speeds["now"], f["times_as_fast"], f"{low} to {high}", same)
            )
    lines = table_lines("| | before, tokens/s | now | now is × | 95 % | same answers |", rows)
    for dtype, part in result["dtypes"].items():
        memory = part["peak_memory_mb"]
        lines.append(f"\nPeak, {dtype}: {memory['before']} MiB before, {memory['now']} now, {memory['ratio']} ×.")
    return "\n".join(lines + goal_lines(wanted(result)))


def wanted(result: dict[str, Any]) -> dict[str, bool]:
    """{goal: whether it is met}"""
    met = {}
    for dtype, part in result["dtypes"].items():
        for drafter, f in part["drafters"].items():
            met[f"{dtype}, {drafter}: at least {LEAST_SPEED} times as fast"] = f["times_as_fast"] >= LEAST_SPEED
        met[f"{dtype}: at most {MOST_MEMORY} of the memory"] = part["peak_memory_mb"]["ratio"] <= MOST_MEMORY
    return met


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--before", type=Path, required=True, help="a worktree of another commit")
    parser.add_argument("--questions", type=Path, required=True, help="JSONL with `turns`, as MT-Bench has them")
    parser.add_argument("--model", type=Path, default=starter_path())
    parser.add_argument("--checkpoint", type=Path, default=STARTER_HEAD)
    parser.add_argument("--limit", type=int, default=36, help=f"prompts; the first {WARM_UP} of a start do not count")
    parser.add_argument("--starts", type=int, default=6, help="fresh processes of each commit, for each precision")
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    load = load_average()
    prompts = prompts_of(load_tokenizer(args.model), args.questions, args.limit)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.json"
        file.write_text(json.dumps(prompts))
        dtypes = {dtype: race(args, dtype, file, len(prompts)) for dtype in args.dtypes}
    result = conditions(load) | {"dtypes": dtypes}
    finish(result, table(result), args.json)


if __name__ == "__main__":
    main()

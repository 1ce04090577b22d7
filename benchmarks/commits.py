"""Compares decoding of two commits: plain and with the starter's head, tokens per second and memory.

    python -m benchmarks.commits --before ../older --questions MT_BENCH --json OUT

Greedy, batch 1, the same tree for both. Both commits answer every prompt with both drafters before the next prompt, in
alternating order. Each commit runs in its own process per dtype, restarted `--starts` times, as the memory layout of a
process changes its speed by up to 10 %; which commit starts first alternates. Ratios are ratios of medians over all
answers; their 95 % intervals are from a bootstrap over the starts of each side. To compare training, use
`python -m benchmarks.training --before`; to compare data generation, `python -m benchmarks.datagen --before`.
"""

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.report import (
    Contender,
    add_questions,
    ask_in_turn,
    conditions,
    finish,
    first_turns,
    goal_lines,
    load_average,
    make_parser,
    started,
    table_lines,
)
from models.base import load_tokenizer
from models.starter import STARTER_HEAD, starter_path
from speculoos.errors import Unavailable

SIDE, ENGINE = "generation_side.py", {"engine": "decoding"}
DRAFTERS, DTYPES = ("plain", "head"), ("float32", "bfloat16")
WARM_UP = 1
"""Prompts of each start that are not measured."""
LEAST_SPEED, MOST_MEMORY = 0.98, 1.02

SIDES = ("before", "now")
Answer = dict[str, dict[str, Any]]
"""{commit: report} for one prompt and drafter."""


def race(args: argparse.Namespace, dtype: str, prompts: Path, count: int) -> dict[str, Any]:
    """Run both commits on all prompts; returns figures by drafter, and peak memory."""
    contenders = [Contender("now", SIDE, ENGINE), Contender("before", SIDE, ENGINE, args.before)]
    options = {"model": str(starter_path()), "dtype": dtype, "prompts": str(prompts), "checkpoint": str(STARTER_HEAD)}
    options |= {"max_tokens": args.max_tokens, "threads": torch.get_num_threads()}
    starts: dict[str, list[list[Answer]]] = {drafter: [] for drafter in DRAFTERS}
    for first in range(args.starts):
        order = contenders if first % 2 else contenders[::-1]
        with started(order, options) as (sides, failed):
            if failed:
                raise Unavailable("; ".join(failed.values()))
            answers = [
                {drafter: ask_in_turn(sides, i, prompt=number, drafter=drafter) for drafter in DRAFTERS}
                for i, number in enumerate(range(first, count, args.starts))
            ]
        for drafter in DRAFTERS:
            starts[drafter].append([answer[drafter] for answer in answers])
        print(f"{dtype}: start {first + 1}/{args.starts}", file=sys.stderr)
    memory = {who: starts[DRAFTERS[-1]][-1][-1][who]["peak_memory_mb"] for who in SIDES}
    return {
        "starts": args.starts,
        "drafters": {drafter: figures([one[WARM_UP:] for one in answers]) for drafter, answers in starts.items()},
        "peak_memory_mb": memory | {"ratio": round(memory["now"] / memory["before"], 3)},
    }


def figures(starts: list[list[Answer]]) -> dict[str, Any]:
    """Median speeds of one drafter, the speed ratio, and the number of equal answers."""
    answers = [answer for one in starts for answer in one]
    speeds = {who: [[each[who]["tokens"] / each[who]["seconds"] for each in one] for one in starts] for who in SIDES}
    whole = {who: np.concatenate(values) for who, values in speeds.items()}
    return {
        "tokens_per_second": {who: round(float(np.median(values)), 2) for who, values in whole.items()},
        "times_as_fast": round(float(np.median(whole["now"]) / np.median(whole["before"])), 3),
        "interval": _interval(speeds),
        "same_answers": sum(answer["now"]["digest"] == answer["before"]["digest"] for answer in answers),
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


def table(dtypes: dict[str, Any]) -> str:
    """The result as Markdown, with the goals."""
    rows, notes, wanted = [], [], {}
    for dtype, part in dtypes.items():
        for drafter, f in part["drafters"].items():
            speeds, ratio = f["tokens_per_second"], f["times_as_fast"]
            interval, same = "{} to {}".format(*f["interval"]), f"{f['same_answers']} of {f['answers']}"
            rows.append((f"{dtype}, {drafter}", speeds["before"], speeds["now"], ratio, interval, same))
            wanted[f"{dtype}, {drafter}: at least {LEAST_SPEED} times as fast"] = ratio >= LEAST_SPEED
        memory = part["peak_memory_mb"]
        notes.append(f"\nPeak, {dtype}: {memory['before']} MiB before, {memory['now']} now, {memory['ratio']} ×.")
        wanted[f"{dtype}: at most {MOST_MEMORY} of the memory"] = memory["ratio"] <= MOST_MEMORY
    lines = table_lines("| | before, tokens/s | now | now is × | 95 % | same answers |", rows)
    return "\n".join([*lines, *notes, *goal_lines(wanted)])


def main() -> None:
    parser = make_parser(__doc__)
    add_questions(parser, limit=36)
    parser.add_argument("--before", type=Path, required=True, help="a worktree of another commit")
    parser.add_argument("--starts", type=int, default=6, help="fresh processes of each commit, for each precision")
    args = parser.parse_args()
    args.before, load = args.before.resolve(), load_average()
    prompts = first_turns(load_tokenizer(starter_path()), args.questions, args.limit)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.json"
        file.write_text(json.dumps(prompts))
        dtypes = {dtype: race(args, dtype, file, len(prompts)) for dtype in DTYPES}
    finish(conditions(load) | {"dtypes": dtypes}, table(dtypes), args.json)


if __name__ == "__main__":
    main()

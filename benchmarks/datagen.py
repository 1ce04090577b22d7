"""Compares generation of training data: ours, transformers.generate, and an older commit of ours.

    python -m benchmarks.datagen --prompts FILE --before ../older --json OUT

Greedy, with answers of full length. In each round all contenders answer all prompts, so that disturbances affect all;
ratios are medians over rounds. Each contender runs in its own process. transformers.generate and the older commit use
their best batch sizes.
"""

import argparse
import json
import statistics
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import Contender, conditions, finish, goal_lines, load_average, make_parser, started, table_lines
from evaluation.questions import read_questions
from models.base import load_tokenizer
from models.chat import render
from models.starter import starter_path
from speculoos.errors import Unavailable
from speculoos.settings import PROJECT_ROOT

WANTED = {"transformers": 2.0, "before": 1.3}
BUILT_IN = PROJECT_ROOT / "corpus" / "quickstart_prompts.jsonl"
LONGEST = 512
"""Maximum prompt length in tokens; longer prompts are truncated."""
TOKENS, BATCH, DTYPES = 128, 64, ("bfloat16", "float32")
"""New tokens of each answer, and our answers at once."""


def read_prompts(file: Path, limit: int) -> list[list[int]]:
    """Token ids of the first user turns of a file's first `limit` rows, with chat template."""
    tokenizer = load_tokenizer(starter_path())
    return [render(tokenizer, row["messages"][:1])[:LONGEST] for row in read_questions(file, limit)]


def race(args: argparse.Namespace, dtype: str, prompts: Path, count: int) -> dict[str, Any]:
    """Run all contenders in all rounds; returns medians, ratios, and the number of equal answers."""
    script, own, theirs = "generation_side.py", {"engine": "ours"}, {"engine": "transformers"}
    contenders = [Contender("ours", script, own), Contender("transformers", script, theirs)]
    contenders += [Contender("before", script, own, args.before.resolve())] if args.before else []
    options = {"model": str(starter_path()), "dtype": dtype, "prompts": str(prompts)}
    options |= {"max_tokens": TOKENS, "threads": torch.get_num_threads()}
    batches = {"ours": [BATCH], "transformers": args.batch_sizes}
    batches["before"] = args.before_batch_sizes or [BATCH]
    rounds: list[dict[str, Any]] = []
    with started(contenders, options) as (sides, failed):
        if failed:
            raise Unavailable("; ".join(failed.values()))
        for number in range(args.rounds):
            rounds.append({(side.name, size): side.ask(batch=size) for side in sides for size in batches[side.name]})
            spoken = ", ".join(f"{who} {size}: {taken['seconds']:.1f} s" for (who, size), taken in rounds[-1].items())
            print(f"{dtype}, round {number + 1}: {spoken}", file=sys.stderr)
    return figures(rounds, count * TOKENS)


def figures(rounds: list[dict[tuple[str, int], Any]], tokens: int) -> dict[str, Any]:
    """Medians over the rounds, and our speed relative to the others at their best batch sizes."""
    runs = {run: [taken[run] for taken in rounds] for run in rounds[0]}
    names = {run: "ours" if run[0] == "ours" else "{}, {} at once".format(*run) for run in runs}

    def median(run: tuple[str, int]) -> float:
        return statistics.median(tokens / taken["seconds"] for taken in runs[run])

    mine = next(run for run in runs if run[0] == "ours")
    ratios, same = {}, {}
    for peer in sorted({who for who, _ in runs} - {"ours"}):
        best = max((run for run in runs if run[0] == peer), key=median)
        pairs = list(zip(runs[best], runs[mine], strict=True))
        ratios[peer] = statistics.median(theirs["seconds"] / ours["seconds"] for theirs, ours in pairs)
        same[peer] = sum(a == b for a, b in zip(*(answers["digest"] for answers in pairs[-1]), strict=True))
    return {
        "tokens_per_second": {name: round(median(run), 1) for run, name in names.items()},
        "peak_memory_mb": {name: max(taken["peak_memory_mb"] for taken in runs[run]) for run, name in names.items()},
        "times_as_fast": {peer: round(ratio, 2) for peer, ratio in ratios.items()},
        "same_answers": same,
        "wanted": {f"at least {WANTED[peer]} times {peer}": ratios[peer] >= WANTED[peer] for peer in ratios},
    }


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = [f"{result['prompts']} prompts ({result['prompt_tokens']} tokens) × {result['tokens']} new tokens."]
    for dtype, numbers in result["dtypes"].items():
        columns = ("tokens_per_second", "peak_memory_mb")
        rows = [(name, *(numbers[column][name] for column in columns)) for name in numbers["tokens_per_second"]]
        lines += [f"\n**{dtype}**", "", *table_lines("| | tokens/s | peak MiB |", rows)]
        for peer, ratio in numbers["times_as_fast"].items():
            lines.append(f"\nOurs is {ratio} × {peer}; {numbers['same_answers'][peer]} answers are the same.")
        lines += goal_lines(numbers["wanted"])
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--prompts", type=Path, default=BUILT_IN, help="JSONL with user turns")
    parser.add_argument("--limit", type=int, default=128, help="prompts")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32, 64], help="those of transformers")
    parser.add_argument("--before", type=Path, help="a worktree of another commit")
    parser.add_argument("--before-batch-sizes", type=int, nargs="+", help="those of that commit (default: ours)")
    args = parser.parse_args(arguments)
    prompts, before = read_prompts(args.prompts, args.limit), load_average()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.json"
        file.write_text(json.dumps(prompts))
        dtypes = {dtype: race(args, dtype, file, len(prompts)) for dtype in DTYPES}
    result = conditions(before) | {
        "prompts": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "tokens": TOKENS,
        "batch": BATCH,
        "dtypes": dtypes,
    }
    finish(result, table(result), args.json)


if __name__ == "__main__":
    main()

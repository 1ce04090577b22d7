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
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import conditions, finish, load_average
from benchmarks.side import BenchmarkSide
from benchmarks.tables import goal_lines, table_lines
from models.base import load_tokenizer
from models.chat import render
from models.starter import starter_path
from speculoos.settings import PROJECT_ROOT

WANTED = {"transformers": 2.0, "before": 1.3}
BUILT_IN = PROJECT_ROOT / "corpus" / "quickstart_prompts.jsonl"
SIDE = Path(__file__).with_name("datagen_side.py")
LONGEST = 512
"""Maximum prompt length in tokens; longer prompts are truncated."""


def read_prompts(model: Path, file: Path, limit: int) -> list[list[int]]:
    """Token ids of the first user turns of a file's first `limit` rows, with chat template."""
    tokenizer = load_tokenizer(model)
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()[:limit]]
    return [render(tokenizer, [{"role": "user", "content": _first_turn(row)}])[:LONGEST] for row in rows]


def _first_turn(row: dict[str, Any]) -> str:
    if "conversations" in row:
        return row["conversations"][0]["value"]
    return row["messages"][0]["content"] if "messages" in row else row["prompt"]


def side(args: argparse.Namespace, name: str, dtype: str, prompts: Path, tree: Path = PROJECT_ROOT) -> BenchmarkSide:
    """A contender; enter it to wait until it is ready."""
    options = {"side": name, "model": str(args.model), "dtype": dtype, "prompts": str(prompts)}
    return BenchmarkSide(SIDE, {**options, "tokens": args.tokens, "threads": args.threads}, tree)


def race(args: argparse.Namespace, dtype: str, prompts: Path, count: int) -> dict[str, Any]:
    """Run all contenders in all rounds; returns medians, ratios, and the number of equal answers."""
    with ExitStack() as stack:
        sides = {name: side(args, name, dtype, prompts) for name in ("ours", "transformers")}
        if args.before:
            sides["before"] = side(args, "ours", dtype, prompts, args.before.resolve())
        for one in sides.values():
            stack.enter_context(one)
        runs = {"ours": ("ours", args.batch)}
        for peer, sizes in (("before", args.before_batch_sizes or [args.batch]), ("transformers", args.batch_sizes)):
            runs |= {f"{peer}, {size} at once": (peer, size) for size in sizes if peer in sides}
        rounds: list[dict[str, Any]] = []
        for number in range(args.rounds):
            rounds.append({name: sides[who].ask({"batch": batch}) for name, (who, batch) in runs.items()})
            spoken = ", ".join(f"{name} {taken['seconds']:.1f} s" for name, taken in rounds[-1].items())
            print(f"{dtype}, round {number + 1}: {spoken}", file=sys.stderr)
    return figures(rounds, count * args.tokens)


def figures(rounds: list[dict[str, Any]], tokens: int) -> dict[str, Any]:
    """Medians over the rounds, and our speed relative to the others."""
    speeds = {name: statistics.median(tokens / taken[name]["seconds"] for taken in rounds) for name in rounds[0]}
    sizes = {peer: [name for name in speeds if name.startswith(peer)] for peer in WANTED}
    peers = {peer: max(names, key=speeds.get) for peer, names in sizes.items() if names}
    ratios = {
        peer: statistics.median(taken[name]["seconds"] / taken["ours"]["seconds"] for taken in rounds)
        for peer, name in peers.items()
    }
    last = rounds[-1]
    same = {
        peer: sum(a == b for a, b in zip(last["ours"]["digest"], last[name]["digest"], strict=True))
        for peer, name in peers.items()
    }
    return {
        "tokens_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
        "tokens_per_cpu_second": {
            name: round(statistics.median(tokens / taken[name]["cpu_seconds"] for taken in rounds), 1)
            for name in rounds[0]
        },
        "peak_memory_mb": {name: max(taken[name]["peak_memory_mb"] for taken in rounds) for name in rounds[0]},
        "times_as_fast": {peer: round(ratio, 2) for peer, ratio in ratios.items()},
        "same_answers": same,
        "wanted": {f"at least {WANTED[peer]} times {peer}": ratios[peer] >= WANTED[peer] for peer in ratios},
    }


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = [f"{result['prompts']} prompts ({result['prompt_tokens']} tokens) × {result['tokens']} new tokens."]
    for dtype, numbers in result["dtypes"].items():
        rows = [
            (name, speed, numbers["tokens_per_cpu_second"][name], numbers["peak_memory_mb"][name])
            for name, speed in numbers["tokens_per_second"].items()
        ]
        lines += [f"\n**{dtype}**", "", *table_lines("| | tokens/s | tokens/s of a core | peak MiB |", rows)]
        for peer, ratio in numbers["times_as_fast"].items():
            lines.append(f"\nOurs is {ratio} × {peer}; {numbers['same_answers'][peer]} answers are the same.")
        lines += goal_lines(numbers["wanted"])
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, default=starter_path())
    parser.add_argument("--prompts", type=Path, default=BUILT_IN, help="JSONL with user turns")
    parser.add_argument("--limit", type=int, default=128, help="prompts")
    parser.add_argument("--tokens", type=int, default=128, help="new tokens of each")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64, help="our answers at once")
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[8, 16, 32, 64], help="those of transformers")
    parser.add_argument("--dtypes", nargs="+", default=["bfloat16", "float32"])
    parser.add_argument("--before", type=Path, help="a worktree of another commit")
    parser.add_argument(
        "--before-batch-sizes", type=int, nargs="+", help="that commit's answers at once; ours if not said"
    )
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args = parse(arguments)
    prompts, before = read_prompts(args.model, args.prompts, args.limit), load_average()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "prompts.json"
        file.write_text(json.dumps(prompts))
        dtypes = {dtype: race(args, dtype, file, len(prompts)) for dtype in args.dtypes}
    result = conditions(before) | {
        "threads": args.threads,
        "prompts": len(prompts),
        "prompt_tokens": sum(map(len, prompts)),
        "tokens": args.tokens,
        "batch": args.batch,
        "dtypes": dtypes,
    }
    finish(result, table(result), args.json)


if __name__ == "__main__":
    main()

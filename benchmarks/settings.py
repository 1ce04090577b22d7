"""Compares values of a training setting: drafts of one method with equal steps and data, by τ on held-out answers.

    python -m benchmarks.settings METHOD SETTING VALUE … --data ANSWERS --steps 400 --seeds 0 1 2

ANSWERS is a dataset of the starter's own answers (benchmarks.starter_data). Other settings are those of
benchmarks.methods. A seed decides the held-out answers, the order of batches and the initial weights, so values are
compared within a seed: the table has the median of the differences from the first value, with their range.
"""

import statistics
import sys
import tempfile
import time
from argparse import Namespace
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks.methods import CHANGES, COMMON, check_settings
from benchmarks.report import conditions, finish, load_average, make_parser, table_lines
from models.methods.recipes import read_recipe
from models.starter import starter_path
from speculoos.reporting import SilentReporter
from training.loop import train
from workers.jobs.arguments import parse_settings

HELD_OUT = {"held_out": 0.1, "max_held_out": 80}


def run(value: str, seed: int, args: Namespace) -> dict[str, Any]:
    """Train one draft; τ of a greedy chain and of the best static tree of eight on the held-out answers, loss, and
    seconds per step."""
    changes = parse_settings([*args.set, f"{args.setting}={value}"])
    settings = {**COMMON, **CHANGES[args.method], **HELD_OUT, "max_steps": args.steps, "eval_every": 0, "seed": seed}
    config = read_recipe(f"{args.method}-standard").config({**settings, **changes})
    with tempfile.TemporaryDirectory() as folder:
        began = time.monotonic()
        figures = train(config, starter_path(), args.data, folder, None, SilentReporter()).metrics
    seconds = (time.monotonic() - began) / args.steps
    tau, tree = figures["mean_accepted_length"], figures["expected_tree_length"]
    return {"value": value, "seed": seed, "tau": tau, "tree": tree, "loss": figures["loss"], "seconds": seconds}


def table(results: Sequence[Mapping[str, Any]]) -> str:
    by_value: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for result in results:
        by_value[result["value"]].append(result)
    first = next(iter(by_value.values()))
    rows = []
    for value, own in by_value.items():
        cells = [value]
        for name in ("tau", "tree"):
            differences = [one[name] - reference[name] for one, reference in zip(own, first, strict=False)]
            cells.append(f"{statistics.median(one[name] for one in own):.3f}")
            cells.append(f"{statistics.median(differences):+.3f} ({min(differences):+.3f} to {max(differences):+.3f})")
        rows.append((*cells, f"{statistics.median(one['seconds'] for one in own):.2f}"))
    head = "| value | τ of a chain | difference | τ of a tree of eight | difference | seconds per step |"
    return "\n".join(table_lines(head, rows))


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("method", choices=CHANGES)
    parser.add_argument("setting")
    parser.add_argument("values", nargs="+")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--set", nargs="*", default=[], help="setting=value, for all")
    args, load = parser.parse_args(arguments), load_average()
    check_settings(parser, args.method, [args.setting, *parse_settings(args.set)])
    results = []
    for seed in args.seeds:
        for value in args.values:
            results.append(run(value, seed, args))
            print(results[-1], file=sys.stderr)
    compared = {name: getattr(args, name) for name in ("method", "setting", "values", "steps", "seeds", "set")}
    finish({**conditions(load), **compared, "results": results}, table(results), args.json)


if __name__ == "__main__":
    main()

"""Trains a draft of every method on the same answers for the same time, and measures all on the same questions.

    python -m benchmarks.methods --data ANSWERS --questions FILE --out FOLDER [--methods M …] [--seeds 0 1 2]

ANSWERS is a dataset of the starter's own answers (benchmarks.starter_data). Settings are those of the standard recipe
with the changes in COMMON and CHANGES; all use two cores for --minutes. Then the tree is tuned on the built-in
questions (where none pays, one token is drafted), and the first turns of FILE are answered with and without the draft
in alternate steps, greedily in fp32. Results are in FOLDER, one file per training; those that exist are not repeated,
so a race can be continued. Prints the table of docs/methods.md; --chart writes its learning curves.
"""

import json
import statistics
from argparse import ArgumentParser, Namespace
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from benchmarks.chart import write_line_chart
from benchmarks.report import conditions, finish, load_average, make_parser, table_lines
from benchmarks.starter_head import keep_tree, measure
from models.checkpoints import read_config, update_draft_config
from models.methods import METHODS
from models.methods.recipes import read_recipe
from models.starter import starter_path
from speculoos.files import write_json
from speculoos.reporting import ConsoleReporter
from training.loop import train
from workers.jobs.arguments import parse_settings

COMMON = {
    **{"epochs": 0, "patience": 0, "warmup_ratio": 0.03, "lr": 0.001, "beta2": 0.95, "clip": 1.0},
    **{"max_length": 512, "batch_tokens": 768, "held_out": 0.02, "max_held_out": 40, "cache_features_mb": 8192},
    **{"log_every": 20, "eval_every": 400, "save_every": 0, "samples": 0, "save_dtype": "bfloat16"},
}
VOCABULARY = {"draft_vocab_coverage": 0.0, "draft_vocab_size": 8192}
CHANGES: dict[str, dict[str, Any]] = {
    "medusa": VOCABULARY,
    "eagle": {},
    "eagle3": {**VOCABULARY, "norm_before_residual": True},
    "peagle": VOCABULARY,
    "dflash": {**VOCABULARY, "max_anchors": 96},
    "draft": {},
}
"""{method: changes}; settings that do better on the starter (docs/log.md)."""
ONE_TOKEN = {"tree": [[0]]}
CHART_TITLE = "Held-out answers: τ of the best tree of eight nodes"


class LearningCurve(ConsoleReporter):
    """Keeps minutes, τ of a chain and expected τ of a tree of eight at each evaluation on the held-out answers."""

    def __init__(self) -> None:
        super().__init__()
        self.points: list[dict[str, float]] = []

    def metrics(self, step: int, values: dict[str, float]) -> None:
        super().metrics(step, values)
        if "eval/tau" in values:
            tau, tree = values["eval/tau"], values["eval/tau_tree"]
            self.points.append({"minutes": values["train/minutes"], "tau": tau, "tree": tree})


def run(method: str, seed: int, args: Namespace) -> dict[str, Any]:
    """Train, tune and measure one draft; the result, JSON-able."""
    load, folder = load_average(), args.out / f"{method}-{seed}"
    settings = {**COMMON, **CHANGES[method], "max_minutes": args.minutes, "seed": seed, **parse_settings(args.set)}
    config = read_recipe(f"{method}-standard").config(settings)
    curve = LearningCurve()
    done = train(config, starter_path(), args.data, folder, folder, curve)
    tree = keep_tree(done.folder)
    if not tree["drafting"]:  # no tree pays
        update_draft_config(done.folder, drafting=ONE_TOKEN)
    measured = measure(done.folder, args.questions, args.limit, passes=1)
    figures = read_config(done.folder)["training"]["figures"]
    size = (done.folder / "model.safetensors").stat().st_size
    trained = {"steps": done.step, "training": done.metrics, "bytes": size, "curve": curve.points, "figures": figures}
    return {"method": method, "seed": seed, "minutes": args.minutes, **trained, **tree, **measured, **conditions(load)}


def check_settings(parser: ArgumentParser, method: str, names: Iterable[str]) -> None:
    """End with an error for a setting that the method lacks; a training ignores settings of other methods."""
    if unknown := set(names) - METHODS[method].config.model_fields.keys():
        parser.error(f"{method} has no setting {', '.join(sorted(unknown))}")


def table(results: Sequence[dict[str, Any]]) -> str:
    """A row for each method; with several seeds the medians, with the range of τ and of the speedup."""
    rows = []
    for method in dict.fromkeys(result["method"] for result in results):
        own = [result for result in results if result["method"] == method]
        tau, speedup = (_spread([r[name] for r in own]) for name in ("mean_accepted_length", "speedup"))
        first = own[0]
        accepted = ", ".join(f"{rate:.2f}" for rate in first["acceptance_by_depth"])
        speed = statistics.median(r["training"]["tokens"] / r["training"]["minutes"] / 60 for r in own)
        size = f"{first['bytes'] / 1e6:.1f}"
        rows.append((METHODS[method].title, len(own), tau, accepted, speedup, f"{speed:,.0f}", size))
    head = "| method | trainings | τ | accepted by depth | × plain | training tokens/s | MB |"
    return "\n".join(table_lines(head, rows))


def write_chart(file: Path, results: Sequence[dict[str, Any]]) -> None:
    """The learning curve of each method's first training, as SVG."""
    curves: dict[str, list[tuple[float, float]]] = {}
    for result in results:
        points = [(point["minutes"], point["tree"]) for point in result["curve"]]
        curves.setdefault(METHODS[result["method"]].title, points)
    write_line_chart(file, CHART_TITLE, "minutes of two CPU cores", curves)


def _spread(values: Sequence[float]) -> str:
    text = f"{statistics.median(values):.2f}"
    return text if len(values) == 1 else f"{text} ({min(values):.2f} to {max(values):.2f})"


def main(arguments: list[str] | None = None) -> None:
    parser = make_parser(__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--questions", type=Path, required=True, help="JSONL with `turns`, as MT-Bench has them")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--methods", nargs="+", choices=CHANGES, default=list(CHANGES))
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--minutes", type=float, default=40)
    parser.add_argument("--limit", type=int, default=80, help="number of questions")
    parser.add_argument("--chart", type=Path, help="SVG file for the learning curves")
    parser.add_argument("--set", nargs="*", default=[], help="setting=value, for all methods")
    args = parser.parse_args(arguments)
    for method in args.methods:
        check_settings(parser, method, parse_settings(args.set))
    args.out.mkdir(parents=True, exist_ok=True)
    for seed in args.seeds:
        for method in args.methods:
            file = args.out / f"{method}-{seed}.json"
            if not file.exists():
                write_json(file, run(method, seed, args))
    results = [json.loads(file.read_text(encoding="utf-8")) for file in sorted(args.out.glob("*.json"))]
    results.sort(key=lambda result: list(CHANGES).index(result["method"]))
    if args.chart:
        write_chart(args.chart, results)
    finish({"results": results}, table(results), args.json)


if __name__ == "__main__":
    main()

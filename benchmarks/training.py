"""Compares training with nvidia-modelopt 0.47 and speculators 0.9: tokens per second and peak memory.

    python -m benchmarks.training --data FOLDER --modelopt VENV --speculators VENV --json FILE

EAGLE-3 (three unrolled steps, full vocabulary, LM head of the base model) and Medusa (two heads of one layer with their
own matrices) on the same conversations with the starter's answers, in the same batches, with the same AdamW. All
contenders run the frozen base model in every step. In each round all contenders run the same step in turn, so that
disturbances affect all; speeds are medians over rounds, ratios are medians of the rounds' ratios. Our base model and LM
head run in bfloat16, and in a second run everything in fp32; the other libraries run in fp32.

--data is a dataset folder, as `speculoos data generate` makes it. --modelopt and --speculators are virtual
environments, see docs/benchmarks.md; without them only our side runs.
"""

import argparse
import json
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.report import (
    Contender,
    Side,
    ask_in_turn,
    conditions,
    finish,
    goal_lines,
    load_average,
    make_parser,
    started,
    table_lines,
)
from models.base import load_tokenizer, read_eos_ids
from models.starter import starter_path
from speculoos.errors import Unavailable
from speculoos.settings import PROJECT_ROOT
from training.batches import TokenizedConversation, epoch_order, load_conversations, make_batches

PEERS = {"modelopt": ("eagle3", "medusa"), "speculators": ("eagle3",)}
"""Draft methods that each compared library can train."""
OURS, OURS_FP32, BEFORE = "ours", "ours, all fp32", "before"
WANTED = {"eagle3": 1.5, "medusa": 2.0}
"""Goal of our speedup over the fastest other library."""
SETTINGS = {
    **{"seed": 0, "ttt_steps": 3, "ttt_decay": 0.8, "medusa_heads": 2, "medusa_layers": 1},
    **{"betas": (0.9, 0.95), "weight_decay": 0.0, "clip": 0.5},
}
"""Equal for all contenders."""
LEARNING_RATE, WARM_UP_ROUNDS = 1e-4, 1
CONVERSATIONS, BATCH_TOKENS, LONGEST = 64, 1024, 512


@dataclass(frozen=True)
class BenchmarkPlan:
    """`rows`: conversations; `steps`: lists of row indices, one micro-batch and optimizer step each."""

    rows: list[TokenizedConversation]
    steps: list[list[int]]

    @classmethod
    def make(cls, rows: list[TokenizedConversation], batch_tokens: int, epochs: int) -> "BenchmarkPlan":
        """Batch rows of similar length, as in our training loop; shuffle the steps each epoch."""
        groups = make_batches(rows, batch_tokens, 0)
        orders = [epoch_order(len(groups), epoch, 0) for epoch in range(epochs)]
        return cls(rows, [groups[i] for order in orders for i in order])

    def tokens(self, step: int) -> int:
        """Tokens of a step without padding."""
        return sum(len(self.rows[i]) for i in self.steps[step])

    def facts(self) -> dict[str, Any]:
        """Counts for the report."""
        positions = sum(len(step) * max(len(self.rows[i]) for i in step) for step in self.steps)
        padding = round(1 - sum(map(self.tokens, range(len(self.steps)))) / positions, 3)
        tokens, answers = sum(map(len, self.rows)), sum(int(row.mask.sum()) for row in self.rows)
        counts = {"conversations": len(self.rows), "tokens": tokens, "answer_tokens": answers}
        return {**counts, "steps": len(self.steps), "padding": padding, "settings": SETTINGS}


def conversations(data: Path) -> list[TokenizedConversation]:
    """The dataset's conversations, tokenized, masked and truncated for the starter."""
    tokenizer = load_tokenizer(starter_path())
    return load_conversations(data, tokenizer, LONGEST, eos_ids=sorted(read_eos_ids(starter_path(), tokenizer)))[0]


def add_options(text: str) -> argparse.ArgumentParser:
    """A parser with the options of both training benchmarks: data and peers' environments."""
    parser = make_parser(text)
    parser.add_argument("--data", type=Path, required=True, help="dataset folder of the starter's own answers")
    for name in PEERS:
        parser.add_argument(f"--{name}", type=Path, help=f"virtual environment with {name}")
    return parser


def ours(name: str, base_dtype: str = "bfloat16", tree: Path = PROJECT_ROOT) -> Contender:
    """This project, or another commit of it in `tree`, with the frozen base model in `base_dtype`."""
    return Contender(name, "training_side.py", {"side": "ours", "base_dtype": base_dtype}, tree)


def peers(args: argparse.Namespace, method: str) -> list[Contender]:
    """The compared libraries that train this method and have an environment."""
    environments = {name: getattr(args, name) for name, methods in PEERS.items() if method in methods}
    return [
        Contender(name, "training_side.py", {"side": name}, python=folder.absolute() / "bin" / "python")
        for name, folder in environments.items()
        if folder
    ]


@contextmanager
def training_sides(
    contenders: Sequence[Contender], method: str, plan: BenchmarkPlan, device: str = "cpu"
) -> Iterator[tuple[list[Side], dict[str, str]]]:
    """`report.started` with the plan in a file."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"ids": row.token_ids.tolist(), "mask": row.mask.int().tolist()} for row in plan.rows]
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps({"rows": rows, "steps": plan.steps, "settings": SETTINGS}))
        options = {"method": method, "base": str(starter_path()), "plan": str(file), "device": device}
        with started(contenders, {**options, "threads": torch.get_num_threads()}) as running:
            yield running


def race(args: argparse.Namespace, method: str, plan: BenchmarkPlan, device: str = "cpu") -> dict[str, Any]:
    """Run all rounds of one method; returns figures of each contender, and comparisons."""
    contenders = [ours(OURS), *peers(args, method), ours(OURS_FP32, "float32")]
    contenders += [ours(BEFORE, tree=args.before.resolve())] if args.before else []
    rounds: list[dict[str, dict[str, Any]]] = []
    with training_sides(contenders, method, plan, device) as (sides, failed):
        if own := failed.keys() - PEERS.keys():
            raise Unavailable("; ".join(failed[name] for name in own))
        for number in range(min(WARM_UP_ROUNDS + args.rounds, len(plan.steps))):
            rounds.append(ask_in_turn(sides, number, step=number, lr=LEARNING_RATE))
            spoken = (f"{name} {plan.tokens(number) / one['seconds']:.0f} tokens/s" for name, one in rounds[-1].items())
            print(f"{method}: round {number + 1}, {', '.join(spoken)}", flush=True)
    figures = {side.name: {**contender_figures(side.name, rounds, plan), **side.facts} for side in sides}
    return {"contenders": figures, **against(rounds, figures, method), "not_raced": failed}


def contender_figures(name: str, rounds: list[dict[str, Any]], plan: BenchmarkPlan) -> dict[str, Any]:
    """Medians over the rounds after warm-up."""
    counted = [(plan.tokens(i), taken[name]) for i, taken in enumerate(rounds) if i >= WARM_UP_ROUNDS]
    return {
        "tokens_per_second": round(statistics.median(n / taken["seconds"] for n, taken in counted), 1),
        "losses": [round(taken[name]["loss"], 4) for taken in rounds],
        "peak_memory_mb": rounds[-1][name]["peak_memory_mb"],
    }


def against(rounds: list[dict[str, Any]], figures: dict[str, Any], method: str) -> dict[str, Any]:
    """Speed ratios to each library and the commit before, goals, and the loss difference of bfloat16 and fp32."""
    counted, peaks = rounds[WARM_UP_ROUNDS:], {name: one["peak_memory_mb"] for name, one in figures.items()}
    ratios = {
        name: round(statistics.median(taken[name]["seconds"] / taken[OURS]["seconds"] for taken in counted), 3)
        for name in figures
        if name != OURS
    }
    apart = max(abs(taken[OURS]["loss"] / taken[OURS_FP32]["loss"] - 1) for taken in rounds)
    wanted = {"loss within 1 % of all fp32": apart <= 0.01}
    if raced := [name for name in ratios if name in PEERS]:
        fastest = min(ratios[name] for name in raced)
        wanted[f"at least {WANTED[method]} times the fastest peer"] = fastest >= WANTED[method]
        wanted["peak memory no higher"] = peaks[OURS] <= min(peaks[name] for name in raced)
    if BEFORE in ratios:
        wanted["at least 0.98 times the commit before"] = ratios[BEFORE] >= 0.98
        wanted["at most 1.02 of its memory"] = peaks[OURS] <= 1.02 * peaks[BEFORE]
    return {"times_as_fast": ratios, "loss_difference": round(apart, 5), "wanted": wanted}


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    machine, data = result["machine"], result["data"]
    lines = [
        f"{result['date']}, {machine['processor']}, {machine['cores']} cores, load {result['load'][0]} to "
        f"{result['load'][1]}; {data['conversations']} conversations, {data['tokens']} tokens "
        f"({data['answer_tokens']} of answers), padding {data['padding']:.1%}.",
    ]
    for method, numbers in result["methods"].items():
        rows = []
        for name, one in numbers["contenders"].items():
            versions = ", ".join(f"{k} {v}" for k, v in one["versions"].items())
            ratio, millions = numbers["times_as_fast"].get(name, ""), f"{one['trainable'] / 1e6:.1f} M"
            rows.append((name, one["tokens_per_second"], ratio, one["peak_memory_mb"], millions, versions))
        head = "| | real tokens/s | ours is × | peak MiB | trained | versions |"
        lines += [f"\n**{method}**", "", *table_lines(head, rows)]
        lines.append(f"\nLargest difference of our losses from all fp32: {numbers['loss_difference']:.2%}.")
        lines += [f"{name}: not raced, {reason}." for name, reason in numbers["not_raced"].items()]
        lines += goal_lines(numbers["wanted"])
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> None:
    parser = add_options(__doc__)
    parser.add_argument("--before", type=Path, help="a worktree of another commit, which takes part")
    parser.add_argument("--rounds", type=int, default=16, help="rounds that count, after one that does not")
    args = parser.parse_args(arguments)
    epochs = WARM_UP_ROUNDS + args.rounds  # more than enough steps; the rounds end the race
    plan = BenchmarkPlan.make(conversations(args.data)[:CONVERSATIONS], BATCH_TOKENS, epochs)
    load = load_average()
    methods = {method: race(args, method, plan) for method in WANTED}
    result = conditions(load) | {"data": plan.facts(), "methods": methods}
    finish(result, table(result), args.json)


if __name__ == "__main__":
    main()

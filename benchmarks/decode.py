"""Compares decoding speed: transformers.generate, its prompt lookup, our plain decoding, and our drafters.

    python -m benchmarks.decode --model FOLDER --questions FILE --limit 10 --max-tokens 128 --json OUT

Batch 1, greedy. All contenders answer a prompt before the next prompt, so that disturbances affect all; figures are
medians over prompts of tokens per second, prefill included, and of ratios within a prompt, with 95 % bootstrap
intervals over the prompts. Peak memory is measured in a separate process per side.
"""

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.peers.common import peak_memory_mb
from benchmarks.report import (
    add_questions,
    conditions,
    finish,
    first_turns,
    interval_text,
    load_average,
    make_parser,
    median_interval,
    row,
    table_lines,
)
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.stats import summarize
from decoding.target import Target, fast_target
from decoding.tuning import measure_forward
from evaluation.estimate import milliseconds
from models.base import LoadedBase, load_base, pick_device
from models.checkpoints import load_draft
from models.runtime.transformers import TransformersForward
from models.starter import starter_path

CONTEXT = 200
"""Tokens in the KV cache while the forward pass is measured by node count."""

Answer = tuple[int, float, float, float]
"""(new tokens, seconds, τ, median milliseconds of a step)"""


def reference(base: LoadedBase, max_tokens: int, **options: Any) -> Callable[[list[int]], Answer]:
    """transformers.generate, greedy, with its own forward pass."""

    def run(prompt: list[int]) -> Answer:
        ids = torch.tensor([prompt], device=base.device)
        began = time.perf_counter()
        out = base.model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, **options
        )
        count, seconds = out.shape[1] - len(prompt), time.perf_counter() - began
        return count, seconds, 1.0, seconds / count * 1e3

    return run


def ours(target: Target, draft: Any, options: dict[str, Any], max_tokens: int) -> Callable[[list[int]], Answer]:
    """Our decoding loop with one drafter. The KV cache is emptied first, so no prefix is reused."""
    drafter = make_drafter(target, draft, options)

    def run(prompt: list[int]) -> Answer:
        target.rewind(0)
        began = time.perf_counter()
        steps = list(generate(target, drafter, prompt, GenerateConfig(max_tokens=max_tokens)))
        seconds = time.perf_counter() - began
        summary, step_ms = summarize(steps), statistics.median(map(milliseconds, steps[1:] or steps))
        return summary.tokens, seconds, summary.mean_accepted_length, step_ms

    return run


def race(args: argparse.Namespace, dtype: str, rounds: int = 5) -> dict[str, Any]:
    """Run all contenders on all prompts in turn; returns medians, ratios, and forward pass costs by node count."""
    theirs, own = (load_base(args.model, dtype=dtype, device=args.device) for _ in range(2))
    drafts = {str(folder): load_draft(folder, own) for folder in args.checkpoint}
    target = fast_target(own, args.context)  # after the drafts, as it takes over the base model's weights
    runs = {
        "transformers.generate": reference(theirs, args.max_tokens),
        "transformers prompt lookup": reference(theirs, args.max_tokens, prompt_lookup_num_tokens=10),
        "ours plain": ours(target, None, {}, args.max_tokens),
        "ours n-gram": ours(target, None, {"drafter": "ngram"}, args.max_tokens),
    }
    runs |= {f"ours {name}": ours(target, draft, {}, args.max_tokens) for name, draft in drafts.items()}
    prompts = first_turns(theirs.tokenizer, args.questions, args.limit)
    # On a GPU whole prompts, so that most CUDA graphs are captured before timing.
    for prompt in prompts[:2] if theirs.device.type == "cuda" else [prompts[0][:32]]:
        for run in runs.values():
            run(prompt)
    taken: dict[str, list[Answer]] = {name: [] for name in runs}
    for at, prompt in enumerate(prompts):
        for name, run in runs.items():
            taken[name].append(run(prompt))
        print(f"{dtype}: {at + 1}/{len(prompts)} prompts", file=sys.stderr)
    speeds = {name: np.array([tokens / seconds for tokens, seconds, *_ in answers]) for name, answers in taken.items()}
    figures = {
        name: {
            "tokens_per_second": round(float(np.median(speeds[name])), 2),
            "times_transformers": median_interval(speeds[name] / speeds["transformers.generate"]),
            "times_plain": median_interval(speeds[name] / speeds["ours plain"]),
            "tau": round(statistics.mean([tau for _, _, tau, _ in answers if tau] or [1.0]), 3),
            "step_ms": round(statistics.median(ms for *_, ms in answers), 2),
        }
        for name, answers in taken.items()
    }
    return {"contenders": figures, "forward_ms": _forward_costs(theirs, target, prompts, rounds)}


def _forward_costs(
    theirs: LoadedBase, target: Target, prompts: list[list[int]], rounds: int
) -> dict[str, dict[int, float]]:
    """Median milliseconds of our and transformers' forward pass by node count, with 200 tokens in the cache."""
    slow = Target(theirs, target.max_length, TransformersForward(theirs))
    costs: dict[str, dict[int, list[float]]] = {"ours": {}, "transformers": {}}
    for one in (slow, target):
        one.prefill(([i for prompt in prompts for i in prompt] * CONTEXT)[:CONTEXT])
    for _ in range(rounds):
        for name, one in (("transformers", slow), ("ours", target)):
            for nodes, ms in measure_forward(one, rounds=3).items():
                costs[name].setdefault(nodes, []).append(ms)
    return {name: {nodes: round(statistics.median(ms), 2) for nodes, ms in by.items()} for name, by in costs.items()}


def peak_memory(args: argparse.Namespace, dtype: str) -> dict[str, float]:
    """Peak resident memory in MiB of a process that answers one prompt, for each side."""
    peaks = {}
    for side in ("transformers", "ours"):
        with ProcessPoolExecutor(1, get_context("spawn")) as process:
            peaks[side] = float(process.submit(memory_of, args, dtype, side).result())
    peaks["ratio"] = round(peaks["ours"] / peaks["transformers"], 3)
    return peaks


def memory_of(args: argparse.Namespace, dtype: str, side: str) -> int:
    """Answer one prompt on one side; returns this process's peak resident memory in MiB."""
    base = load_base(args.model, dtype=dtype, device=args.device)
    prompt = first_turns(base.tokenizer, args.questions, 1)[0]
    if side == "transformers":
        reference(base, args.max_tokens)(prompt)
    else:
        ours(fast_target(base, args.context), None, {"drafter": "ngram"}, args.max_tokens)(prompt)
    return peak_memory_mb()


def figure_text(figure: float | list[float]) -> str:
    """A figure of a contender, or its median and interval."""
    return interval_text(figure) if isinstance(figure, list) else f"{figure:g}"


def table(result: dict[str, Any]) -> str:
    """The result as Markdown."""
    lines = []
    for dtype, part in result["dtypes"].items():
        rows = [(name, *map(figure_text, figures.values())) for name, figures in part["contenders"].items()]
        head = "| | tokens/s | × transformers | × our plain | τ | ms a step |"
        lines += [f"\n**{dtype}**", "", *table_lines(head, rows), ""]
        costs = part["forward_ms"]
        times = [(f"{name} ms", *by.values()) for name, by in costs.items()]
        lines += table_lines(row(["nodes", *costs["ours"]]), times)
        memory = part["peak_memory_mib"]
        lines.append(f"\nPeak memory: ours {memory['ours']:.0f} MiB, transformers {memory['transformers']:.0f} MiB.")
    return "\n".join(lines)


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = make_parser(__doc__)
    add_questions(parser, limit=10)
    parser.add_argument("--model", type=Path, default=starter_path())
    parser.add_argument("--dtypes", nargs="+", default=["float32", "bfloat16"])
    parser.add_argument("--checkpoint", type=Path, action="append", default=[], help="a trained draft's folder")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--context", type=int, default=2048, help="tokens the cache is made for")
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> None:
    args, before = parse(arguments), load_average()
    dtypes = {dtype: race(args, dtype) | {"peak_memory_mib": peak_memory(args, dtype)} for dtype in args.dtypes}
    result = conditions(before, pick_device(args.device)) | {"model": str(args.model), "dtypes": dtypes}
    finish(result, table(result), args.json)


if __name__ == "__main__":
    main()

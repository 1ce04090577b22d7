"""Part of benchmarks.gpu_check: training beside nvidia-modelopt and speculators, and generation beside vLLM, on the
GPU. Only libraries whose virtual environments are given take part."""

import argparse
import json
import statistics
from itertools import islice
from pathlib import Path
from typing import Any

from benchmarks.gpu_exactness import Bench
from benchmarks.peers.generation_side import TREE
from benchmarks.report import Contender, Side, first_turns, started
from benchmarks.training import PEERS, WANTED, BenchmarkPlan, conversations, race
from evaluation.questions import BUILT_IN
from formats.export import build_export
from models.base import load_base, load_tokenizer
from models.methods.trees import nodes
from tests.tools.homes import write_answers

NAMES = (*PEERS, "vllm")
ROUNDS, BATCH_TOKENS = 8, 8192
ANSWERS, TOKENS = 6, 128


def peers(bench: Bench) -> None:
    """Claims for training, where a goal is published; figures for generation."""
    if not bench.environments:
        bench.figures["environments"] = "none given"
        return
    if bench.environments.keys() & PEERS.keys():
        train_beside(bench)
    if "vllm" in bench.environments:
        generate_beside_vllm(bench)


def train_beside(bench: Bench) -> None:
    """The goals of benchmarks.training."""
    data = write_answers(bench.scratch / "peers", 256, 384)
    plan = BenchmarkPlan.make(conversations(data), BATCH_TOKENS, ROUNDS)
    args = argparse.Namespace(**{name: bench.environments.get(name) for name in PEERS}, before=None, rounds=ROUNDS)
    for method, goal in WANTED.items():
        bench.check_time()
        result = race(args, method, plan, str(bench.device))
        for name, ratio in result["times_as_fast"].items():
            bench.claim(f"{method}, training beside {name}", f"≥ {goal:g} ×", f"{ratio:.2f} ×", ratio >= goal)
        bench.figures |= {f"{method}, {name}: not raced": reason for name, reason in result["not_raced"].items()}


def generate_beside_vllm(bench: Bench) -> None:
    """Tokens per second of the starter, plain and with its head, batch 1, greedy."""
    bench.check_time()
    export, prompts = bench.scratch / "export", bench.scratch / "prompts.json"
    build_export(bench.head, load_base(bench.starter), "vllm", export, force=True)
    prompts.write_text(json.dumps(first_turns(load_tokenizer(bench.starter), BUILT_IN, ANSWERS)))
    depth = max(map(len, nodes(TREE)))
    vllm = {"python": bench.environments["vllm"].absolute() / "bin" / "python"}
    own = {"engine": "decoding", "checkpoint": str(bench.head), "device": str(bench.device)}
    options = {"model": str(bench.starter), "dtype": "bfloat16", "prompts": str(prompts), "max_tokens": TOKENS}
    contenders = [
        Contender("ours", "generation_side.py", own),
        Contender("vLLM plain", "vllm_side.py", {"draft": ""}, **vllm),
        Contender("vLLM head", "vllm_side.py", {"draft": str(export), "depth": depth}, **vllm),
    ]
    for contender in contenders:  # one at a time: each reserves memory
        with started([contender], {**options, "threads": 4}) as (sides, failed):
            bench.figures |= {f"{name}: not run": reason for name, reason in failed.items()}
            for side in sides:
                for drafter in ("plain", "head") if side.name == "ours" else ("",):
                    name = f"{side.name} {drafter}".strip()
                    bench.figures[f"{name}, tokens/s"] = round(speed(side, {"drafter": drafter}), 1)


def speed(side: Side, command: dict[str, Any]) -> float:
    """Median tokens per second, without the first prompt."""
    answers = [side.ask(prompt=number, **command) for number in range(ANSWERS)]
    return statistics.median(one["tokens"] / one["seconds"] for one in islice(answers, 1, None))


def add_options(parser: argparse.ArgumentParser) -> None:
    for name in NAMES:
        parser.add_argument(f"--{name}", type=Path, help=f"virtual environment with {name}, to compare with")

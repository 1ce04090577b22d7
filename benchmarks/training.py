"""Training speed and memory: `python -m benchmarks.training --base FOLDER --data FOLDER --json FILE`.

The same 64 conversations of a data set folder, no features kept, base frozen and its forward counted in all; real
(unpadded) tokens a second and peak resident memory, each case in a process of its own. On a shared machine look at
tokens a CPU-second too. Figures: docs/training.md.
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

CASES: dict[str, dict[str, Any]] = {
    "medusa-2-heads-fp32": {"method": "medusa", "medusa_num_heads": 2, "base_dtype": "float32"},
    "medusa-2-heads-bf16-base": {"method": "medusa", "medusa_num_heads": 2, "base_dtype": "bfloat16"},
    "eagle3-ttt3-fp32": {"method": "eagle3", "ttt_steps": 3, "base_dtype": "float32"},
    "eagle3-ttt3-bf16-base": {"method": "eagle3", "ttt_steps": 3, "base_dtype": "bfloat16"},
}
COMMON = {"lr": 1e-3, "max_length": 512, "cache_features_mb": 0, "held_out": 0.0, "eval_every": 0, "save_every": 0}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--base", required=True, help="Hugging Face folder of the base model")
    parser.add_argument("--data", required=True, help="data set folder of conversations")
    parser.add_argument("--steps", type=int, default=10, help="steps measured, after two that are not")
    parser.add_argument("--batch-tokens", type=int, default=1024)
    parser.add_argument("--threads", type=int, default=0, help="0: as many as torch takes")
    parser.add_argument("--case", choices=CASES, action="append", help="default: all")
    parser.add_argument("--json", dest="out", help="file for the results")
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(measure(arguments.one, arguments)))
        return
    results = {name: in_own_process(name) for name in arguments.case or CASES}
    if arguments.out:
        Path(arguments.out).write_text(json.dumps(results, indent=2) + "\n")


def in_own_process(name: str) -> dict[str, Any]:
    """Run one case in a fresh interpreter, so that its peak memory is its own."""
    command = [sys.executable, "-m", "benchmarks.training", *sys.argv[1:], "--one", name]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    result = json.loads(done.stdout.splitlines()[-1])
    print(name, json.dumps(result), flush=True)
    return result


def measure(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Median real tokens a second (and a CPU-second) over the measured steps, losses, peak memory."""
    import torch

    from models.base import load_base
    from training.batches import load_conversations
    from training.config import TrainConfig
    from training.feature_store import FeatureStore
    from training.method import make_method
    from training.setup import make_optimizer
    from training.stream import Stream

    if arguments.threads:
        torch.set_num_threads(arguments.threads)
    config = TrainConfig.from_json({**COMMON, "batch_tokens": arguments.batch_tokens, **CASES[name]})
    base = load_base(arguments.base, dtype=config.base_dtype)
    found, _ = load_conversations(arguments.data, base.tokenizer, config.max_length, base.vocab_size)
    torch.manual_seed(0)
    method = make_method(config, base, found[:64]).train()
    optimizer = make_optimizer(config, method)
    stream = Stream(found[:64], config.batch_tokens, 0, method, base.device, FeatureStore(0))
    rates, cpu_rates, losses = [], [], []
    for number in range(arguments.steps + 2):
        index = stream.index(number)
        wall, cpu = time.perf_counter(), time.process_time()
        losses.append(step(method, optimizer, stream.features(index)))
        rates.append(stream.tokens(index) / (time.perf_counter() - wall))
        cpu_rates.append(stream.tokens(index) / (time.process_time() - cpu))
    return {
        "tokens_per_second": round(median(rates[2:]), 1),
        "tokens_per_cpu_second": round(median(cpu_rates[2:]), 1),
        "padding": round(stream.padding, 3),
        "trainable": sum(p.numel() for p in method.parameters() if p.requires_grad),
        "first_losses": [round(x, 4) for x in losses[:3]],
        "peak_memory_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "threads": torch.get_num_threads(),
        "load": [round(x, 1) for x in os.getloadavg()],
    }


def step(method: Any, optimizer: Any, features: dict[str, Any]) -> float:
    """One optimizer step on one batch; the loss before it."""
    import torch

    scale = torch.tensor(method.weights) / method.counts(features).clamp(min=1)
    loss = method(features, 0, scale).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(method.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    return float(loss.detach())


if __name__ == "__main__":
    main()

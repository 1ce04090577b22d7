"""Compares the forecast of a training's memory with measured peaks, and prints the table in docs/training.md.

python -m benchmarks.training_memory            # every method on the starter model, with real processes on a CPU
python -m benchmarks.training_memory --shapes   # EAGLE-3 for an 8B shape, 1,024 to 32,768 tokens, nothing allocated
python -m benchmarks.training_memory --table    # memory by model and method, into docs/training.md
"""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from benchmarks.peers.common import peak_memory_mb
from benchmarks.report import replace_between
from models.card import make_card
from models.methods import METHODS, train_config
from models.methods.record import BaseShape
from models.methods.settings import TrainConfig
from models.starter import starter_path
from speculoos.settings import PROJECT_ROOT
from workers.jobs.training_memory import Forecast

SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3-8B": {"parameters": 8.03e9, "hidden_size": 4096, "intermediate_size": 14336, "heads": 32, "layers": 32},
    "Llama-3-70B": {"parameters": 70.6e9, "hidden_size": 8192, "intermediate_size": 28672, "heads": 64, "layers": 80},
    "Qwen3-30B-A3B": {"parameters": 30.5e9, "hidden_size": 2048, "intermediate_size": 6144, "heads": 32, "layers": 48},
}
"""From their config.json; the intermediate size of the third is that of its eight active experts together."""
SHAPES["Llama-3-8B"] |= {"kv_heads": 8, "vocabulary": 128_256}
SHAPES["Llama-3-70B"] |= {"kv_heads": 8, "vocabulary": 128_256}
SHAPES["Qwen3-30B-A3B"] |= {"kv_heads": 4, "vocabulary": 151_936, "head_dim": 128}
TOKENS, LIMIT = 4096, 80e9
TABLE = ("<!-- training memory -->", "<!-- end of training memory -->")
MEASURED = {"batch_tokens": 1024, "max_length": 512, "max_steps": 3, "epochs": 0, "base_dtype": "float32", "samples": 0}


def table_settings(method: str, remote: bool) -> TrainConfig:
    """The standard recipe's settings that change memory, 4,096 tokens per batch."""
    vocabulary: dict[str, Any] = {"medusa_tie_lm_head": True} if method == "medusa" else {}
    vocabulary |= {"draft_vocab_size": 32_000} if method in ("eagle3", "peagle") else {}
    states = {"hidden_states": "server", "draft_init": "random"} if remote else {}
    return train_config(method, batch_tokens=TOKENS, max_length=TOKENS, **vocabulary, **states)


def table() -> str:
    """GB of each GPU by model and method."""
    heads = "| base model | method | 1 × 80 GB | 8 × 80 GB | 8 × 80 GB, `fsdp` | base divided | base on a server |"
    lines = [heads, "|---" * 7 + "|"]
    for name, card in SHAPES.items():
        for method in METHODS:
            variants = ((False, 1, "none"), (False, 8, "none"), (False, 8, "fsdp"), (True, 1, "none"))
            forecasts = [
                Forecast(BaseShape.from_card(card), table_settings(method, remote), processes, sharding)
                for remote, processes, sharding in variants
            ]
            forecasts.insert(3, forecasts[0].divided(LIMIT, 8))
            cells = [cell(each.device_memory("cuda"), each.gpus) for each in forecasts]
            lines.append(f"| {name} | `{method}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def cell(needed: float, gpus: int) -> str:
    on = f" on each of {gpus}" if gpus > 1 else ""
    return f"{needed / 1e9:.0f}{on}" if needed <= LIMIT else f"{needed / 1e9:.0f}, too large"


def measure(method: str) -> None:
    """Train for a few steps in this process and print its peak in MB."""
    import torch

    from training.loop import train

    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        data = Path(folder) / "data"
        data.mkdir()
        rows = ({"id": str(i), "token_ids": torch.randint(0, 49_152, (512,)).tolist()} for i in range(12))
        lines = (json.dumps(row | {"loss_spans": [[32, 512]]}) for row in rows)
        (data / "shard-00000.jsonl").write_text("\n".join(lines))
        (data / "dataset.json").write_text('{"kind": "conversations", "rows": 12}')
        train(train_config(method, **MEASURED), starter_path(), data, Path(folder) / "out")
    print(peak_memory_mb())


def compare_on_starter() -> None:
    shape = BaseShape.from_card(make_card(starter_path()))
    for method in METHODS:
        command = [sys.executable, "-m", "benchmarks.training_memory", "--measure", method]
        printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=PROJECT_ROOT).stdout
        peak = float(printed.split()[-1]) * 2**20
        cached = 12 * 512 * 4 * shape.hidden * METHODS[method].size(shape, train_config(method)).features
        forecast = Forecast(shape, train_config(method, **MEASURED), cached=cached).device_memory("cpu")
        print(f"{method}: measured {peak / 1e9:.2f} GB, forecast {forecast / 1e9:.2f} GB ({forecast / peak - 1:+.0%})")


def compare_shapes() -> None:
    from tests.tools.meta_memory import eagle3_peak

    card = SHAPES["Llama-3-8B"]
    sizes = {"hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8}
    sizes |= {"num_hidden_layers": 4, "vocab_size": card["vocabulary"]}
    for length, steps in ((1024, 7), (8192, 3), (8192, 7), (32_768, 3), (32_768, 7)):
        settings = {"batch_tokens": length, "max_length": length, "ttt_steps": steps, "draft_vocab_size": 32_000}
        forecast = Forecast(BaseShape.from_card(card), train_config("eagle3", **settings)).of_process("cuda").step
        peak = eagle3_peak(sizes, length, steps, 32_000)
        print(f"{length} tokens, {steps} steps: {peak / 1e9:.1f} GB beside weights, forecast {forecast / 1e9:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", action="store_true")
    parser.add_argument("--table", action="store_true")
    parser.add_argument("--measure", choices=list(METHODS), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.measure:
        measure(args.measure)
    elif args.table:
        page = PROJECT_ROOT / "docs" / "training.md"
        page.write_text(replace_between(page.read_text(), *TABLE, table()))
    elif args.shapes:
        compare_shapes()
    else:
        compare_on_starter()


if __name__ == "__main__":
    main()

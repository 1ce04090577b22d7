"""Shared by both training benchmarks: the conversations of each step, the settings, and the contenders."""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.race import Contender, Side, started
from models.base import load_tokenizer, read_eos_ids
from models.starter import starter_path
from speculoos.settings import PROJECT_ROOT
from training.batches import TokenisedConversation, epoch_order, load_conversations, make_batches
from training.setup import lr_factor

PEERS = {"modelopt": ("eagle3", "medusa"), "speculators": ("eagle3",)}
"""Draft methods that each compared library can train."""
TORCH = f"torch=={torch.__version__.split('+')[0]}"
INSTALLED: dict[str, list[Sequence[str]]] = {
    "modelopt": [(TORCH,), (TORCH, "nvidia-modelopt[hf]==0.47.0", "requests")],
    "speculators": [
        (TORCH, "transformers==5.19.0", "accelerate", "datasets>=4,<=5.1", "loguru>=0.7.2,<=0.7.3"),
        ("aiohttp", "click", "httpx", "openai>=2", "protobuf", "psutil", "pydantic>=2", "pydantic-settings"),
        ("rich", "safetensors", "tqdm<=4.70.1", "typer"),
        ("--no-deps", "speculators==0.9.0", "hs-connectors==0.9.0"),
    ],
}
"""Packages of each pip call. speculators depends on torchaudio and torchvision, which are not needed here and would
install another torch, so its other dependencies are listed explicitly."""


@dataclass(frozen=True)
class BenchmarkSettings:
    """Training settings, equal for all contenders."""

    seed: int = 0
    ttt_steps: int = 3
    ttt_decay: float = 0.8
    medusa_heads: int = 2
    medusa_layers: int = 1
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    clip: float = 0.5
    lr: float = 1e-4
    schedule: str = "constant"
    warmup_ratio: float = 0.0


@dataclass(frozen=True)
class BenchmarkPlan:
    """`rows`: conversations; `steps`: lists of row indices, one micro-batch and optimizer step each."""

    rows: list[TokenisedConversation]
    steps: list[list[int]]
    settings: BenchmarkSettings

    @classmethod
    def make(
        cls, rows: list[TokenisedConversation], batch_tokens: int, epochs: int, settings: BenchmarkSettings
    ) -> "BenchmarkPlan":
        """Batch rows of similar length, as in our training loop; shuffle the steps each epoch."""
        groups = make_batches(rows, batch_tokens, settings.seed)
        orders = [epoch_order(len(groups), epoch, settings.seed) for epoch in range(epochs)]
        return cls(rows, [groups[i] for order in orders for i in order], settings)

    def tokens(self, step: int) -> int:
        """Tokens of a step without padding."""
        return sum(len(self.rows[i]) for i in self.steps[step])

    def lr(self, step: int) -> float:
        """Learning rate of a step, at its midpoint in the schedule, as in our training loop."""
        s = self.settings
        return s.lr * lr_factor((step + 0.5) / len(self.steps), s.warmup_ratio, s.schedule)

    def facts(self) -> dict[str, Any]:
        """Counts for the report."""
        positions = sum(len(step) * max(len(self.rows[i]) for i in step) for step in self.steps)
        tokens = sum(self.tokens(i) for i in range(len(self.steps)))
        return {
            "conversations": len(self.rows),
            "tokens": sum(len(row) for row in self.rows),
            "answer_tokens": sum(int(row.mask.sum()) for row in self.rows),
            "steps": len(self.steps),
            "padding": round(1 - tokens / positions, 3),
            "settings": asdict(self.settings),
        }


def conversations(base: Path, data: Path, max_length: int) -> list[TokenisedConversation]:
    """The data set's conversations, tokenised, masked and truncated for this base model."""
    tokenizer = load_tokenizer(base)
    return load_conversations(data, tokenizer, max_length, eos_ids=sorted(read_eos_ids(base, tokenizer)))[0]


def add_options(parser: argparse.ArgumentParser, batch_tokens: int) -> None:
    """Add the options of both training benchmarks: base, data, peers' environments, threads, dtype."""
    parser.add_argument("--base", type=Path, default=starter_path(), help="Hugging Face folder of the base model")
    parser.add_argument("--data", type=Path, required=True, help="data set folder of the base's own answers")
    parser.add_argument("--max-length", type=int, default=512, help="longer conversations are cut")
    parser.add_argument("--batch-tokens", type=int, default=batch_tokens, help="tokens of one step, with padding")
    for name in PEERS:
        parser.add_argument(f"--{name}", type=Path, help=f"virtual environment with {name}")
    parser.add_argument("--make-peers", type=Path, metavar="DIR", help="make the missing environments in DIR")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--base-dtype", default="bfloat16", help="precision of our frozen base")


def ours(name: str, base_dtype: str, tree: Path = PROJECT_ROOT) -> Contender:
    """This project, or another commit of it in `tree`, with the frozen base model in `base_dtype`."""
    return Contender(name, "training_ours.py", {"base_dtype": base_dtype}, tree)


def peers(args: argparse.Namespace, method: str) -> tuple[list[Contender], dict[str, str]]:
    """(the compared libraries that train this method, {library: reason} of those that do not take part)."""
    found, missing = [], {}
    for name, methods in PEERS.items():
        if method not in methods:
            missing[name] = f"trains no {method}"
        elif given := getattr(args, name) or (make_environment(name, args.make_peers) if args.make_peers else None):
            found.append(Contender(name, f"training_{name}.py", python=given.absolute() / "bin" / "python"))
        else:
            missing[name] = f"no environment: give --{name} or --make-peers"
    return found, missing


def make_environment(peer: str, folder: Path) -> Path:
    """Create the virtual environment `folder`/`peer` if missing; needs network, minutes and some GB."""
    environment = folder / peer
    complete = environment / ".whole"
    if complete.exists():
        return environment
    subprocess.run([sys.executable, "-m", "venv", str(environment)], check=True)
    for packages in INSTALLED[peer]:
        subprocess.run([str(environment / "bin" / "python"), "-m", "pip", "install", "-q", *packages], check=True)
    complete.touch()
    return environment


@contextmanager
def training_sides(
    contenders: Sequence[Contender], method: str, args: argparse.Namespace, plan: BenchmarkPlan
) -> Iterator[tuple[list[Side], dict[str, str]]]:
    """`race.started` with the plan in a file."""
    with tempfile.TemporaryDirectory() as folder:
        rows = [{"ids": row.token_ids.tolist(), "mask": row.mask.int().tolist()} for row in plan.rows]
        file = Path(folder) / "plan.json"
        file.write_text(json.dumps({"rows": rows, "steps": plan.steps, "settings": asdict(plan.settings)}))
        options = {"method": method, "base": str(args.base), "plan": str(file), "threads": args.threads}
        with started(contenders, options) as running:
            yield running

"""Training benchmark: contenders as processes, and rounds in which each runs the same step in turn."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.plan import BenchmarkPlan
from models.starter import starter_path
from speculoos.errors import Unavailable
from speculoos.settings import PROJECT_ROOT

HERE = Path(__file__).parent
PEERS = {"modelopt": ("eagle3", "medusa"), "speculators": ("eagle3",)}
"""Draft methods that each compared library can train."""


@dataclass(frozen=True)
class Contender:
    """A name and a start command; see `serve` in peers/common.py for the protocol."""

    name: str
    command: tuple[str, ...]
    tree: Path = PROJECT_ROOT
    """Source tree whose modules it uses, for versions of this project."""


def ours(name: str, base_dtype: str, tree: Path = PROJECT_ROOT) -> Contender:
    """This project, or another commit of it in `tree`, with the frozen base model in `base_dtype`."""
    return Contender(name, (sys.executable, "-m", "benchmarks.ours", "--base-dtype", base_dtype), tree)


def peer(name: str, environment: Path) -> Contender:
    """A compared library, run in its own virtual environment."""
    return Contender(name, (str(environment / "bin" / "python"), str(HERE / "peers" / f"{name}_side.py")))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the common options: base, data, peers' environments, threads, dtype, result file."""
    parser.add_argument("--base", type=Path, default=starter_path(), help="Hugging Face folder of the base model")
    parser.add_argument("--data", type=Path, required=True, help="data set folder of the base's own answers")
    parser.add_argument("--max-length", type=int, default=512, help="longer conversations are cut")
    for name in PEERS:
        parser.add_argument(f"--{name}", type=Path, help=f"virtual environment with {name}")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--base-dtype", default="bfloat16", help="precision of our frozen base")
    parser.add_argument("--json", type=Path)


class Runner:
    """A running contender. Raises Unavailable with its last log line if it ends early."""

    def __init__(self, contender: Contender, method: str, base: Path, plan: Path, threads: int):
        self.name = contender.name
        self._log = plan.with_name(f"{contender.name}.log")
        reading, writing = os.pipe()
        options = ["--method", method, "--base", base, "--plan", plan, "--threads", threads, "--answers", writing]
        try:
            with self._log.open("w") as log:
                self._process = subprocess.Popen(
                    [*contender.command, *map(str, options)],
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=log,
                    text=True,
                    cwd=contender.tree,
                    env=_environment(threads, contender.tree),
                    pass_fds=[writing],
                )
        finally:
            os.close(writing)
        self._answers = os.fdopen(reading)
        self.facts = self._answer()

    def step(self, number: int, lr: float) -> dict[str, float]:
        """Run step `number`; returns loss, seconds and CPU seconds."""
        return self._ask({"step": number, "lr": lr})

    def save(self, folder: Path) -> None:
        """Write the current draft model to folder/draft.safetensors."""
        self._ask({"save": str(folder)})

    def finish(self) -> int:
        """End the process; returns its peak resident memory in MiB."""
        self._process.stdin.close()
        peak = self._answer()["peak_memory_mb"]
        self._process.wait(60)
        return peak

    def close(self) -> None:
        """Kill the process."""
        self._process.kill()
        self._process.wait()
        self._process.stdin.close()
        self._answers.close()

    def _ask(self, command: dict[str, Any]) -> dict[str, Any]:
        with suppress(BrokenPipeError):  # `_answer` reports the reason
            self._process.stdin.write(json.dumps(command) + "\n")
            self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        if line := self._answers.readline():
            return json.loads(line)
        self._process.wait()
        lines = self._log.read_text(errors="replace").split("\n")
        last = next((line.strip() for line in reversed(lines) if line.strip()), "no output")
        raise Unavailable(f"{self.name} ended with status {self._process.returncode}: {last}")


@contextmanager
def start_contenders(
    contenders: Sequence[Contender], method: str, base: Path, plan: BenchmarkPlan, threads: int
) -> Iterator[tuple[list[Runner], dict[str, str]]]:
    """Yields (started contenders, {name: reason} of those that failed to start)."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file, runners, missing = plan.write(folder / "plan.json"), [], {}
        for contender in contenders:
            try:
                runner = Runner(contender, method, base, file, threads)
            except (OSError, Unavailable) as error:
                missing[contender.name] = str(error)
                continue
            stack.callback(runner.close)
            runners.append(runner)
        yield runners, missing


def run_round(runners: Sequence[Runner], number: int, plan: BenchmarkPlan) -> dict[str, dict[str, float]]:
    """One round: every contender runs step `number`; the order rotates from round to round."""
    first = number % max(len(runners), 1)
    order = [*runners[first:], *runners[:first]]
    return {runner.name: runner.step(number, plan.lr(number)) for runner in order}


def _environment(threads: int, tree: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "PYTHONHOME")}
    paths = {"PYTHONPATH": str(tree)} if "PYTHONPATH" in os.environ or tree != PROJECT_ROOT else {}
    fixed = {"HF_HUB_OFFLINE": "1", "WANDB_DISABLED": "true", "TOKENIZERS_PARALLELISM": "false"}
    return {**inherited, **paths, **fixed, "OMP_NUM_THREADS": str(threads)}

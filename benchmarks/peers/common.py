"""What every contender of a training race does alike, ours and the peers': read a plan, take steps when told, report.

Runs under the peer's own interpreter: standard library and torch only, nothing of this project.
A contender is a process. It writes one line of JSON when it is ready and one for each command it reads from standard
input, to a pipe of their own (--answers), since libraries print what they like:

    {"step": 3, "lr": 0.001}  →  {"step": 3, "loss": 4.2, "seconds": 1.7, "cpu_seconds": 3.3}
    {"save": FOLDER}          →  {"saved": FOLDER}
    end of input              →  {"peak_memory_mb": 1234}

The plan is a JSON file: `rows` ({"ids", "mask"}), `steps` (lists of row numbers) and `settings`.
"""

import argparse
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch


class PeerTrainer(Protocol):
    """One side's model, loss and optimizer."""

    versions: dict[str, str]
    parameters: list[torch.nn.Parameter]
    """What learns."""

    def loss(self, rows: list[dict[str, list[int]]]) -> torch.Tensor:
        """The loss of one step on these rows, base forward included."""

    def weights(self) -> dict[str, torch.Tensor]:
        """The draft's tensors under the names this project stores them by."""


def serve(make: Callable[[argparse.Namespace, dict[str, Any]], PeerTrainer]) -> None:
    """Be a contender: `make(arguments, plan)` builds the trainer, then commands from standard input are obeyed."""
    arguments = parse()
    say = _sayer(arguments.answers)
    plan = json.loads(arguments.plan.read_text())
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(plan["settings"]["seed"])
    trainer = make(arguments, plan)
    optimizer = make_optimizer(trainer, plan["settings"])
    trainable = sum(p.numel() for p in trainer.parameters)
    say({"ready": True, "trainable": trainable, "versions": {"torch": torch.__version__, **trainer.versions}})
    for line in sys.stdin:
        command = json.loads(line)
        if "save" in command:
            save(trainer, Path(command["save"]))
            say({"saved": command["save"]})
        else:
            rows = [plan["rows"][i] for i in plan["steps"][command["step"]]]
            say({"step": command["step"], **take_step(trainer, optimizer, rows, command["lr"], plan["settings"])})
    say({"peak_memory_mb": peak_memory_mb()})


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="One contender; started by benchmarks.training, not by hand.")
    parser.add_argument("--method", choices=("eagle3", "medusa"), required=True)
    parser.add_argument("--base", required=True)
    parser.add_argument("--plan", type=Path, required=True)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--answers", type=int, required=True, help="file descriptor for answers")
    parser.add_argument("--base-dtype", default="float32", help="ours only")
    return parser.parse_args()


def make_optimizer(trainer: PeerTrainer, settings: dict[str, Any]) -> torch.optim.Optimizer:
    """The same for all: torch's fused AdamW."""
    return torch.optim.AdamW(
        trainer.parameters, lr=0.0, betas=settings["betas"], weight_decay=settings["weight_decay"], fused=True
    )


def take_step(
    trainer: PeerTrainer, optimizer: torch.optim.Optimizer, rows: list[Any], lr: float, settings: dict[str, Any]
) -> dict[str, float]:
    """One optimizer step, timed from token lists to updated weights."""
    wall, cpu = time.perf_counter(), time.process_time()
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = trainer.loss(rows)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trainer.parameters, settings["clip"])
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    value = float(loss.detach())
    return {"loss": value, "seconds": time.perf_counter() - wall, "cpu_seconds": time.process_time() - cpu}


def padded(rows: list[dict[str, list[int]]]) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """ids, answer mask and attention mask, int64 and bool [B, longest]; padding on the right, with id 0."""
    width = max(len(row["ids"]) for row in rows)
    ids = torch.zeros(len(rows), width, dtype=torch.long)
    answer, real = torch.zeros_like(ids, dtype=torch.bool), torch.zeros_like(ids, dtype=torch.bool)
    for number, row in enumerate(rows):
        length = len(row["ids"])
        ids[number, :length] = torch.tensor(row["ids"])
        answer[number, :length] = torch.tensor(row["mask"], dtype=torch.bool)
        real[number, :length] = True
    return ids, answer, real


def read_in_answer(answer: torch.Tensor) -> torch.Tensor:
    """bool like `answer`: this token and the next are both in an answer.

    Peers count the place whose *read* token is marked; so marked, their first step counts the places ours does.
    """
    both = torch.zeros_like(answer)
    both[..., :-1] = answer[..., :-1] & answer[..., 1:]
    return both


def save(trainer: PeerTrainer, folder: Path) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.detach().contiguous() for name, tensor in trainer.weights().items()}
    save_file(tensors, folder / "draft.safetensors")


def peak_memory_mb() -> int:
    """Most resident memory this process ever had. `ru_maxrss` alone would count its parent's before it was started."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _sayer(descriptor: int) -> Callable[[dict[str, Any]], None]:
    out = os.fdopen(descriptor, "w")
    return lambda line: print(json.dumps(line), file=out, flush=True)

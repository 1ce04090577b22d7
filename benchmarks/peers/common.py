"""Shared code of all contenders of the training benchmark: reads a plan, runs steps on command, reports.

Runs under the library's own interpreter, so it imports only the standard library and torch. A contender is a process.
It writes one JSON line when it is ready and one per command from standard input. The lines go to a separate pipe
(--answers), since libraries print to standard output:

    {"step": 3, "lr": 0.001}  →  {"step": 3, "loss": 4.2, "seconds": 1.7, "cpu_seconds": 3.3}
    {"save": FOLDER}          →  {"saved": FOLDER}
    end of input              →  {"peak_memory_mb": 1234}

The plan is a JSON file: `rows` ({"ids", "mask"}), `steps` (lists of row indices) and `settings`.
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
    """Model and loss of one contender."""

    versions: dict[str, str]
    parameters: list[torch.nn.Parameter]
    """Trainable parameters."""

    def loss(self, rows: list[dict[str, list[int]]]) -> torch.Tensor:
        """The loss of one step on these rows, including the base model's forward pass."""

    def weights(self) -> dict[str, torch.Tensor]:
        """The draft model's tensors under this project's names."""


def serve(make: Callable[[argparse.Namespace, dict[str, Any]], PeerTrainer]) -> None:
    """Run a contender: `make(arguments, plan)` builds the trainer, then commands from standard input are executed."""
    arguments = parse()
    send = _sender(arguments.answers)
    plan = json.loads(arguments.plan.read_text())
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(plan["settings"]["seed"])
    trainer = make(arguments, plan)
    optimizer = make_optimizer(trainer, plan["settings"])
    trainable = sum(p.numel() for p in trainer.parameters)
    send({"ready": True, "trainable": trainable, "versions": {"torch": torch.__version__, **trainer.versions}})
    for line in sys.stdin:
        command = json.loads(line)
        if "save" in command:
            save(trainer, Path(command["save"]))
            send({"saved": command["save"]})
        else:
            rows = [plan["rows"][i] for i in plan["steps"][command["step"]]]
            send({"step": command["step"], **take_step(trainer, optimizer, rows, command["lr"], plan["settings"])})
    send({"peak_memory_mb": peak_memory_mb()})


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
    """torch's fused AdamW, for all contenders."""
    return torch.optim.AdamW(
        trainer.parameters, lr=0.0, betas=settings["betas"], weight_decay=settings["weight_decay"], fused=True
    )


def take_step(
    trainer: PeerTrainer, optimizer: torch.optim.Optimizer, rows: list[Any], lr: float, settings: dict[str, Any]
) -> dict[str, float]:
    """One optimizer step, timed from token lists to updated weights; returns loss, seconds and CPU seconds."""
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
    """Token ids (int64), answer mask and attention mask (bool), all [B, longest], right-padded with id 0."""
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
    """bool [B, L] like `answer`: both this token and the next are in an answer.

    Other libraries mask the loss by the input token of a position; this mask makes them count our positions.
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
    """Peak resident memory in MiB. `ru_maxrss` would include the memory of the parent before the fork."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) // 1024
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


def _sender(descriptor: int) -> Callable[[dict[str, Any]], None]:
    out = os.fdopen(descriptor, "w")
    return lambda line: print(json.dumps(line), file=out, flush=True)

"""Shared code of all contenders. Runs under the interpreter of the compared library, so it imports only torch.

A contender is a process with its options as JSON in its argument. It writes one JSON line when it is ready and one per
command from standard input, with its peak memory. What libraries print goes to its log (standard error).
"""

import json
import os
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import torch

Json = dict[str, Any]


def serve(make: Callable[[Json], tuple[Json, Callable[[Json], Json]]]) -> None:
    """Run a contender: `make(options)` returns its facts and the function that answers a command."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    options = json.loads(sys.argv[1])
    torch.set_num_threads(options["threads"])
    facts, answer = make(options)
    print(json.dumps(facts), file=answers, flush=True)
    for line in sys.stdin:
        report = {**answer(json.loads(line)), "peak_memory_mb": peak_memory_mb()}
        print(json.dumps(report), file=answers, flush=True)


class PeerTrainer(Protocol):
    """Model and loss of one contender of the training benchmark."""

    versions: dict[str, str]
    parameters: list[torch.nn.Parameter]
    """Trainable parameters."""

    def loss(self, rows: list[dict[str, list[int]]]) -> torch.Tensor:
        """The loss of one step on these rows, including the base model's forward pass."""

    def weights(self) -> dict[str, torch.Tensor]:
        """The draft model's tensors under this project's names."""


def serve_trainer(make: Callable[[Json, Json], PeerTrainer]) -> None:
    """Run a contender that trains. `make(options, plan)` builds it; the plan is a JSON file with `rows` ({"ids",
    "mask"}), `steps` (lists of row indices) and `settings`.

    Commands: {"step": 3, "lr": 0.001} → {"loss", "seconds", "cpu_seconds"}; {"save": FOLDER} → {}.
    """

    def start(options: Json) -> tuple[Json, Callable[[Json], Json]]:
        plan = json.loads(Path(options["plan"]).read_text())
        settings = plan["settings"]
        torch.manual_seed(settings["seed"])
        trainer = make(options, plan)
        optimizer = torch.optim.AdamW(
            trainer.parameters, lr=0.0, betas=settings["betas"], weight_decay=settings["weight_decay"], fused=True
        )

        def answer(command: Json) -> Json:
            if "save" in command:
                save(trainer, Path(command["save"]))
                return {}
            rows = [plan["rows"][i] for i in plan["steps"][command["step"]]]
            return take_step(trainer, optimizer, rows, command["lr"], settings["clip"])

        trainable = sum(p.numel() for p in trainer.parameters)
        return {"trainable": trainable, "versions": {"torch": torch.__version__, **trainer.versions}}, answer

    serve(start)


def take_step(
    trainer: PeerTrainer, optimizer: torch.optim.Optimizer, rows: list[Any], lr: float, clip: float
) -> dict[str, float]:
    """One optimizer step, timed from token lists to updated weights; returns loss, seconds and CPU seconds."""
    wall, cpu = time.perf_counter(), time.process_time()
    for group in optimizer.param_groups:
        group["lr"] = lr
    loss = trainer.loss(rows)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(trainer.parameters, clip)
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

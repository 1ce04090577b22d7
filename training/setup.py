"""Setup of a training run: device and processes, optimizer, learning rate, seeds, error messages."""

import math
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from models.base import pick_devices
from models.methods.settings import TrainConfig
from speculoos.errors import BadInput, OutOfMemory, SpeculoosError, Unavailable
from speculoos.faults import disk_full, out_of_memory
from training.sharding import shard

MEMORY_HINT = "Lower batch_tokens, max_length or cache_features_mb, or choose base_dtype bfloat16."
DISK_HINT = "Free some disk space, then retry: training resumes from the last saved state."


def make_accelerator(config: TrainConfig) -> Any:
    """An Accelerator with the device, precision and processes of this run, from the environment."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    device = pick_devices(config.device)[0]
    if config.mixed_precision == "fp16" and device.type == "cpu":
        raise BadInput("mixed_precision: fp16 needs a GPU (accelerate would silently use fp32); choose bf16 or no.")
    if device.type == "cuda" and "LOCAL_RANK" not in os.environ:
        torch.cuda.set_device(device)  # accelerate always uses the current GPU
    AcceleratorState._reset_state(True)  # a process may train twice, on another device (tests, notebooks)
    return Accelerator(mixed_precision=config.mixed_precision, cpu=device.type == "cpu")


def make_optimizer(config: TrainConfig, method: Any) -> torch.optim.Optimizer:
    """AdamW (or SGD); no weight decay for biases and norms. Fused: one pass over the weights, not ten."""
    parameters = [p for p in method.parameters() if p.requires_grad]
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr, weight_decay=config.weight_decay)
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    fused = all(p.device.type in ("cpu", "cuda") for p in parameters) or None
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=betas, fused=fused)


def prepare(config: TrainConfig, accelerator: Any, method: Any, sharded: bool) -> tuple[Any, Any]:
    """The wrapped method and its optimizer: sharded by FSDP2, or wrapped by accelerate (DDP)."""
    if sharded and accelerator.num_processes > 1:
        shard(method, accelerator.device)
        return method, accelerator.prepare_optimizer(make_optimizer(config, method))
    return accelerator.prepare(method, make_optimizer(config, method))


def lr_factor(progress: float, warmup: float, schedule: str) -> float:
    """Factor of the peak learning rate at `progress` (0…1) of the run; linear warm-up over the fraction `warmup`.
    cosine: (1 + cos(π·r)) / 2, linear: 1 − r, constant: 1, with r the progress after the warm-up (0…1)."""
    if progress < warmup:
        return progress / warmup
    rest = min((progress - warmup) / max(1 - warmup, 1e-9), 1.0)
    return {"cosine": (1 + math.cos(math.pi * rest)) / 2, "linear": 1 - rest, "constant": 1.0}[schedule]


@contextmanager
def translate_errors() -> Iterator[None]:
    """Convert out-of-memory and full-disk errors to SpeculoosErrors with a hint."""
    try:
        yield
    except SpeculoosError:
        raise
    except Exception as error:
        if out_of_memory(error):
            raise OutOfMemory("Training ran out of memory.", MEMORY_HINT) from None
        if disk_full(error):
            raise Unavailable("Training stopped because the disk is full.", DISK_HINT) from None
        raise


def nonfinite_loss_error(step: int, lr: float, precision: str) -> BadInput:
    other = " or mixed_precision no" if precision == "fp16" else ""
    return BadInput(
        f"The loss is NaN or infinite at step {step} (lr {lr:.2g}); train with a lower lr{other}.",
        "Resuming would fail again: clone the job with a tenth of the lr and a warmup_ratio of 0.1.",
    )

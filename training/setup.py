"""Setup of a training run: device and processes, optimizer, seeds."""

import os
from typing import Any

import torch

from models.base import pick_device
from models.methods.settings import TrainConfig
from speculoos.errors import BadInput
from training.sharding import shard


def make_accelerator(config: TrainConfig) -> Any:
    """An Accelerator with the device, precision and processes of this run, from the environment."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    device = pick_device(config.device)
    if config.mixed_precision == "fp16" and device.type == "cpu":
        raise BadInput("mixed_precision: fp16 needs a GPU (accelerate would silently use fp32); choose bf16 or no.")
    if device.type == "cuda" and device.index is not None and "LOCAL_RANK" not in os.environ:
        torch.cuda.set_device(device)  # accelerate always uses the current GPU
    AcceleratorState._reset_state()  # a process may train twice, with another precision (tests, notebooks)
    return Accelerator(mixed_precision=config.mixed_precision, cpu=device.type == "cpu")


def make_optimizer(config: TrainConfig, method: Any) -> torch.optim.Optimizer:
    """AdamW (or SGD) over the trainable parameters; no weight decay for biases and norms.

    On a CPU AdamW is fused: one pass over the weights instead of ten.
    """
    parameters = [p for p in method.parameters() if p.requires_grad]
    if config.optimizer == "sgd":
        return torch.optim.SGD(parameters, lr=config.lr, weight_decay=config.weight_decay)
    groups = [
        {"params": [p for p in parameters if p.dim() > 1], "weight_decay": config.weight_decay},
        {"params": [p for p in parameters if p.dim() <= 1], "weight_decay": 0.0},
    ]
    fused = all(p.device.type == "cpu" for p in parameters) or None
    betas = (config.beta1, config.beta2)
    return torch.optim.AdamW([g for g in groups if g["params"]], lr=config.lr, betas=betas, fused=fused)


def prepare(config: TrainConfig, accelerator: Any, method: Any, sharded: bool) -> tuple[Any, Any]:
    """The wrapped method and its optimizer: sharded by FSDP2, else wrapped by accelerate (DDP)."""
    if sharded and accelerator.num_processes > 1:
        shard(method, accelerator.device)
        return method, accelerator.prepare_optimizer(make_optimizer(config, method))
    return accelerator.prepare(method, make_optimizer(config, method))


def micro_seed(seed: int, number: int) -> int:
    """Random seed of one micro-batch."""
    return (seed * 1_000_003 + number) % 2**63

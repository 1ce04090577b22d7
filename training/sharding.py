"""FSDP2: every process holds a shard of each parameter, gradient and optimizer moment.

Parameters are gathered for each forward and resharded after its backward, where gradients are reduced too. This happens
after every micro-batch, since deferring the reduction to the last one would require full gradients in memory.

Enabled by accelerate's options (`accelerate launch --use_fsdp --fsdp_version 2`), but the loop shards by itself with
torch's `fully_shard`, the whole method as one group, and accelerate sees plain data-parallel processes. So the same
code runs on GPUs and, in tests, over gloo. Stored tensors are never sharded.
Functions marked "collective" must be called by all processes. Without sharding they do nothing.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from models.checkpoints import stored_tensors
from speculoos.errors import Unsupported

SWITCH = "ACCELERATE_USE_FSDP"
DEVICES = ("cuda",)
"""Devices with FSDP support in accelerate. On others it silently falls back to DDP, so we refuse; tests add "cpu"."""


@contextmanager
def fsdp_switch(device: torch.device) -> Iterator[bool]:
    """Whether the environment enables FSDP. Raises Unsupported for unsupported options.

    Inside the context the variable is unset: otherwise accelerate would shard by itself, and transformers might load
    parts of the frozen base in the first process only.
    """
    switched_on = _on(SWITCH)
    if switched_on:
        _check(device)
    value = os.environ.pop(SWITCH, None)
    try:
        yield switched_on
    finally:
        if value is not None:
            os.environ[SWITCH] = value


def shard(method: nn.Module, device: torch.device) -> None:
    """Collective: broadcast the first process's parameters of `method` and shard them in place."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for tensor in [*method.parameters(), *method.buffers()]:
        dist.broadcast(tensor.detach(), 0)
    fully_shard(method, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))


@contextmanager
def unsharded(method: nn.Module) -> Iterator[None]:
    """Collective: unshard the parameters inside the context, for calls other than `forward`, which does it itself.

    `state_dict` reshards them early; use `draft_tensors` and `gather_tensors` instead.
    """
    if not hasattr(method, "unshard"):
        yield
        return
    method.unshard()
    try:
        yield
    finally:
        method.reshard()


def gather_tensor(tensor: Tensor) -> Tensor:
    """Collective: the full tensor of a sharded one; other tensors are returned unchanged."""
    return tensor.full_tensor() if _is_sharded(tensor) else tensor


def gather_tensors(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """Collective: `tensors`, the sharded ones as full tensors in main memory; {} where `keep` is false."""
    state = {}
    for name, tensor in tensors.items():
        full = gather_tensor(tensor)
        if keep:
            state[name] = full.cpu() if _is_sharded(tensor) else full
    return state


def distribute_like(value: Tensor, like: Tensor) -> Tensor:
    """`value` on the device of `like`; if that is sharded and has the same shape, this process's shard of `value`."""
    if not (_is_sharded(like) and value.shape == like.shape):
        return value.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None).clone()


def draft_tensors(draft: Any) -> dict[str, Tensor]:
    """`models.checkpoints.stored_tensors`, possibly sharded."""
    with _implicit_replication(draft):
        return stored_tensors(draft)


def load_tensors(draft: Any, tensors: Mapping[str, Tensor]) -> Any:
    """`draft.load_state_dict(tensors, strict=False)` for full tensors, which are sharded if the draft is."""
    if not any(map(_is_sharded, draft.parameters())):
        return draft.load_state_dict(tensors, strict=False)
    own = draft_tensors(draft)
    parts = {name: distribute_like(full, own[name]) if name in own else full for name, full in tensors.items()}
    with _implicit_replication(draft):
        return draft.load_state_dict(parts, strict=False)


def _implicit_replication(draft: nn.Module) -> AbstractContextManager:
    """Allow operations between replicated tensors (ScaledLinear's scale) and sharded ones."""
    if not any(map(_is_sharded, draft.parameters())):
        return nullcontext()
    from torch.distributed.tensor.experimental import implicit_replication

    return implicit_replication()


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def _on(name: str) -> bool:
    return os.environ.get(name, "").lower() in ("1", "true", "yes", "on", "y", "t")


def _check(device: torch.device) -> None:
    if (version := os.environ.get("FSDP_VERSION", "1")) != "2":
        raise Unsupported(f"FSDP version {version} is not supported; launch with --fsdp_version 2 (FSDP_VERSION=2).")
    if device.type not in DEVICES:
        raise Unsupported(
            f"FSDP is not supported on a {device.type} device (accelerate would silently use DDP instead); "
            "launch without --use_fsdp (ACCELERATE_USE_FSDP)."
        )
    for name in ("FSDP_OFFLOAD_PARAMS", "FSDP_ACTIVATION_CHECKPOINTING"):
        if _on(name):
            raise Unsupported(f"{name} is not supported by this training loop; launch without --{name.lower()}.")

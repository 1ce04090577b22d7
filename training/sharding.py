"""FSDP2: every process keeps a part of each parameter, gradient and moment. The few verbs the loop needs for that.

Parameters are gathered for each forward and split again after its backward, where gradients are reduced too: after
every micro-batch, since waiting for the last one would mean to hold whole gradients meanwhile.

Asked for by accelerate's own switches (`accelerate launch --use_fsdp --fsdp_version 2`), but the loop shards by itself,
with torch's `fully_shard` and the whole method as one group, and accelerate sees plain data-parallel processes: so the
same code runs on GPUs and, under test, over gloo. What is stored is always whole.
Verbs marked "for all processes" gather: one that stayed away would keep the others waiting. Where nothing is sharded
they do nothing.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from models.checkpoints import own_tensors
from speculoos.errors import Unsupported

SWITCH = "ACCELERATE_USE_FSDP"
DEVICES = ("cuda",)
"""Where accelerate knows FSDP. Elsewhere it falls back to DDP without a word, so we refuse; tests add the processor."""


@contextmanager
def fsdp_switch(device: torch.device) -> Iterator[bool]:
    """Whether the environment asks for FSDP. Raises Unsupported for what of it we cannot do.

    Inside, the switch is off for everyone else: accelerate would want to shard in its own way, and transformers may
    leave parts of the frozen base empty in all processes but the first, for the sharding to fill.
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
    """For all processes: split the parameters of `method` among them, in place, starting from the first one's."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for tensor in [*method.parameters(), *method.buffers()]:
        dist.broadcast(tensor.detach(), 0)
    fully_shard(method, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))


@contextmanager
def unsharded(method: nn.Module) -> Iterator[None]:
    """For all processes: inside, the parameters are whole, for calls other than `forward`, which gathers by itself.

    `state_dict` ends that early: torch splits them again to make it; use `draft_tensors` and `gathered`.
    """
    if not hasattr(method, "unshard"):
        yield
        return
    method.unshard()
    try:
        yield
    finally:
        method.reshard()


def whole(tensor: Tensor) -> Tensor:
    """For all processes: a sharded tensor put together; another as it is."""
    return tensor.full_tensor() if _is_sharded(tensor) else tensor


def gathered(tensors: Mapping[str, Tensor], keep: bool) -> dict[str, Tensor]:
    """For all processes: `tensors`, the sharded ones put together in main memory; nothing where `keep` is false."""
    state = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if keep:
            state[name] = full.cpu() if _is_sharded(tensor) else full
    return state


def placed(value: Tensor, like: Tensor) -> Tensor:
    """Whole `value` on the device of `like` and, where that is sharded and of the same shape, this process's part."""
    if not (_is_sharded(like) and value.shape == like.shape):
        return value.to(like.device)
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(like.device), like.device_mesh, like.placements, src_data_rank=None).clone()


def draft_tensors(draft: Any) -> dict[str, Tensor]:
    """`models.checkpoints.own_tensors`, sharded as they are."""
    with _buffers_meet_shards(draft):
        return own_tensors(draft)


def load_tensors(draft: Any, tensors: Mapping[str, Tensor]) -> Any:
    """`draft.load_state_dict` (not strict) of whole tensors; gives what that gives."""
    if not any(map(_is_sharded, draft.parameters())):
        return draft.load_state_dict(tensors, strict=False)
    now = draft_tensors(draft)
    parts = {name: placed(value, now[name]) if name in now else value for name, value in tensors.items()}
    with _buffers_meet_shards(draft):
        return draft.load_state_dict(parts, strict=False)


def _buffers_meet_shards(draft: nn.Module) -> AbstractContextManager:
    """Inside, tensors that are whole in every process (ScaledLinear's scale) may be multiplied with sharded ones."""
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

"""FSDP2: every process holds a shard of each parameter, gradient and optimizer moment of the draft.

Enabled by accelerate's options (`accelerate launch --use_fsdp --fsdp_version 2`). The loop calls torch's `fully_shard`
itself, with the whole method as one group, and accelerate sees plain data-parallel processes: so the same code runs on
GPUs and, in tests, over gloo. Parameters are gathered for each forward and resharded after its backward, which reduces
the gradients of every micro-batch, since deferring that would require full gradients in memory. Files hold full
tensors. Functions marked "collective" must be called by all processes.
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager

import torch
from torch import Tensor, nn

from speculoos.errors import Unsupported

SWITCH = "ACCELERATE_USE_FSDP"
DEVICES = ("cuda",)  # devices with FSDP support in accelerate; on others it would silently use DDP. Tests add "cpu".


@contextmanager
def fsdp_switch(device: torch.device) -> Iterator[bool]:
    """Whether the environment enables FSDP. Raises Unsupported for an unsupported device or option. Inside the context
    the variable is unset: otherwise accelerate would shard by itself, and transformers might load the base's weights in
    the first process only. Operations may mix sharded tensors with plain ones, which are equal in all processes
    (ScaledLinear's scale)."""
    from accelerate.utils import parse_flag_from_env

    if enabled := bool(parse_flag_from_env(SWITCH)):
        if device.type not in DEVICES:
            raise Unsupported(f"FSDP is not supported on a {device.type} device; launch without --use_fsdp ({SWITCH}).")
        if (version := os.environ.get("FSDP_VERSION", "1")) != "2":
            raise Unsupported(f"FSDP version {version} is not supported; launch with --fsdp_version 2 (FSDP_VERSION).")
        for name in filter(parse_flag_from_env, ("FSDP_OFFLOAD_PARAMS", "FSDP_ACTIVATION_CHECKPOINTING")):
            raise Unsupported(f"{name} is not supported by this training loop; launch without --{name.lower()}.")
    value = os.environ.pop(SWITCH, None)
    try:
        with ExitStack() as stack:
            if enabled:
                from torch.distributed.tensor.experimental import implicit_replication

                stack.enter_context(implicit_replication())
            yield enabled
    finally:
        if value is not None:
            os.environ[SWITCH] = value


def shard(method: nn.Module, device: torch.device) -> None:
    """Collective: broadcast the first process's parameters and buffers, and shard the parameters in place."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    for tensor in [*method.parameters(), *method.buffers()]:
        dist.broadcast(tensor.detach(), 0)
    fully_shard(method, mesh=init_device_mesh(device.type, (dist.get_world_size(),)))


@contextmanager
def unsharded(method: nn.Module) -> Iterator[None]:
    """Collective: full parameters inside the context, for calls other than `forward`. `state_dict` reshards them."""
    sharded = hasattr(method, "unshard")
    if sharded:
        method.unshard()
    yield
    if sharded:
        method.reshard()


def full_tensor(tensor: Tensor) -> Tensor:
    """Collective: the full tensor of a sharded one."""
    return tensor.full_tensor() if _is_sharded(tensor) else tensor


def full_tensors(tensors: Mapping[str, Tensor], is_main_process: bool) -> dict[str, Tensor]:
    """Collective: `tensors` with the sharded ones gathered, one by one, into main memory; {} in other processes."""
    full = {}
    for name, tensor in tensors.items():
        whole = full_tensor(tensor)
        if is_main_process:
            full[name] = whole.cpu() if _is_sharded(tensor) else tensor
    return full


def shard_like(value: Tensor, like: Tensor) -> Tensor:
    """The full tensor `value` on the device of `like`; this process's shard of it if `like` is sharded."""
    value = value.to(like.device)
    if not _is_sharded(like):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value, like.device_mesh, like.placements, src_data_rank=None).clone()  # frees `value`


def _is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")

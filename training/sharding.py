"""FSDP2: every process holds a shard of each parameter, gradient and optimizer moment of the draft.

The loop calls torch's `fully_shard` itself and accelerate sees plain data-parallel processes: so the same code runs on
GPUs and over gloo. Each decoder layer is a group: its parameters are gathered for its forward and again for its
backward. All others (embeddings, fusion, heads) are one group, gathered for the whole forward and backward. The
gradients of every micro-batch are reduced, since deferring that would require full gradients in memory. Files hold full
tensors. Functions marked "collective" must be called by all processes.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from speculoos.errors import Unsupported

SWITCH = "ACCELERATE_USE_FSDP"


@contextmanager
def mixed_with_plain_tensors(sharded: bool) -> Iterator[None]:
    """Within the context, operations may mix sharded tensors with plain ones, which are equal in all processes
    (ScaledLinear's scale). Raises Unsupported if accelerate's own FSDP is on: it would shard by itself, and
    transformers might load the base's weights in the first process only."""
    from accelerate.utils import parse_flag_from_env

    if parse_flag_from_env(SWITCH):
        raise Unsupported(f"{SWITCH} is set, but the training shards by itself; unset it and choose sharding fsdp.")
    if not sharded:
        yield
        return
    from torch.distributed.tensor.experimental import implicit_replication

    with implicit_replication():
        yield


def decoder_layers(draft: nn.Module) -> list[nn.Module]:
    """The layers that are sharded by themselves: modules of the classes that the network names in `_no_split_modules`,
    the default of accelerate's `--fsdp_transformer_layer_cls_to_wrap`."""
    names = getattr(draft, "_no_split_modules", None) or ()
    return [module for module in draft.modules() if type(module).__name__ in names]


def shard(method: nn.Module, device: torch.device) -> None:
    """Collective: broadcast the first process's parameters and buffers, and shard the parameters in place. Then
    `forward` and `drafted` are collective."""
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    for tensor in [*method.parameters(), *method.buffers()]:
        dist.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in (*decoder_layers(method.draft), method):
        fully_shard(module, mesh=mesh)
    register_fsdp_forward_method(method, "drafted")


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

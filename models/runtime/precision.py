"""Precision of matrix products, set explicitly."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn

from models.runtime.linear import Linear

HALF = (torch.bfloat16, torch.float16)


def disable_tf32(device: torch.device) -> None:
    """Use float32 instead of TF32 for float32 products on a GPU, so that outputs can be compared token by token."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")


def enable_tf32(device: torch.device) -> None:
    """Use TF32 for float32 products on a GPU, for training: 10 mantissa bits (bfloat16: 7)."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")


def _linear_in_float32(linear: Linear, x: torch.Tensor) -> torch.Tensor:
    bias = None if linear.bias is None else linear.bias.float()
    return nn.functional.linear(x.float(), linear.dense.float(), bias)


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Within the context, a half-precision model computes in float32, including layers of `models.runtime.linear`. Each
    module's weights are converted only while it runs, so memory grows by one module; the original tensors are kept."""
    handles, originals = [], dict[nn.Module, list[tuple[nn.Parameter, torch.Tensor]]]()

    def widen(module: nn.Module, _args: Any) -> None:
        originals[module] = [(p, p.data) for p in module.parameters(recurse=False) if p.dtype in HALF]
        for parameter, narrow in originals[module]:
            parameter.data = narrow.float()

    def restore(module: nn.Module, _args: Any, _output: Any) -> None:
        for parameter, narrow in originals.pop(module, ()):
            parameter.data = narrow

    frozen = [module for module in model.modules() if isinstance(module, Linear) and module.weight.dtype in HALF]
    for module in frozen:
        module.forward = partial(_linear_in_float32, module)
    for module in model.modules():
        if not any(p.dtype in HALF for p in module.parameters(recurse=False)):
            continue
        if isinstance(module, nn.Embedding):  # converting the output is enough
            handles.append(module.register_forward_hook(lambda _module, _args, output: output.float()))
            continue
        handles.append(module.register_forward_pre_hook(widen))
        handles.append(module.register_forward_hook(restore, always_call=True))
    try:
        yield
    finally:
        for module in frozen:
            del module.forward
        for handle in handles:
            handle.remove()

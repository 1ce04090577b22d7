"""In which precision products are taken: said, not left to a library's default."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from models.runtime.linear import Linear

HALF = (torch.bfloat16, torch.float16)


def exact_products(device: torch.device) -> None:
    """Products of float32 on a GPU in float32, never TF32: what is compared token for token must not be rounded."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("highest")


def quick_products(device: torch.device) -> None:
    """Products of float32 on a GPU in TF32, for training: 10 bits of mantissa, as bfloat16 has 7."""
    if device.type == "cuda":
        torch.set_float32_matmul_precision("high")


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """While open, a model of half precision computes in float32. Each module's weights are converted while it runs and
    no longer, so memory grows by one module; afterwards every weight is the tensor it was. The layers of
    `models.runtime.linear` too."""
    handles, originals = [], dict[nn.Module, list[tuple[nn.Parameter, torch.Tensor]]]()

    def widen(module: nn.Module, _args: Any) -> None:
        originals[module] = [(p, p.data) for p in module.parameters(recurse=False) if p.dtype in HALF]
        for parameter, narrow in originals[module]:
            parameter.data = narrow.float()

    def restore(module: nn.Module, _args: Any, _output: Any) -> None:
        for parameter, narrow in originals.pop(module, ()):
            parameter.data = narrow

    frozen = [module for module in model.modules() if isinstance(module, Linear) and module.is_half]
    for module in frozen:
        module.forward = module.in_float32
    for module in model.modules():
        if not any(p.dtype in HALF for p in module.parameters(recurse=False)):
            continue
        if isinstance(module, nn.Embedding):  # rows are looked up, so the result is what need be converted
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

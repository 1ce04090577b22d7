"""A base whose layers are divided among several GPUs, for bases larger than one. The layers run one after the other;
accelerate's hooks move what a layer reads to its GPU.

All else (embeddings, final norm, LM head) is on the first GPU. Drafts read it, so they are there too: transformers'
`device_map="auto"` would put embeddings and LM head on different GPUs.
"""

import copy
from bisect import bisect
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from speculoos.errors import Unsupported


def find_layers(model: nn.Module) -> nn.ModuleList:
    """The decoder layers: the outermost ModuleList with `num_hidden_layers` members. Raises Unsupported."""
    count = model.config.num_hidden_layers
    for module in model.base_model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module
    raise Unsupported(f"{type(model).__name__}: no list of {count} decoder layers was found in this model.")


def device_map(config: Any, devices: Sequence[torch.device]) -> dict[str, torch.device]:
    """The `device_map` for `from_pretrained` of a model with this transformers config."""
    if len(devices) == 1:
        return {"": devices[0]}
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(copy.deepcopy(config))
    layers = find_layers(model)
    prefix = next(name for name, module in model.named_modules() if module is layers)
    sizes = [sum(tensor.numel() for tensor in layer.parameters()) for layer in layers]
    others = sum(tensor.numel() for tensor in model.parameters()) - sum(sizes)
    chosen = divide(sizes, others, len(devices))
    return {name: devices[0] for name in _beside(model, prefix)} | {
        f"{prefix}.{index}": devices[number] for index, number in enumerate(chosen)
    }


def divide(sizes: Sequence[int], others: int, count: int) -> list[int]:
    """The number of the GPU of each layer, so that all `count` GPUs have about the same load. `sizes` of the layers,
    `others`: size of what is on the first GPU besides."""
    first = max((sum(sizes) + others) / count - others, 0.0)
    ends = [first + number * (sum(sizes) - first) / (count - 1) for number in range(count - 1)]
    return [bisect(ends, end - size / 2) for size, end in zip(sizes, accumulate(sizes), strict=True)]


def layer_devices(model: nn.Module) -> tuple[torch.device, ...]:
    """The device of each layer of a model loaded with `device_map`; () if it is on one device."""
    if len(set(getattr(model, "hf_device_map", {}).values())) < 2:
        return ()
    return tuple(next(layer.parameters()).device for layer in find_layers(model))


def drop_root_hook(model: nn.Module) -> None:
    """Remove the hook that moves the inputs of a divided model to an arbitrary one of its GPUs."""
    from accelerate.hooks import remove_hook_from_module

    remove_hook_from_module(model)


def _beside(model: nn.Module, prefix: str) -> list[str]:
    """Names of the modules beside the list of layers `prefix` and beside the modules that contain it."""
    path = prefix.split(".")
    inside = {".".join(path[:depth]) for depth in range(len(path) + 1)}
    return [
        f"{name}.{child}".lstrip(".")
        for name in inside - {prefix}
        for child, _ in model.get_submodule(name).named_children()
        if f"{name}.{child}".lstrip(".") not in inside
    ]

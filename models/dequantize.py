"""Weights of a loaded quantized model: de-quantized in place, or read through the layers that hold them."""

from typing import Any

import torch
from torch import nn

from models import quantization
from speculoos.errors import Unsupported


def finish_loading(model: Any, dtype: torch.dtype | str) -> Any:
    """A loaded quantized model, with weights de-quantized where they cannot be used as they are. Raises Unsupported if
    its embeddings or LM head, which drafts read, are quantized."""
    quantizer = getattr(model, "hf_quantizer", None)
    in_4bit = getattr(model, "is_loaded_in_4bit", False)
    if getattr(model, "is_loaded_in_8bit", False) or (in_4bit and model.device.type == "cpu"):
        model = model.dequantize()  # products of bitsandbytes that depend on the other rows or on their number
        model = model.to(dtype if isinstance(dtype, torch.dtype) else model.dtype)
    elif hasattr(quantizer, "compressor"):  # otherwise done by the model's first forward, but not by its backbone's
        _decompress(model, quantizer.compressor)
    drop_quantization(model.config)
    head, table = model.get_output_embeddings(), model.get_input_embeddings()
    if not (head is None or is_plain(head)) or not _is_float(table.weight):
        raise Unsupported(
            f"{model.name_or_path}: its embeddings or LM head are quantized, and drafts need them in floating point; "
            "quantize the model without them."
        )
    return model


def _decompress(model: Any, compressor: Any) -> None:
    """De-quantize the weights of a compressed-tensors model in place."""
    from compressed_tensors.compressors.base import decompress_module
    from compressed_tensors.quantization.utils import is_module_quantized

    compressor.remove_decompression_hook(model)
    for module in filter(is_module_quantized, model.modules()):
        decompress_module(module)


def drop_quantization(config: Any) -> None:
    """So that configs made from a base's, such as a draft's, are not those of a quantized model."""
    if hasattr(config, quantization.CONFIG):
        delattr(config, quantization.CONFIG)


def is_plain(linear: nn.Module) -> bool:
    """Whether this is an `nn.Linear` that computes x · weightᵀ + bias with the weight it holds: no subclass, quantized
    weight or replaced forward, except by a hook of accelerate (`models.placement`)."""
    own = vars(linear)
    replaced = own.get("_old_forward", own.get("forward"))
    is_own = replaced is None or getattr(replaced, "__func__", None) is nn.Linear.forward
    return type(linear) is nn.Linear and is_own and _is_float(linear.weight)


def dense_weight(linear: nn.Module, like: torch.Tensor) -> torch.Tensor:
    """The weight [out, in] of any linear layer, from its output for an identity matrix, in the dtype of `like`."""
    rows = torch.eye(linear.in_features, dtype=like.dtype, device=like.device)
    product = linear(rows) - linear(torch.zeros_like(rows[:1]))  # without the bias
    return product.T.to(like.dtype).contiguous()


def _is_float(weight: torch.Tensor) -> bool:
    return weight.is_floating_point() and not type(weight).__module__.startswith("torchao")  # whose tensors say float

"""Norms over the last dimension with few kernels."""

from collections.abc import Callable

import torch
from torch import nn

Norm = Callable[[torch.Tensor], torch.Tensor]


def norm_of(module: nn.Module, order: torch.Tensor | None = None, dtype: torch.dtype | None = None) -> Norm:
    """The function of a norm module, with channels permuted by `order`, in `dtype` or the module's own."""
    if isinstance(module, nn.Identity):
        return module
    weight = (module.weight if order is None else module.weight[order]).detach()
    weight = weight if dtype is None else weight.to(dtype)
    if isinstance(module, nn.LayerNorm):
        shape, bias, eps = tuple(weight.shape), module.bias, module.eps
        return lambda x: nn.functional.layer_norm(x, shape, weight, bias, eps)
    return rms_norm(weight, module.variance_epsilon if hasattr(module, "variance_epsilon") else module.eps)


def rms_norm(weight: torch.Tensor, eps: float) -> Norm:
    """x / √(Σ x² / d + eps) · weight over the last dimension d, in fp32, for x of the weight's precision.

    torch's is one kernel on a GPU, but ten on a CPU, where this uses four.
    """
    size, dtype = weight.shape[0], weight.dtype
    if weight.device.type != "cpu":
        return lambda x: nn.functional.rms_norm(x, (size,), weight, eps)
    scale, floor = weight.detach().float() * size**0.5, torch.tensor((size * eps) ** 0.5)

    def wide(x: torch.Tensor) -> torch.Tensor:
        return torch.div(x, torch.linalg.vector_norm(x, 2, -1, True).hypot_(floor)).mul_(scale)

    return wide if dtype == torch.float32 else lambda x: wide(x.float()).to(dtype)

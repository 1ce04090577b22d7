"""Linear layers whose weights are reordered once into oneDNN's blocked layout: about twice as fast for few rows.

A matrix product with 1 to 64 rows is bound by reading the weight; the blocked layout streams it at memory speed, where
the stock kernel reads at half of that (measured: docs/benchmarks.md). The operators are private to torch, so they are
tried once on a small product and, where they are missing or wrong, everything stays as it was. CPU only.
"""

from functools import lru_cache

import torch
from torch import nn

PACKED_DTYPES = (torch.float32, torch.bfloat16)
FEWEST_ROWS = 4
"""Fewer are filled up with zeros: oneDNN's kernels for one to three rows read the weight up to a fifth more slowly."""


class PackedLinear(nn.Module):
    """A frozen `nn.Linear` [out, in] that holds only the reordered weight; `weight` is a meta tensor (shape only)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = weight.to("meta")
        self.bias = None if bias is None else bias.detach().clone()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self._product = torch.ops.mkldnn._linear_pointwise
        self._product_add = self._product.binary

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] → [..., out]."""
        if x.dim() == 2 and len(x) < FEWEST_ROWS:
            return self._product(_filled_up(x), self._packed, self.bias, "none", [], "")[: len(x)]
        return self._product(x, self._packed, self.bias, "none", [], "")

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`residual + self(x)`, in one kernel where there are rows enough; both [n, …]."""
        if len(x) < FEWEST_ROWS:
            return self(x).add_(residual)
        return self._product_add(x, residual, self._packed, self.bias, "add")


def _filled_up(x: torch.Tensor) -> torch.Tensor:
    return nn.functional.pad(x, (0, 0, 0, FEWEST_ROWS - len(x)))


class PlainLinear(nn.Module):
    """The same interface on torch's own kernels, for devices and dtypes without packing."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + nn.functional.linear(x, self.weight, self.bias)


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> PackedLinear | PlainLinear:
    """A linear layer for few rows: packed where that works, else plain. The caller drops the original weight."""
    usable = weight.device.type == "cpu" and weight.dtype in PACKED_DTYPES and packing_works(weight.dtype)
    return (PackedLinear if usable else PlainLinear)(weight, bias)


def pack_module(module: nn.Module) -> nn.Module:
    """Replace every `nn.Linear` inside a frozen `module` by a packed one, in place; returns it.

    Mutates the module: it cannot be trained or saved afterwards. Linears that share one weight are packed once.
    """
    made: dict[int, nn.Module] = {}
    for parent in list(module.modules()):
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.device.type == "cpu":
                key = id(child.weight)
                made.setdefault(key, pack(child.weight, child.bias))
                setattr(parent, name, made[key])
    return module


@lru_cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether the private operators exist here and agree with `F.linear` on a small product."""
    try:
        generator = torch.Generator().manual_seed(0)
        weight = torch.randn(48, 32, generator=generator).to(dtype)
        x = torch.randn(3, 32, generator=generator).to(dtype)
        layer = PackedLinear(weight)
        wanted = nn.functional.linear(x.float(), weight.float())
        tolerance = 1e-4 if dtype == torch.float32 else 0.2
        near = (layer(x).float() - wanted).abs().max() < tolerance
        return bool(near and (layer.add(x, layer(x)).float() - 2 * wanted).abs().max() < 2 * tolerance)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False

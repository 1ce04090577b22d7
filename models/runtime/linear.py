"""Linear layers with weights in oneDNN's blocked layout: about twice as fast for few rows. CPU only.

A matrix product with 1 to 64 rows is limited by reading the weight; the blocked layout is read at memory bandwidth, the
plain layout at half of it (docs/benchmarks.md). The operators are private to torch, so they are tested once on a small
product; if they are missing or wrong, plain layers are used."""

import ctypes
import mmap
from functools import lru_cache
from pathlib import Path

import torch
from torch import Tensor, nn

PAGEMAP = Path("/proc/self/pagemap")
DONT_NEED = 4  # MADV_DONTNEED, the same on every Linux
PACKED_DTYPES = (torch.float32, torch.bfloat16)
MIN_ROWS = 4
"""Fewer rows are padded with zeros: oneDNN's kernels for one to three rows are up to a fifth slower."""


class PackedLinear(nn.Module):
    """A frozen `nn.Linear` [out, in] with only the reordered weight; `weight` is a meta tensor (shape only)."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = weight.to("meta")
        self.bias = None if bias is None else bias.detach().clone()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), None)
        self._product = torch.ops.mkldnn._linear_pointwise.default
        self._product_add = torch.ops.mkldnn._linear_pointwise.binary

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """Skips the hooks of nn.Module for speed."""
        return self.forward(x)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if x.dim() == 2 and (n := x.size(0)) < MIN_ROWS:
            return self._product(self.pad_rows(x), self._packed, self.bias, "none", [], "")[:n]
        return self._product(x, self._packed, self.bias, "none", [], "")

    @property
    def dense(self) -> torch.Tensor:
        return self._packed.to_dense()

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        """`residual + self(x)`, both [n, ...], in one kernel with at least MIN_ROWS rows."""
        if x.size(0) < MIN_ROWS:
            return self(x).add_(residual)
        return self._product_add(x, residual, self._packed, self.bias, "add")

    @staticmethod
    def pad_rows(x: torch.Tensor) -> torch.Tensor:
        """x [n, in] padded with zero rows to at least MIN_ROWS."""
        n = x.size(0)
        return x if n >= MIN_ROWS else torch.constant_pad_nd(x, (0, 0, 0, MIN_ROWS - n))


def product(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """x [n, in] · weightᵀ for an unpacked weight [out, in] of any strides. No gradient. For fp32 on a CPU with oneDNN's
    kernel, which is 1.1 to 1.4 times as fast as torch's BLAS for a few hundred rows (measured on an AMD EPYC with MKL:
    docs/log.md), without packing."""
    exact = weight.dtype == x.dtype == torch.float32 and not torch.is_autocast_enabled("cpu")
    if weight.device.type == "cpu" and exact and packing_works(torch.float32):
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")
    return nn.functional.linear(x, weight)


class PlainLinear(nn.Module):
    """The interface of PackedLinear on torch's kernels, for devices and dtypes without packing."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None):
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight, self.bias = weight.detach(), None if bias is None else bias.detach()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight, self.bias)

    @property
    def dense(self) -> torch.Tensor:
        return self.weight

    def add(self, x: torch.Tensor, residual: torch.Tensor) -> torch.Tensor:
        return residual + nn.functional.linear(x, self.weight, self.bias)

    @staticmethod
    def pad_rows(x: torch.Tensor) -> torch.Tensor:
        return x


Linear = PackedLinear | PlainLinear


def pack(weight: torch.Tensor, bias: torch.Tensor | None = None) -> Linear:
    """A linear layer for few rows: packed if supported, else plain. After packing, the memory pages of the original
    weight are released; the caller drops the weight."""
    if weight.device.type != "cpu" or weight.dtype not in PACKED_DTYPES or not packing_works(weight.dtype):
        return PlainLinear(weight, bias)
    layer = PackedLinear(weight, bias)
    release_pages(weight)
    return layer


def pack_module(module: nn.Module) -> nn.Module:
    """Replace every `nn.Linear` in a frozen `module` by a packed one, in place; returns the module, which cannot be
    trained or saved afterwards. Linears that share one weight are packed once."""
    layers: dict[int, nn.Module] = {}
    for parent in [m for m in module.modules() if not isinstance(m, nn.Linear)]:  # so that nn.Linears can be freed
        for name, child in list(parent.named_children()):
            if type(child) is nn.Linear and child.weight.device.type == "cpu":
                key = id(child.weight)
                if key not in layers:
                    layers[key] = pack(child.weight, child.bias)
                setattr(parent, name, layers[key])
    return module


@lru_cache
def packing_works(dtype: torch.dtype) -> bool:
    """Whether the private operators exist and agree with `F.linear` on a small product."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 32, generator=generator).to(dtype)
    x = torch.randn(3, 32, generator=generator).to(dtype)
    try:
        layer = PackedLinear(weight)
        expected = nn.functional.linear(x.float(), weight.float())
        tolerance = 1e-4 if dtype == torch.float32 else 0.2
        close = (layer(x).float() - expected).abs().max() < tolerance
        return bool(close and (layer.add(x, layer(x)).float() - 2 * expected).abs().max() < 2 * tolerance)
    except (AttributeError, RuntimeError, NotImplementedError):
        return False


def release_pages(weight: Tensor) -> bool:
    """Release the memory pages entirely inside `weight`; returns whether any were. Access rereads them. Only unmodified
    pages of mapped files are released: safetensors files stay mapped until their last tensor is freed, so packing would
    hold the whole model twice. Does nothing for other memory, or without /proc."""
    if weight.device.type != "cpu" or weight.is_meta or not weight.is_contiguous():
        return False
    first = -(-weight.data_ptr() // mmap.PAGESIZE)
    count = (weight.data_ptr() + weight.nbytes) // mmap.PAGESIZE - first
    if count <= 0 or not _are_clean_file_pages(first, count):
        return False
    start, length = ctypes.c_void_p(first * mmap.PAGESIZE), ctypes.c_size_t(count * mmap.PAGESIZE)
    return ctypes.CDLL(None).madvise(start, length, DONT_NEED) == 0


def _are_clean_file_pages(first: int, count: int) -> bool:
    """Whether some of the `count` pages from `first` are in memory, and all of those are unmodified pages of a file.
    /proc/self/pagemap has 8 bytes per page: bit 63 in memory, 62 swapped out, 61 file-mapped. A private page that was
    written to is no longer file-mapped."""
    try:
        with PAGEMAP.open("rb") as table:
            table.seek(first * 8)
            data = bytearray(table.read(count * 8))
    except OSError:
        return False
    pages = torch.frombuffer(data, dtype=torch.int64) if len(data) == count * 8 else torch.zeros(1, dtype=torch.int64)
    present, swapped, mapped = pages < 0, (pages >> 62) & 1 == 1, (pages >> 61) & 1 == 1
    return bool(present.any() and (mapped | ~present).all() and not swapped.any())

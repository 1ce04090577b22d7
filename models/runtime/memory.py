"""Release memory pages of mapped weights after they were packed.

Safetensors files are memory-mapped: pages are loaded when a weight is read and stay until the last tensor of the file
is freed, so packing would temporarily hold the whole model twice."""

import ctypes
import mmap
from pathlib import Path

import torch
from torch import Tensor

PAGEMAP = Path("/proc/self/pagemap")
DONT_NEED = 4  # MADV_DONTNEED, the same on every Linux


def release_pages(weight: Tensor) -> bool:
    """Release the memory pages entirely inside `weight`; returns whether any were. Access rereads them. Only unmodified
    pages of mapped files are released. Does nothing for other memory, or without /proc."""
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

"""Memory of weights that have been copied elsewhere, given back to the system while their file stays mapped.

Safetensors files are mapped: a weight's pages come into memory as it is read, and stay until the last tensor of the
file is gone. Packing would so hold the whole model twice for a moment.
"""

import ctypes
import mmap
from pathlib import Path

import torch
from torch import Tensor

PAGEMAP = Path("/proc/self/pagemap")
DONT_NEED = 4  # MADV_DONTNEED, the same on every Linux


def give_back(weight: Tensor) -> bool:
    """Drop the pages that lie wholly in `weight`; whether there were any. Touched again, they are read from the file.

    Only pages that are the file's own, as they are there; so nothing changes but the memory in use. Weights in other
    memory, or changed since they were loaded, stay as they are, and so does everything on systems without /proc.
    """
    if weight.device.type != "cpu" or weight.is_meta or not weight.is_contiguous():
        return False
    first = -(-weight.data_ptr() // mmap.PAGESIZE)
    count = (weight.data_ptr() + weight.nbytes) // mmap.PAGESIZE - first
    if count <= 0 or not _are_a_files(first, count):
        return False
    start, length = ctypes.c_void_p(first * mmap.PAGESIZE), ctypes.c_size_t(count * mmap.PAGESIZE)
    return ctypes.CDLL(None).madvise(start, length, DONT_NEED) == 0


def _are_a_files(first: int, count: int) -> bool:
    """Whether of `count` pages from `first` on some are in memory, and those all unchanged ones of a file.

    The kernel's table has 8 bytes a page: bit 63 in memory, 62 swapped out, 61 of a file. A private page that was
    written to has lost its file.
    """
    try:
        with PAGEMAP.open("rb") as table:
            table.seek(first * 8)
            read = bytearray(table.read(count * 8))
    except OSError:
        return False
    pages = torch.frombuffer(read, dtype=torch.int64) if len(read) == count * 8 else torch.zeros(1, dtype=torch.int64)
    here, swapped, of_a_file = pages < 0, (pages >> 62) & 1 == 1, (pages >> 61) & 1 == 1
    return bool(here.any() and (of_a_file | ~here).all() and not swapped.any())

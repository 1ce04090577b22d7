"""How fast this processor or GPU multiplies and reads: a short probe, for estimates before anything has run.

Packed weights in the precision generation takes, and float32 weights as they lie, which drafts learn with: they differ
by a factor of five on some processors, of one on others.
"""

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from models.base import has_bfloat16
from models.runtime.linear import pack
from speculoos.files import write_json

PROBE = "machine.json"
"""The file in the home that keeps it; `workers.jobs.pace` reads it."""
WIDTH, ROWS, FEW, LAYERS, TIMES = 2048, 256, 4, 8, 5
SIZE = WIDTH * WIDTH * LAYERS
"""Weights that are multiplied."""
WAITS = (0.0, 2.0, 5.0, 10.0)
"""Seconds before each probe: at the start of a workbench all of its processes load, and the first may see a tenth."""


def measure_best(file: Path, device: str = "cpu", waits: Sequence[float] = WAITS) -> None:
    """Write the best that `measure` finds to `file`, probe after probe. What an earlier start wrote counts as one of
    them, since its probes may all have run beside other work; after it, the last of `waits` is enough."""
    best = _read(file)
    for wait in waits[-1:] if best else waits:
        time.sleep(wait)
        best = {name: max(speed, best.get(name, 0.0)) for name, speed in measure(torch.device(device)).items()}
        write_json(file, best)


def _read(file: Path) -> dict[str, float]:
    """The speeds in `file`; {} where there is none or it is damaged."""
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        return {name: float(speed) for name, speed in found.items()}
    except (OSError, ValueError, TypeError, AttributeError):
        return {}


def measure(device: torch.device) -> dict[str, float]:
    """`operations_per_second` of matrix products of many rows in the precision generation takes, `bytes_per_second`
    of weights read for a few rows; `learned_` the same of float32, with the backward pass and without packing. The
    best of TIMES, since what else runs only ever takes away."""
    dtype = torch.bfloat16 if device.type == "cuda" or has_bfloat16(device) else torch.float32
    return {**_packed(device, dtype), **_learned(device)}


@torch.inference_mode()
def _packed(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    layers = [pack(torch.randn(WIDTH, WIDTH, device=device, dtype=dtype)) for _ in range(LAYERS)]
    many, few = (torch.randn(rows, WIDTH, device=device, dtype=dtype) for rows in (ROWS, FEW))
    return {
        "operations_per_second": 2 * ROWS * SIZE / _seconds(lambda: [layer(many) for layer in layers], device),
        "bytes_per_second": SIZE * dtype.itemsize / _seconds(lambda: [layer(few) for layer in layers], device),
    }


def _learned(device: torch.device) -> dict[str, float]:
    """As a draft has it: one wide matrix, like that of its vocabulary."""
    wide = nn.Linear(WIDTH, WIDTH * LAYERS, bias=False, device=device)
    many, few = (torch.randn(rows, WIDTH, device=device, requires_grad=True) for rows in (ROWS, FEW))

    def learn() -> Tensor:
        logits = wide(many)
        logits.backward(logits.detach())
        return logits

    return {
        "learned_operations_per_second": 6 * ROWS * SIZE / _seconds(learn, device),
        "learned_bytes_per_second": 4 * SIZE / _seconds(lambda: wide(few), device),
    }


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    """Shortest time of `work`, after one that is not counted."""
    taken = []
    for _ in range(TIMES + 1):
        began = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        taken.append(time.perf_counter() - began)
    return min(taken[1:])

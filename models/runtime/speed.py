"""Measure compute speed and memory bandwidth of the CPU or GPU, for estimates before the first job.

Measures packed weights in the precision of generation, and plain float32 weights as used for training: they differ by a
factor of five on some CPUs and not at all on others."""

import json
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor, nn

from models.base import has_bfloat16
from models.runtime.linear import pack
from speculoos.files import write_json

SPEED_FILE = "machine.json"
"""File in the home folder with the result; `workers.jobs.estimates` reads it."""
WIDTH, ROWS, FEW, TIMES = 2048, 256, 4, 3
COMPUTE_LAYERS = 2
"""Layers in the measurement of operations. More give the same speed and take longer."""
MEMORY_LAYERS = 8
"""Layers in the measurement of memory bandwidth: more than a cache can hold."""
PROBE_DELAYS = (0.0, 5.0, 10.0)
"""Seconds before each probe: while all processes start, the first may measure a tenth of the speed."""


def measure_best(file: Path, device: str = "cpu", waits: Sequence[float] = PROBE_DELAYS) -> None:
    """Run `measure` after each of `waits` and write the best results to `file`, including earlier results in it. With
    those, only the last of `waits` is used."""
    best: dict[str, float] = {}
    with suppress(OSError, ValueError, TypeError, AttributeError):  # missing or damaged
        best = {name: float(speed) for name, speed in json.loads(file.read_text(encoding="utf-8")).items()}
    for wait in waits[-1:] if best else waits:
        time.sleep(wait)
        best = {name: max(speed, best.get(name, 0.0)) for name, speed in measure(torch.device(device)).items()}
        write_json(file, best)


def measure(device: torch.device) -> dict[str, float]:
    """`operations_per_second` of matrix products of many rows in the precision of generation, `bytes_per_second` of
    weights read for a few rows; `learned_operations_per_second` in float32, with the backward pass and without packing.
    The best of TIMES, since other processes only slow it down. `gpu_bytes`: memory of the GPU, if `device` is one, and
    `gpus`: their number."""
    dtype = torch.bfloat16 if device.type == "cuda" or has_bfloat16(device) else torch.float32
    found: dict[str, float] = {**_packed(device, dtype), **_training(device)}
    if device.type == "cuda":
        found["gpu_bytes"] = torch.cuda.get_device_properties(device).total_memory
        found["gpus"] = torch.cuda.device_count()
    return found


@torch.inference_mode()
def _packed(device: torch.device, dtype: torch.dtype) -> dict[str, float]:
    layers = [pack(torch.randn(WIDTH, WIDTH, device=device, dtype=dtype)) for _ in range(MEMORY_LAYERS)]
    many, few = (torch.randn(rows, WIDTH, device=device, dtype=dtype) for rows in (ROWS, FEW))
    compute = _seconds(lambda: [layer(many) for layer in layers[:COMPUTE_LAYERS]], device)
    memory = _seconds(lambda: [layer(few) for layer in layers], device)
    return {
        "operations_per_second": 2 * ROWS * WIDTH**2 * COMPUTE_LAYERS / compute,
        "bytes_per_second": WIDTH**2 * MEMORY_LAYERS * dtype.itemsize / memory,
    }


def _training(device: torch.device) -> dict[str, float]:
    """With matrices that are wider than long, like the LM head of a draft."""
    head = nn.Linear(WIDTH, WIDTH * COMPUTE_LAYERS, bias=False, device=device)
    states = torch.randn(ROWS, WIDTH, device=device, requires_grad=True)

    def train_step() -> Tensor:
        logits = head(states)
        logits.backward(logits.detach())
        return logits

    operations = 6 * ROWS * WIDTH**2 * COMPUTE_LAYERS
    return {"learned_operations_per_second": operations / _seconds(train_step, device)}


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    times = []
    for _ in range(TIMES + 1):
        start = time.perf_counter()
        work()
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        times.append(time.perf_counter() - start)
    return min(times[1:])

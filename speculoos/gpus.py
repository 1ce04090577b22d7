"""NVIDIA GPUs of this machine through NVML, which needs neither torch nor a CUDA context. Without the driver there are
none."""

import os
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cache
from typing import Any

import pynvml

SHORT = len("GPU-") + 8


@dataclass(frozen=True)
class Gpu:
    """One measurement of a GPU; None where it does not report a value. `utilization`: fraction of the last sample
    period in which a kernel ran; memory in bytes; temperature in °C."""

    uuid: str
    name: str
    utilization: float | None
    memory_used: int | None
    memory_total: int | None
    temperature: int | None


def visible_gpus() -> list[str]:
    """UUIDs of the GPUs that CUDA_VISIBLE_DEVICES leaves visible, in the order of the PCI bus, as CUDA numbers equal
    GPUs; [] without a driver."""
    return list(_visible_handles())


def measure(uuids: Collection[str] | None = None) -> list[Gpu]:
    """The visible GPUs now, or those of `uuids`."""
    return [_measure(uuid, handle) for uuid, handle in _visible_handles().items() if uuids is None or uuid in uuids]


def short_uuid(uuid: str) -> str:
    """`GPU-5d3b1c2e`, for display."""
    return uuid[:SHORT]


def metrics(uuids: Collection[str]) -> dict[str, float]:
    """Metrics of these GPUs for a job's charts, such as `gpu/memory_gb/GPU-5d3b1c2e`."""
    values: dict[str, float] = {}
    for gpu in measure(uuids) if uuids else ():
        measured = {
            "utilization": gpu.utilization,
            "memory_gb": None if gpu.memory_used is None else gpu.memory_used / 1e9,
            "temperature": gpu.temperature,
        }
        values |= {f"gpu/{name}/{short_uuid(gpu.uuid)}": float(v) for name, v in measured.items() if v is not None}
    return values


def _visible_handles() -> dict[str, Any]:
    """NVML's handles by UUID."""
    if not _has_library():
        return {}
    handles = [pynvml.nvmlDeviceGetHandleByIndex(number) for number in range(pynvml.nvmlDeviceGetCount())]
    by_uuid = {pynvml.nvmlDeviceGetUUID(handle): handle for handle in handles}
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    if listed is None:
        return by_uuid
    visible = {}
    for entry in map(str.strip, listed.split(",")):
        named = [u for i, u in enumerate(by_uuid) if entry == str(i) or (entry[:4] == "GPU-" and u.startswith(entry))]
        if len(named) != 1:
            break  # CUDA ignores the rest too
        visible[named[0]] = by_uuid[named[0]]
    return visible


@cache
def _has_library() -> bool:
    """Initialize NVML once per process."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    return True


def _measure(uuid: str, handle: Any) -> Gpu:
    memory = _reported(pynvml.nvmlDeviceGetMemoryInfo, handle)
    rates = _reported(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return Gpu(
        uuid=uuid,
        name=str(_reported(pynvml.nvmlDeviceGetName, handle) or ""),
        utilization=rates.gpu / 100 if rates else None,
        memory_used=memory.used if memory else None,
        memory_total=memory.total if memory else None,
        temperature=_reported(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
    )


def _reported(function: Callable[..., Any], *arguments: Any) -> Any:
    """None if this GPU does not report the value, or was lost."""
    try:
        return function(*arguments)
    except pynvml.NVMLError:
        return None

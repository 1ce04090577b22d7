"""Fake GPUs for tests of allocation and monitoring: replacements for functions of torch.cuda and pynvml."""

from types import SimpleNamespace
from typing import Any

import pynvml
import pytest
import torch

from speculoos import gpus


def uuid(number: int) -> str:
    """The UUID of GPU `number` in NVML and in leases."""
    return f"GPU-5d3b1c2{number}-0000-4000-8000-000000000000"


def torch_functions(count: int) -> dict[str, Any]:
    """Replacements for functions of torch.cuda."""
    return {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device: "a GPU",
        "get_device_properties": lambda device: SimpleNamespace(
            uuid=uuid(device.index).removeprefix("GPU-"), total_memory=80 * 10**9
        ),
    }


def install_in_torch(count: int) -> None:
    """Replace the functions of torch.cuda for the rest of this process."""
    for name, function in torch_functions(count).items():
        setattr(torch.cuda, name, function)


def install_in_nvml(patch: pytest.MonkeyPatch, count: int) -> None:
    """GPU i has a utilization of i0 %, uses i of 80 GB, and has (50 + i) °C; the last one reports no temperature."""

    def temperature(number: int, sensor: int) -> int:
        assert sensor == pynvml.NVML_TEMPERATURE_GPU
        if number == count - 1:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
        return 50 + number

    functions = {
        "nvmlInit": lambda: None,
        "nvmlDeviceGetCount": lambda: count,
        "nvmlDeviceGetHandleByIndex": lambda number: number,
        "nvmlDeviceGetUUID": uuid,
        "nvmlDeviceGetName": lambda number: "NVIDIA H100",
        "nvmlDeviceGetMemoryInfo": lambda number: SimpleNamespace(used=number * 10**9, total=80 * 10**9),
        "nvmlDeviceGetUtilizationRates": lambda number: SimpleNamespace(gpu=10 * number),
        "nvmlDeviceGetTemperature": temperature,
    }
    for name, function in functions.items():
        patch.setattr(pynvml, name, function)
    patch.setattr(gpus, "_has_library", gpus._has_library.__wrapped__)
    patch.delenv("CUDA_VISIBLE_DEVICES", raising=False)

"""GPUs of torch that exist only by their UUIDs, for tests of who gets which."""

from types import SimpleNamespace
from typing import Any

import torch


def uuid(number: int) -> str:
    """The name of GPU `number` in leases."""
    return f"GPU-0000-{number}"


def functions(count: int) -> dict[str, Any]:
    """What takes the place of functions of torch.cuda."""
    return {
        "is_available": lambda: True,
        "device_count": lambda: count,
        "current_device": lambda: 0,
        "set_device": lambda device: None,
        "get_device_name": lambda device: "a GPU",
        "get_device_properties": lambda device: SimpleNamespace(uuid=f"0000-{device.index}"),
    }


def install(count: int) -> None:
    """For the rest of this process."""
    for name, function in functions(count).items():
        setattr(torch.cuda, name, function)

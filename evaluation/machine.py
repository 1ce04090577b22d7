"""Description of the machine of a measurement: processor, threads, device, versions."""

import os
import platform
from pathlib import Path
from typing import Any

import torch
import transformers


def describe_machine(device: torch.device) -> dict[str, Any]:
    """JSON-able description of this machine as seen by `device`."""
    facts = {
        "device": str(device),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if device.type == "cuda":
        facts["gpu"] = torch.cuda.get_device_name(device)
    return facts


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.machine()

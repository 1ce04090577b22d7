"""The machine of a measurement: processor, threads, device, versions, and a warning if other programs disturbed it."""

import os
import platform
from pathlib import Path
from typing import Any

import torch
import transformers

from speculoos.cpu_load import MAX_LOAD_DIFFERENCE, OtherCpuLoad
from speculoos.reporting import Reporter

MAX_NOISE = 0.05
"""Maximum relative standard error of a speedup due to timing; above it the machine counts as busy."""
HINT = "Measure again when less else is running."


def describe_machine(device: torch.device) -> dict[str, Any]:
    """JSON-able description of this machine as seen by `device`."""
    description = {
        "device": str(device),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    if device.type == "cuda":
        description["gpu"] = torch.cuda.get_device_name(device)
    return description


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), "")
    return name or platform.machine()


def cpu_load_result(cpu_load: OtherCpuLoad, reporter: Reporter, noise: float) -> dict[str, float | str | None]:
    """`other_load`, the share of CPU time that other programs used since the creation of `cpu_load` (None if that was
    too short), and `busy`, a warning that is also logged, "" if none. `noise`: the relative standard error of the
    speedup due to timing."""
    share = cpu_load.share()
    if busy := busy_warning(share, noise):
        reporter.log(busy, "warning")
    return {"other_load": share, "busy": busy}


def busy_warning(share: float | None, noise: float) -> str:
    """A warning of one or two sentences, "" if none."""
    if share is not None and share > MAX_LOAD_DIFFERENCE:
        return (
            f"The machine was busy: other programs took {share:.0%} of its processor time meanwhile, so these speeds "
            f"may be wrong. {HINT}"
        )
    if noise > MAX_NOISE:
        return f"The machine was busy: step times vary, so the speedup is known to ± {1.96 * noise:.0%} only. {HINT}"
    return ""

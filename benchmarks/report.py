"""Metadata and output shared by all benchmarks."""

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import torch

from evaluation.machine import describe_machine


def load_average() -> float:
    """Load average of the last minute. Call it before the benchmark, which raises it."""
    return round(os.getloadavg()[0], 1)


def conditions(before: float, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Date, machine and load average before and after a benchmark that ends now."""
    machine = describe_machine(torch.device(device))
    return {"date": date.today().isoformat(), "machine": machine, "load": [before, load_average()]}


def finish(result: dict[str, Any], table: str, file: Path | None) -> None:
    """Print the table; write the result to `file` as JSON, if set."""
    print(table)
    if file:
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

"""What every benchmark says beside its figures, and where it leaves them."""

import json
import os
from datetime import date
from pathlib import Path
from typing import Any

import torch

from evaluation.machine import describe_machine


def load_average() -> float:
    """Of the last minute; taken before a race, since the race itself raises it."""
    return round(os.getloadavg()[0], 1)


def conditions(before: float, device: str | torch.device = "cpu") -> dict[str, Any]:
    """Day and machine of a race that ends now, and the load `before` it and after."""
    machine = describe_machine(torch.device(device))
    return {"date": date.today().isoformat(), "machine": machine, "load": [before, load_average()]}


def finish(result: dict[str, Any], table: str, file: Path | None) -> None:
    """Print the table; put the result into `file`, if one was asked for."""
    print(table)
    if file:
        file.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")

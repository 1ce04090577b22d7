"""What drills measure, kept in a file: DRILLS_OUT names it (`make drills` does), `benchmarks.reliability` shows it."""

import json
import os
import statistics
import time
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any


def spread(seconds: Iterable[float], digits: int = 2) -> dict[str, float]:
    """How many there were, their median, their 95th percentile and the largest; {} for none."""
    found = sorted(seconds)
    if not found:
        return {}
    middle, late = statistics.median(found), found[min(len(found) - 1, int(len(found) * 0.95))]
    return {
        "count": len(found),
        "median": round(middle, digits),
        "p95": round(late, digits),
        "max": round(found[-1], digits),
    }


class Figures:
    """The figures of one drill. `record` prints them and, where DRILLS_OUT is set, puts them into that file."""

    def __init__(self, drill: str, short: bool = False):
        self.drill, self.short, self._began, self._load = drill, short, time.monotonic(), os.getloadavg()[0]

    def record(self, **figures: Any) -> None:
        """Keep the figures with what they need to be compared: date, seconds it took, load of the machine."""
        taken = {
            "date": date.today().isoformat(),
            "seconds": round(time.monotonic() - self._began),
            "load": [round(self._load, 1), round(os.getloadavg()[0], 1)],
            **figures,
        }
        print(f"\n{self.drill}: {json.dumps(taken)}", flush=True)
        if (name := os.environ.get("DRILLS_OUT")) and not self.short:
            keep(Path(name), self.drill, taken)


def keep(path: Path, drill: str, figures: dict[str, Any]) -> None:
    """Set one drill's figures in the file, leaving those of others; whole or not at all."""
    found = json.loads(path.read_text()) if path.exists() and path.stat().st_size else {}
    found.setdefault("machine", machine())
    found.setdefault("drills", {})[drill] = figures
    fresh = path.with_name(path.name + ".new")
    fresh.write_text(json.dumps(found, indent=2) + "\n")
    fresh.rename(path)


def machine() -> dict[str, Any]:
    """Processor, cores, versions."""
    import torch

    from evaluation.machine import describe_machine

    return describe_machine(torch.device("cpu"))

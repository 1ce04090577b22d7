"""Stores measurements of drills in the file DRILLS_OUT (set by `make drills`); `benchmarks.reliability` shows them."""

import json
import os
import statistics
import time
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Any


def spread(seconds: Iterable[float], digits: int = 2) -> dict[str, float]:
    """Count, median, 95th percentile and maximum; {} if there are none."""
    ordered = sorted(seconds)
    if not ordered:
        return {}
    median, p95 = statistics.median(ordered), ordered[min(len(ordered) - 1, int(len(ordered) * 0.95))]
    return {
        "count": len(ordered),
        "median": round(median, digits),
        "p95": round(p95, digits),
        "max": round(ordered[-1], digits),
    }


class Figures:
    """The figures of one drill. `record` prints them and, if DRILLS_OUT is set, writes them to that file."""

    def __init__(self, drill: str, short: bool = False):
        self.drill, self.short, self._began, self._load = drill, short, time.monotonic(), os.getloadavg()[0]

    def record(self, **figures: Any) -> None:
        """Record the figures with what is needed to compare them: date, duration in seconds, load of the machine."""
        entry = {
            "date": date.today().isoformat(),
            "seconds": round(time.monotonic() - self._began),
            "load": [round(self._load, 1), round(os.getloadavg()[0], 1)],
            **figures,
        }
        print(f"\n{self.drill}: {json.dumps(entry)}", flush=True)
        if (name := os.environ.get("DRILLS_OUT")) and not self.short:
            keep(Path(name), self.drill, entry)


def keep(path: Path, drill: str, figures: dict[str, Any]) -> None:
    """Write one drill's figures to the file atomically, leaving those of other drills."""
    content = json.loads(path.read_text()) if path.exists() and path.stat().st_size else {}
    content.setdefault("machine", machine())
    content.setdefault("drills", {})[drill] = figures
    temporary = path.with_name(path.name + ".new")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.rename(path)


def machine() -> dict[str, Any]:
    """Description of this machine: processor, cores, versions."""
    import torch

    from evaluation.machine import describe_machine

    return describe_machine(torch.device("cpu"))

"""A workbench under the load of a team, as benchmarks/load.py makes it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tools.figures import Figures
from tests.tools.running import CLONE

SECONDS = float(os.environ.get("DRILLS_LOAD_SECONDS", "1200"))
ACTION_MS, PAGE_MS, POLLING_SHARE = 500.0, 300.0, 0.2
GROWTH, GROWTH_MB = 0.05, 20.0
"""How much more memory a process may have at the end than after the warm-up: a share, or so many MB if that is more."""
STEADY_SECONDS = 300.0
"""A shorter run says nothing about memory."""


@pytest.mark.drill
@pytest.mark.timeout(int(SECONDS) + 900)
def test_load(tmp_path: Path, figures: Figures) -> None:
    out = tmp_path / "load.json"
    command = [sys.executable, "-m", "benchmarks.load", "--seconds", str(SECONDS), "--json", str(out)]
    done = subprocess.run(command, cwd=CLONE, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = json.loads(out.read_text())
    figures.record(**{key: value for key, value in found.items() if key not in ("date", "machine", "load")})
    check(found)


def check(found: dict) -> None:
    """Everything that was promised, each with its figure."""
    busy, polling = found["busy"], found["polling"]
    missed = []
    if busy["action_p95_ms"] >= ACTION_MS:
        missed.append(f"page actions: p95 {busy['action_p95_ms']} ms")
    if polling["cpu_share"]["web"] >= POLLING_SHARE:
        missed.append(f"polling of {polling['pages']} pages: {polling['cpu_share']['web']:.0%} of a core")
    missed += [
        f"{path} with {found['queue']['jobs']} queued jobs: {taken['median']} ms"
        for path, taken in found["queue"]["open_ms"].items()
        if taken["median"] >= PAGE_MS
    ]
    if busy["seconds"] >= STEADY_SECONDS:
        missed += [f"memory of {name}: {mb}" for name, mb in busy["memory"].items() if grew(mb)]
    assert (busy["streams"]["dropped"], busy["restarted"], found["failed"]) == (0, [], [])
    assert busy["streams"]["runs"] > 0 and busy["streams"]["tokens"] > 0
    assert not missed, "; ".join(missed)


def grew(mb: dict[str, float]) -> bool:
    return mb["end_mb"] - mb["warm_mb"] > max(GROWTH_MB, GROWTH * mb["warm_mb"])

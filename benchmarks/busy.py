"""Tune, Plan and Evaluate while other processes use all cores: `python -m benchmarks.busy --json FILE`.

Each must report that the machine was busy, and no speedup may exceed what its accepted tokens allow. The draft model is
the tiny base model itself, so that the acceptance rate is high. Exits with 1 if a check fails.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from evaluation.acceptance import evaluate
from evaluation.planner import PlanOptions, plan
from evaluation.questions import built_in
from evaluation.tuning import tune
from models.base import load_base
from models.standalone import StandaloneDraft
from models.tiny import make_tiny_base
from speculoos.errors import Unavailable
from speculoos.reporting import SilentReporter


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--max-tokens", type=int, default=32)
    parser.add_argument("--json", type=Path, help="file for the figures")
    args = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder, every_core_busy():
        base = load_base(make_tiny_base(Path(folder) / "tiny"))
        draft = StandaloneDraft.from_base(base, base.num_layers)
        rows = [measured(what, base, draft, args.max_tokens) for what in ("tune", "plan", "evaluate")]
    for row in rows:
        print(json.dumps(row))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0 if all("The machine was busy" in row["busy"] and row["possible"] for row in rows) else 1


@contextmanager
def every_core_busy() -> Iterator[None]:
    """Run one busy process per core during the block."""
    command = [sys.executable, "-c", "while True: pass"]
    processes = [subprocess.Popen(command) for _ in range(os.cpu_count() or 1)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def measured(what: str, base: Any, draft: Any, max_tokens: int) -> dict[str, Any]:
    """The warning, the CPU share of other programs, and whether each speedup is at most the accepted length τ."""
    if what == "tune":
        tuned = tune(base, draft, built_in(3), SilentReporter(), max_tokens=max_tokens)
        result, pairs = tuned.finding(), [(size.speedup, size.expected_tau) for size in tuned.plan.sizes]
    elif what == "plan":
        result = plan(
            base, draft, built_in(3), SilentReporter(), choices=PlanOptions((1, 2), (), max_tokens=max_tokens)
        )
        pairs = [(shape["by_batch"]["1"]["speedup"], shape["tau"]) for shape in result["shapes"]]
    else:
        try:
            result = evaluate(base, draft, built_in(3), SilentReporter(), max_tokens=max_tokens)
        except Unavailable as error:  # refused: nothing is stored
            return {"what": what, "busy": str(error), "other_load": None, "possible": True, "highest": None}
        pairs = [(result["speedup_interval"][0], result["mean_accepted_length_interval"][1])]
    possible = all(speedup <= tau + 1e-3 for speedup, tau in pairs)
    highest = [round(value, 3) for value in max(pairs)]
    values = {key: result[key] for key in ("busy", "other_load", "timing_noise")}
    return {"what": what, **values, "possible": possible, "highest": highest}


if __name__ == "__main__":
    sys.exit(main())

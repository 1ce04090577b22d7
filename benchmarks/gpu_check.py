"""Checks this project's claims about NVIDIA GPUs in ten minutes: exactness, speed and memory.

    python -m benchmarks.gpu_check --json FILE

Parts run in order of importance; a part that fails is reported as a failed claim, and the others continue. Prints a
table and the failed claims, and writes the section "GPU" of docs/benchmarks.md. Exit status: 0 all claims hold, 1 some
do not (or not all parts ran in time), 2 no GPU. --dry-run runs the same parts on the CPU with tiny shapes: exactness is
judged, speed is not, and no page is written.
"""

import argparse
import gc
import sys
import tempfile
import time
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers.utils.logging import disable_progress_bar

from benchmarks.gpu_bench import Bench, OutOfTime, Part, first_line
from benchmarks.gpu_exactness import agreement, exactness, graphs
from benchmarks.gpu_speed import large_shape, race
from benchmarks.gpu_training import generation, training, two_jobs
from benchmarks.peers.common import peak_memory_mb
from benchmarks.report import conditions, finish, load_average, make_parser, replace_between, table_lines
from models.base import pick_device
from models.runtime.precision import disable_tf32

PAGE = Path(__file__).resolve().parent.parent / "docs" / "benchmarks.md"
BEGIN, END = "<!-- GPU figures: written by benchmarks/gpu_check.py -->", "<!-- end of GPU figures -->"
MINUTES = 10.0
NO_GPU = "No GPU that torch can use is here; --dry-run tries every part on the processor."
PARTS: dict[str, Part] = {
    "exactness": exactness,
    "CUDA graphs": graphs,
    "agreement": agreement,
    "decoding in bf16": partial(race, dtype="bfloat16"),
    "large shape": large_shape,
    "decoding in fp32": partial(race, dtype="float32"),
    "training": training,
    "batched generation": generation,
    "two jobs at once": two_jobs,
}
VERDICTS = {True: "yes", False: "**no**", None: "not judged"}


def check(bench: Bench, parts: dict[str, Part] | None = None) -> list[dict[str, Any]]:
    """Run all parts, which add their claims to `bench`; those after the deadline are skipped. Returns their name,
    seconds, peak memory in MiB and further figures; `ran`: the part was not stopped by the time limit."""
    reports = []
    for name, part in (parts or PARTS).items():
        began, ran, bench.figures = time.monotonic(), True, {}
        try:
            bench.check_time()
            clear(bench.device)
            part(bench)
        except OutOfTime:
            ran = False
        except Exception as error:
            bench.claim(f"{name} runs to its end", "no error", first_line(error), False)
        seconds = round(time.monotonic() - began, 1)
        measured = {"seconds": seconds, "peak_mib": peak_mib(bench.device), "ran": ran, "figures": bench.figures}
        reports.append({"name": name, **measured})
        print(f"{name}: {seconds} s{'' if ran else ', not run to its end'}", file=sys.stderr)
    return reports


def clear(device: torch.device) -> None:
    """Free memory of earlier parts; reset peak statistics and matmul precision."""
    gc.collect()
    disable_tf32(device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def peak_mib(device: torch.device) -> int:
    """Peak GPU memory of tensors since `clear`; without a GPU, the peak resident memory of this process."""
    return torch.cuda.max_memory_allocated(device) // 2**20 if device.type == "cuda" else peak_memory_mb()


def claim_in_time(bench: Bench, reports: list[dict[str, Any]], seconds: float, minutes: float) -> None:
    """Add the claim that all parts ran in time."""
    late = [report["name"] for report in reports if not report["ran"]]
    figure = f"{len(reports) - len(late)} of {len(reports)} in {seconds / 60:.1f} minutes"
    figure += f"; not: {', '.join(late)}" if late else ""
    bench.claim(f"all parts run in {minutes:g} minutes", "all", figure, not late and seconds <= minutes * 60)


def measure(args: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Run all parts; returns the result as JSON."""
    began, load = time.monotonic(), load_average()
    with tempfile.TemporaryDirectory() as scratch:
        bench = Bench(device, Path(scratch), began + args.minutes * 60, args.dry_run)
        reports = check(bench)
    seconds = time.monotonic() - began
    claim_in_time(bench, reports, seconds, args.minutes)
    return conditions(load, device) | {
        "dry_run": args.dry_run,
        "seconds": round(seconds),
        "claims": [asdict(claim) for claim in bench.claims],
        "parts": reports,
    }


def table(result: dict[str, Any]) -> str:
    """The result as Markdown: machine, claims, and further figures of each part."""
    machine = result["machine"]
    where = f"{machine['gpu']}, {machine['processor']}" if "gpu" in machine else machine["processor"]
    lines = [
        f"{result['date']}, {where}, Python {machine['python']}, torch {machine['torch']}, transformers "
        f"{machine['transformers']}; {result['seconds']} s, load {result['load'][0]} to {result['load'][1]}.",
        "",
        *table_lines(
            "| claim | goal | figure | holds |",
            ([c["name"], c["goal"], c["figure"], VERDICTS[c["holds"]]] for c in result["claims"]),
        ),
        "",
        *table_lines("| part | s | peak MiB |", ([p["name"], p["seconds"], p["peak_mib"]] for p in result["parts"])),
        "",
        *table_lines(
            "| part | also measured |  |",
            ([p["name"], name, figure_text(one)] for p in result["parts"] for name, one in p["figures"].items()),
        ),
    ]
    return "\n".join(lines)


def figure_text(figure: Any) -> str:
    """A figure, or several by name, as text."""
    if isinstance(figure, dict):
        return ", ".join(f"{name}: {one}" for name, one in figure.items())
    return str(figure)


def main(arguments: list[str] | None = None) -> int:
    parser = make_parser(__doc__)
    parser.add_argument("--minutes", type=float, default=MINUTES, help="parts that would begin later are not run")
    parser.add_argument("--device", default="cuda", help="cuda or cuda:N")
    parser.add_argument("--dry-run", action="store_true", help="tiny shapes on the processor")
    args = parser.parse_args(arguments)
    disable_progress_bar()
    if not args.dry_run and not torch.cuda.is_available():
        print(NO_GPU, file=sys.stderr)
        return 2
    device = pick_device("cpu" if args.dry_run else args.device)
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())
    result = measure(args, device)
    finish(result, table(result), args.json)
    if device.type == "cuda":
        PAGE.write_text(replace_between(PAGE.read_text(encoding="utf-8"), BEGIN, END, table(result)), encoding="utf-8")
    wrong = [claim for claim in result["claims"] if claim["holds"] is False]
    for claim in wrong:
        print(f"Does not hold: {claim['name']} (wanted {claim['goal']}): {claim['figure']}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

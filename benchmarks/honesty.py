"""Whether evaluations hold on a busy machine, measured while a load comes and goes on the second core.

    python -m benchmarks.honesty --json FILE

In each round the same questions are evaluated under the load (benchmarks/noise.py), and beside it measured as it was
done before: plain and drafted answers one after the other, all tokens over all time. In every second round they are
also evaluated without the load, so that slow hours meet both. The quiet machine's figure is the median of those
evaluations during which others used less than QUIET cores. Claimed is that at least nine intervals in ten hold it, and
that no figure is stored that cannot be.
"""

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from statistics import median
from typing import Any

import psutil

from benchmarks.tables import table_lines
from decoding.config import GenerateConfig
from decoding.drafters import make_drafter
from decoding.generate import generate
from decoding.stats import summarize
from decoding.target import fast_target
from evaluation.acceptance import MAX_LENGTH, evaluate
from evaluation.machine import describe_machine
from evaluation.questions import built_in, turns
from models.base import Base, load_base
from models.chat import render
from models.checkpoints import load_draft
from models.starter import HEAD, starter_path
from models.tiny import make_tiny_base
from speculoos.errors import Unavailable
from speculoos.files import write_json
from speculoos.reporting import Silent
from speculoos.settings import CLONE

SHARE = 0.9
"""Of the intervals under load, how many must hold the quiet machine's figure."""
QUIET = 0.2
"""Cores that others may use while the quiet machine is measured …"""
PATIENCE = 60.0
"""… which is waited for so many seconds."""
FIGURES = ("speedup", "speedup_interval", "mean_accepted_length", "mean_accepted_length_interval", "timing_noise")
STEPS = ("plain_step_ms", "drafted_step_ms", "passes")


@dataclass(frozen=True)
class Subject:
    """What is measured: a base with a draft (or what `options` name), on first turns."""

    base: Base
    draft: Any
    options: dict[str, Any]
    questions: list[dict[str, Any]]
    max_tokens: int

    def evaluate(self) -> dict[str, Any]:
        """What would be stored; `refused` instead where the evaluation says that the machine was busy."""
        settings = {"max_tokens": self.max_tokens, "options": self.options}
        try:
            result = evaluate(self.base, self.draft, self.questions, Silent(), **settings)
        except Unavailable as error:
            return {"refused": str(error)}
        return {name: result[name] for name in (*FIGURES, *STEPS)}

    def totals(self) -> dict[str, Any]:
        """The speedup as it was taken before steps stood side by side: whole answers, one way after the other, taking
        turns in going first; all time, prefill included. (Both ways write the same tokens.)"""
        target = fast_target(self.base, MAX_LENGTH)
        plain = drafted = 0.0
        for number, row in enumerate(self.questions):
            prompt = render(self.base.tokenizer, row["messages"])
            for drafts in (True, False) if number % 2 else (False, True):
                target.rewind(0)
                drafter = make_drafter(target, self.draft, self.options) if drafts else make_drafter(target)
                steps = generate(target, drafter, prompt, GenerateConfig(max_tokens=self.max_tokens))
                milliseconds = summarize(steps).ms_total
                plain, drafted = plain + milliseconds * (not drafts), drafted + milliseconds * drafts
        return {"speedup": round(plain / drafted, 3)}


class Others:
    """Cores that are used by others than `own` processes while it is open: `cores`, known afterwards."""

    def __init__(self, *own: psutil.Process):
        self.own, self.cores = own, 0.0

    def __enter__(self) -> "Others":
        self._began, self._before = time.monotonic(), self._used()
        return self

    def __exit__(self, *_: object) -> None:
        self.cores = round(max(self._used() - self._before, 0.0) / (time.monotonic() - self._began), 2)

    def _used(self) -> float:
        """Seconds of all cores so far, those of our own processes apart."""
        everybody = psutil.cpu_times()
        idle = everybody.idle + getattr(everybody, "iowait", 0.0) + getattr(everybody, "guest", 0.0)
        return sum(everybody) - idle - sum(sum(process.cpu_times()[:2]) for process in self.own)


@contextmanager
def noise(seed: int) -> Iterator[psutil.Process]:
    """The load generator's process, at work while open."""
    command = [sys.executable, "-m", "benchmarks.noise", "--seed", str(seed)]
    quiet = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    process = subprocess.Popen(command, cwd=CLONE, env=quiet, stdout=subprocess.PIPE, text=True)
    try:
        process.stdout.readline()
        yield psutil.Process(process.pid)
    finally:
        process.terminate()
        process.wait()
        process.stdout.close()


def under_load(seed: int, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """`measure` while the load comes and goes."""
    with noise(seed) as generator, Others(psutil.Process(), generator) as others:
        figures = measure()
    return {**figures, "others": others.cores}


def in_quiet(subject: Subject, patience: float) -> dict[str, Any]:
    """The evaluation without our load, begun as soon as nobody else is at work, after `patience` seconds anyhow."""
    deadline = time.monotonic() + patience
    while time.monotonic() < deadline and idle_cores_used() > QUIET:
        time.sleep(2)
    with Others(psutil.Process()) as others:
        figures = subject.evaluate()
    return {**figures, "others": others.cores}


def idle_cores_used() -> float:
    """Cores that others use now."""
    with Others(psutil.Process()) as others:
        time.sleep(2)
    return others.cores


def measure(subject: Subject, rounds: int, patience: float) -> dict[str, list[dict[str, Any]]]:
    """`rounds` evaluations and old measurements under load, and half as many evaluations without."""
    taken: dict[str, list[dict[str, Any]]] = {"quiet": [], "loaded": [], "before": []}
    for number in range(rounds):
        if number % 2 == 0:
            taken["quiet"].append(in_quiet(subject, patience))
        taken["loaded"].append(under_load(number, subject.evaluate))
        taken["before"].append(under_load(number, subject.totals))
        print(f"round {number + 1}: { ({name: runs[-1] for name, runs in taken.items()}) }", file=sys.stderr)
    return taken


def judge(taken: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """The quiet machine's figure, how often the intervals under load hold it, how wide they are, what of it cannot be,
    and the same of the old way. Without a quiet moment there is no figure, and no verdict (`holds` is None)."""
    figures = [run for run in taken["quiet"] if "refused" not in run and run["others"] <= QUIET]
    loaded = [run for run in taken["loaded"] if "refused" not in run]
    quiet = round(median(run["speedup"] for run in figures), 3) if figures else None
    holding = sum(low <= quiet <= high for low, high in (r["speedup_interval"] for r in loaded)) if figures else None
    impossible = sum(run["speedup_interval"][0] > run["mean_accepted_length_interval"][1] for run in loaded)
    enough = holding is not None and holding >= SHARE * len(taken["loaded"])
    most = max((run["mean_accepted_length"] for run in [*loaded, *figures]), default=0.0)
    return {
        "quiet_speedup": quiet,
        "quiet_runs": len(figures),
        "repeats": len(taken["loaded"]),
        "holding": holding,
        "refused": len(taken["loaded"]) - len(loaded),
        "impossible_stored": impossible,
        "spread": spread(run["speedup"] for run in loaded),
        "interval_width": spread(round(r["speedup_interval"][1] - r["speedup_interval"][0], 3) for r in loaded),
        "spread_before": spread(run["speedup"] for run in taken["before"]),
        "impossible_before": sum(run["speedup"] > most for run in taken["before"]),
        "holds": None if quiet is None else enough and not impossible,
    }


def spread(values: Iterable[float]) -> list[float] | None:
    """[least, median, most]."""
    values = sorted(values)
    return [values[0], round(median(values), 3), values[-1]] if values else None


def table(verdict: dict[str, Any]) -> str:
    """The verdict as the table of docs/benchmarks.md."""
    rows = [
        ("quiet machine", f"{verdict['quiet_speedup']} × ({verdict['quiet_runs']} evaluations)"),
        ("intervals under load that hold it", f"{verdict['holding']} of {verdict['repeats']}"),
        ("refused as impossible", verdict["refused"]),
        ("impossible, and stored", verdict["impossible_stored"]),
        ("speedup under load: least, median, most", verdict["spread"]),
        ("width of the intervals: least, median, most", verdict["interval_width"]),
        ("the old way under load: least, median, most", verdict["spread_before"]),
        ("of it impossible", verdict["impossible_before"]),
    ]
    return "\n".join(table_lines("| what | figure |", rows))


def starter(args: argparse.Namespace) -> Subject:
    """The starter with its head, or another checkpoint of it."""
    base = load_base(starter_path())
    return Subject(base, load_draft(args.checkpoint, base), {}, first_turns(args.limit), args.max_tokens)


def tiny(folder: str) -> Subject:
    """A random base with prompt lookup, to run through the whole way in seconds."""
    return Subject(load_base(make_tiny_base(folder)), None, {"drafter": "ngram"}, first_turns(1), 24)


def first_turns(limit: int) -> list[dict[str, Any]]:
    """The built-in questions without what would follow an answer."""
    return [{**row, "messages": [{"role": "user", "content": turns(row)[1][0]}]} for row in built_in(limit)]


def parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checkpoint", type=Path, default=HEAD, help="a draft of the starter")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--limit", type=int, default=4, help="questions")
    parser.add_argument("--max-tokens", type=int, default=48)
    parser.add_argument("--dry-run", action="store_true", help="a tiny random base, one round")
    parser.add_argument("--json", type=Path)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    """0 when the claims hold, 1 when one does not, 2 when the machine was never quiet."""
    args, began = parse(arguments), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        subject = tiny(folder) if args.dry_run else starter(args)
        taken = measure(subject, 1 if args.dry_run else args.rounds, 0.0 if args.dry_run else PATIENCE)
    verdict = judge(taken)
    print(table(verdict))
    if args.json:
        facts = {"date": f"{date.today()}", "seconds": round(time.monotonic() - began), "load": os.getloadavg()}
        machine = describe_machine(subject.base.device)
        write_json(args.json, {**facts, "machine": machine, "verdict": verdict, **taken})
    if verdict["holds"] is None:
        print(f"Others used over {QUIET} cores in every quiet moment: there is no figure to hold.", file=sys.stderr)
        return 2
    return 0 if verdict["holds"] else 1


if __name__ == "__main__":
    sys.exit(main())

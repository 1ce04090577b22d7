"""Checks job time estimates: estimated and actual times of every kind of job in an empty home folder.

    python -m benchmarks.estimates --json FILE [--part fresh|tiny-first|tiny-last]

Starts `speculoos up` in an empty home folder, waits for the machine probe, runs all jobs of the first round one by one,
then a second round with other sizes, whose estimates use the first. The goal is a factor of at most 2 in the first
round and 1.3 in the second. The same must hold after ten jobs on a tiny base model (`tiny-first`) and for these ten
jobs after the starter's (`tiny-last`), each in its own home folder. An evaluation repeats its questions if step times
vary; it may then take up to its longest estimate. Nothing else may run on the machine. About twenty minutes per part;
all parts by default. Needs a git clone, as it uses test tools.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import select

from benchmarks.report import conditions, finish, load_average
from benchmarks.tables import table_lines
from models.runtime.speed import PROBE_DELAYS
from models.starter import STARTER_HEAD, starter_path
from models.tiny import make_tiny_base
from speculoos.settings import PROJECT_ROOT, Settings
from tests.tools.running import Up, wait_for
from tracking import db, queries
from tracking.names import STARTER
from tracking.states import FINISHED
from tracking.tables import Evaluation, Job
from workers.jobs.estimates import estimate
from workers.jobs.pace import PROBE
from workers.jobs.requests import (
    Evaluate,
    Export,
    FetchModel,
    GenerateData,
    ImportAnswered,
    ImportDraft,
    ImportPrompts,
    Matrix,
    PlanRequest,
    ReplayRequest,
    Request,
    Train,
)
from workers.jobs.submit import submit

PROMPTS = PROJECT_ROOT / "corpus" / "quickstart_prompts.jsonl"
ALLOWED = (2.0, 1.3)
"""Allowed factors between estimated and actual time in the first and the second round."""
PARTS = ("fresh", "tiny-first", "tiny-last")
"""The starter alone; after jobs on a tiny base model; before them."""
JOB_SECONDS = 1800.0
SMALL = {"draft_vocab_size": 8192, "epochs": 1, "held_out": 0.05, "max_held_out": 4}
TRAININGS: dict[str, dict[str, Any]] = {
    "medusa": {**SMALL, "medusa_tie_lm_head": True},
    "eagle": {"epochs": 1, "held_out": 0.05, "max_held_out": 4},
    "eagle3": SMALL,
    "draft": {"epochs": 1, "held_out": 0.05, "max_held_out": 4},
}


class Home:
    """A running workbench with the ids of its base model and head."""

    def __init__(self, settings: Settings, folder: Path):
        self.settings, self.folder = settings, folder
        with db.reading(settings) as session:
            self.base = queries.find_base(session, STARTER).id
            self.head = queries.checkpoints(session, self.base, ready_only=True)[0].id

    def do(self, kind: str, request: Request) -> dict[str, Any]:
        """Run one job; returns its row of the table."""
        with db.reading(self.settings) as session:
            longest = estimate(session, request, self.settings.home).longest
        job = submit(request, settings=self.settings)
        deadline = time.monotonic() + JOB_SECONDS
        while job.state not in FINISHED and time.monotonic() < deadline:
            time.sleep(0.2)
            with db.reading(self.settings) as session:
                job = session.get_one(Job, job.id)
        if job.state != "SUCCEEDED":
            raise SystemExit(f"{job.name} is {job.state}: {job.error}")
        took = round((job.finished_at - job.started_at).total_seconds(), 2)
        row = {"kind": kind, "estimated": job.estimated_seconds, "took": took, "request": job.request}
        return {**row, "longest": longest} if self._repeated(job) else row

    def _repeated(self, job: Job) -> bool:
        """Whether an evaluation, or one of a matrix, repeated its questions."""
        own = job.request.get("evaluation_id") or ""
        of_this = (Evaluation.id == own) | (Evaluation.matrix_id == job.id)
        with db.reading(self.settings) as session:
            return any(
                (row.result or {}).get("passes", 1) > 1 for row in session.scalars(select(Evaluation).where(of_this))
            )


def do_round(home: Home, number: int, do: Callable[[str, Request], dict[str, Any]]) -> None:
    """Run every kind of job in round `number` (1 or 2). `do(kind, request)` returns the request with the output ids."""
    prompts = do("import prompts", ImportPrompts(path=str(prompt_file(home.folder, 20_000 * number))))
    wanted = {"limit": 40 + 40 * number, "max_tokens": 64 + 32 * number, "batch_size": 32}
    made = do("generate data", GenerateData(source_id=prompts["dataset_id"], base_id=home.base, **wanted))
    answers = made["dataset_id"]
    file = conversation_file(home.folder, home.settings, answers, 4_000 * number)
    do("import answered", ImportAnswered(path=str(file), base_id=home.base))
    checkpoints = {}
    for method, settings in TRAININGS.items():
        trained = do(f"train {method}", Train(method, home.base, answers, settings))
        checkpoints[method] = trained["checkpoint_id"]
    do("import draft", ImportDraft("folder", str(STARTER_HEAD), home.base))
    do("evaluate", Evaluate(home.base, home.head, limit=2 + 4 * number, max_tokens=64))
    trees = [{}, {"depth": 3}]
    model = {"base_id": home.base, "checkpoint_id": home.head}
    do("matrix", Matrix([model], drafting=trees, limit=2 + 2 * number, max_tokens=48))
    do("replay", ReplayRequest(home.base, home.head, answers, limit=10 + 10 * number))
    do("plan", PlanRequest(home.base, home.head, limit=2 + 2 * number, batches=[1, 4]))
    do("export", Export(checkpoints["eagle3"] if number == 1 else checkpoints["medusa"], "own"))


def do_tiny(home: Home, do: Callable[[int, str, Request], dict[str, Any]]) -> None:
    """Ten jobs on a tiny base model: 4 generations, 3 trainings, 3 evaluations; the first of each kind is round 1."""
    folder = make_tiny_base(home.folder / "tiny")
    base = home.do("fetch", FetchModel("folder", str(folder)))["request"]["base_id"]
    file = str(prompt_file(home.folder, 200))
    prompts = home.do("import prompts", ImportPrompts(path=file))["request"]["dataset_id"]
    for number in (1, 2, 3):
        wanted = {"limit": 20 + 20 * number, "max_tokens": 32, "batch_size": 16}
        made = do(number, "tiny: generate data", GenerateData(source_id=prompts, base_id=base, **wanted))
        settings = {"epochs": number, "held_out": 0.05, "max_held_out": 4, "max_length": 512}
        trained = do(number, "tiny: train medusa", Train("medusa", base, made["dataset_id"], settings))
        draft = trained["checkpoint_id"]
        do(number, "tiny: evaluate", Evaluate(base, draft, limit=2 + 2 * number, max_tokens=32))
    do(4, "tiny: generate data", GenerateData(source_id=prompts, base_id=base, limit=20, max_tokens=64))


def prompt_file(folder: Path, rows: int) -> Path:
    """The built-in prompts, repeated with numbers to avoid duplicates."""
    prompts = [json.loads(line) for line in PROMPTS.read_text(encoding="utf-8").splitlines()]
    file = folder / f"prompts-{rows}.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for number in range(rows):
            row = prompts[number % len(prompts)]
            again = f" ({number // len(prompts)})" if number >= len(prompts) else ""
            out.write(json.dumps({**row, "prompt": row["prompt"] + again}) + "\n")
    return file


def conversation_file(folder: Path, settings: Settings, dataset_id: str, rows: int) -> Path:
    """A file of `rows` conversations from a job's answers, in the format of another tool."""
    from corpus.shards import read_rows
    from tracking.tables import Dataset

    with db.reading(settings) as session:
        path = session.get_one(Dataset, dataset_id).path
    chats = [row["messages"] for row in read_rows(path)]
    file = folder / f"chats-{rows}.jsonl"
    with file.open("w", encoding="utf-8") as out:
        for number in range(rows):
            messages = [dict(turn) for turn in chats[number % len(chats)]]
            messages[0]["content"] += f" ({number})"
            out.write(json.dumps({"messages": messages}) + "\n")
    return file


@contextmanager
def workbench(folder: Path) -> Iterator[Home]:
    """Run `speculoos up` in an empty home folder with the starter and all cores, after its machine probe."""
    own = {"SPECULOOS_STARTER": str(starter_path()), "OMP_NUM_THREADS": str(os.cpu_count())}
    up = Up(folder / "home", **own)
    try:
        up.start()
        wait_for((up.home / PROBE).exists, "the probe of the machine")
        time.sleep(sum(PROBE_DELAYS) + len(PROBE_DELAYS))  # the probe repeats and keeps the best result
        yield Home(up.settings, folder)
    finally:
        up.end()
        shutil.rmtree(up.settings.run_dir, ignore_errors=True)


def factor(row: dict[str, Any]) -> float:
    """Factor between estimate and actual time, at least 1; infinite without an estimate."""
    estimated, took = row["estimated"], row["took"]
    if estimated and took > estimated:
        estimated = min(took, row.get("longest") or estimated)
    return max(estimated / took, took / estimated) if estimated else float("inf")


def measure(home: Home, part: str) -> list[dict[str, Any]]:
    rows = []

    def do(number: int, kind: str, request: Request) -> dict[str, Any]:
        row = {"part": part, "round": number, **home.do(kind, request)}
        made = row.pop("request")
        rows.append({**row, "factor": round(factor(row), 2)})
        print(f"{number} {kind}: {row['estimated']} s estimated, {row['took']} s taken", file=sys.stderr)
        return made

    if part == "tiny-first":
        do_tiny(home, do)
    for number in (1, 2):
        do_round(home, number, partial(do, number))
    if part == "tiny-last":
        do_tiny(home, do)
    return rows


def table(rows: list[dict[str, Any]]) -> str:
    cells: dict[str, list[str]] = {}
    for row in rows:
        if row["round"] > len(ALLOWED):
            continue
        kind = f"{row['part']}: {row['kind']}"
        longest = f" to {row['longest']:.1f}" if row.get("longest") else ""
        times = f"{row['estimated'] or 0:.1f}{longest} s, {row['took']:.1f} s"
        cells.setdefault(kind, [kind]).extend((times, f"{row['factor']:.2f}"))
    head = "| job | first: said, took | factor | second: said, took | factor |"
    return "\n".join(table_lines(head, cells.values()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--part", choices=PARTS, help="this part only")
    options = parser.parse_args()
    before = load_average()
    rows = []
    for part in [options.part] if options.part else PARTS:
        with tempfile.TemporaryDirectory() as folder, workbench(Path(folder)) as home:
            rows += measure(home, part)
    off = [row for row in rows if row["factor"] > ALLOWED[min(row["round"], len(ALLOWED)) - 1]]
    finish({"jobs": rows, "off": off, **conditions(before)}, table(rows), options.json)
    raise SystemExit(1 if off else 0)


if __name__ == "__main__":
    main()

"""How fast work of a kind gets done here: as past jobs did it, else as a probe of the machine says. No torch.

A job's row keeps how much work it was counted as when it was asked for (`Job.work`), so that what it took tells the
pace of the next, with all that the count leaves out: answers that end early, padding, evaluations on the way.
"""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from tracking.states import JobState
from tracking.tables import Job
from workers.ask.requests import (
    Evaluate,
    Export,
    FetchModel,
    GenerateData,
    ImportAnswered,
    ImportDraft,
    ImportPrompts,
    Plan,
    Replay,
    Request,
    Train,
    Tune,
)

START_SECONDS = {"gpu": 6.0, "io": 0.5}
"""For the process to start and what it needs to load …"""
LOADING = {ImportAnswered: 3.0, ImportDraft: 3.0, Export: 2.5}
"""… and more where work on files needs torch or a tokenizer in processes of its own."""
LOOKED_AT = 40
"""Past jobs of a kind that are looked through."""
COUNTED = 3
"""Of those the latest whose pace counts, in their median."""
PROBE = "machine.json"
"""In the home; the inference server writes it when it first starts (`runtime.speed`)."""
OPERATIONS, MEMORY = 1e11, 2e10
"""A processor's operations a second in matrix products, and bytes it reads, where no probe has run yet."""
SHARE = {Train: 1.1, GenerateData: 0.6, Evaluate: 1.0, Plan: 1.0, Replay: 1.0, Tune: 0.4}
"""Of what the probe reached: measured with the starter on two cores (docs/log.md)."""
READS = (Evaluate, Plan, Replay, Tune)
"""Work that waits for memory: bytes of weights, not operations."""
LEAST_WORK = 0.1
"""Of a past job's time, its work at the least: where starting takes less here than START_SECONDS says."""
BYTES = {ImportPrompts: 4e6, ImportAnswered: 6.5e5, ImportDraft: 3e7, Export: 3e7, FetchModel: 2e7}
"""Bytes a second of work that is files."""


@dataclass(frozen=True)
class Aside:
    """Bytes of weights that a training reads however long it is: by its tuning, and for its sample generations by the
    base and by the draft."""

    tuning: float = 0.0
    base: float = 0.0
    draft: float = 0.0


@dataclass(frozen=True)
class Pace:
    """`rate`: work a second; `basis`: what says so; `fixed`: seconds that do not grow with the work."""

    rate: float
    basis: str
    fixed: float


def pace(session: Session, request: Request, home: Path, fixed: float) -> Pace | None:
    """The pace of a request's kind: of the latest jobs like it, else of the machine; None for an endpoint's first.
    `fixed`: what `fixed_seconds` says of it."""
    if past := _past(session, request):
        taken = [(job.finished_at - job.started_at).total_seconds() for job in past]
        fixed = min(fixed, (1 - LEAST_WORK) * min(taken))
        rates = [job.work / max(seconds - fixed, 0.05) for job, seconds in zip(past, taken, strict=True)]
        basis = "the last job like it" if len(past) == 1 else f"the last {len(past)} like it"
        return Pace(statistics.median(rates), basis, fixed)
    if isinstance(request, GenerateData | Evaluate) and request.endpoint:
        return None
    kind = next((kind for kind in SHARE if isinstance(request, kind)), None)
    if kind is None:
        return Pace(BYTES[type(request)], "what such files usually take", fixed)
    probe = _Probe.read(home)
    speed = probe.reads if kind in READS else probe.learns if kind is Train else probe.multiplies
    return Pace(SHARE[kind] * speed, probe.basis, fixed)


@dataclass(frozen=True)
class _Probe:
    """Operations and bytes a second, of packed weights and of those that drafts learn with (`runtime.speed`)."""

    multiplies: float = OPERATIONS
    reads: float = MEMORY
    learns: float = OPERATIONS
    lies: float = MEMORY
    basis: str = "arithmetic, before anything was measured"

    @classmethod
    def read(cls, home: Path) -> "_Probe":
        """Arithmetic's where nothing was measured, or nothing that can be read; an older probe knows packed weights."""
        try:
            found = json.loads((home / PROBE).read_text(encoding="utf-8"))
            operations, memory = found["operations_per_second"], found["bytes_per_second"]
        except (OSError, ValueError, KeyError, TypeError):
            return cls()
        learns = found.get("learned_operations_per_second", operations)
        lies = found.get("learned_bytes_per_second", memory)
        return cls(operations, memory, learns, lies, "a short probe of this machine")


def fixed_seconds(request: Request, aside: Aside, home: Path) -> float:
    """What does not grow with the work: before the first row, step or answer, and what a training does `aside`."""
    start = START_SECONDS[request.queue] + LOADING.get(type(request), 0.0)
    if aside == Aside():
        return start
    probe = _Probe.read(home)
    return start + aside.tuning / (SHARE[Tune] * probe.reads) + aside.base / probe.reads + aside.draft / probe.lies


def _past(session: Session, request: Request) -> list[Job]:
    """The latest jobs like `request`: those with the same base where there are any."""
    done = session.scalars(
        select(Job)
        .where(
            Job.kind == request.kind, Job.state == JobState.SUCCEEDED, Job.work > 0, Job.attempt == 1, Job.shards == 0
        )
        .order_by(Job.finished_at.desc())
        .limit(LOOKED_AT)
    )
    own = request.to_json()
    alike = [job for job in done if _same(job.request, own, ("method", "endpoint")) and not _cut(job)]
    same_base = [job for job in alike if _same(job.request, own, ("base_id",))]
    return (same_base or alike)[:COUNTED]


def _same(one: dict, other: dict, keys: tuple[str, ...]) -> bool:
    return all((one.get(key) or "") == (other.get(key) or "") for key in keys)


def _cut(job: Job) -> bool:
    """Whether the clock ended it: its time then says nothing of its work."""
    minutes = job.request.get("max_minutes") or (job.request.get("settings") or {}).get("max_minutes")
    return bool(minutes) and (job.finished_at - job.started_at).total_seconds() > 0.9 * 60 * minutes

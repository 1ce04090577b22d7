"""How fast work of a kind gets done here: as past jobs did it, else as a probe of the machine says. No torch.

A job's row keeps how much work it was counted as when it was asked for (`Job.work`), so that what it took tells the
pace of the next, with all that the count leaves out: answers that end early, padding, evaluations on the way. The
time before the work began does not count (`START`), and the probe bounds the pace: past jobs of another base count only
where the base is about as large and the pace agrees with the probe.
"""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from tracking.states import JobState
from tracking.tables import Base, Evaluation, Job
from workers.jobs import sizes
from workers.jobs.request import FixedWork, Request

START_SECONDS = {"gpu": 6.0, "io": 0.5}
"""For the process to start and what it needs to load; `Rate.loading` comes on top of it."""
LOOKED_AT = 200
"""Past jobs of a kind that are looked through."""
COUNTED = 3
"""Of those the latest whose pace counts, in their median."""
PROBE = "machine.json"
"""In the home; the inference server writes it at each of its starts (`models.runtime.speed`)."""
OPERATIONS, MEMORY = 1e11, 2e10
"""A processor's operations a second in matrix products, and bytes it reads, where no probe has run yet."""
TUNING_SHARE = 0.4
"""`Rate.share` of a tuning, measured like all shares with the starter on two cores (docs/log.md)."""
LEAST_WORK = 0.1
"""Of a past job's time, its work at the least: where starting takes less here than START_SECONDS says."""
START = "start_seconds"
"""In a job's result: seconds from its start until the models were loaded (`workers.child.reporter.JobReporter`)."""
TELLING = {True: 0.2, False: 0.75}
"""Of a past job's time, its work at the least for its pace to count: where START was measured, and where it was not."""
SAME_BASE, OTHER_BASE = 30.0, 2.0
"""Factors by which the pace of past jobs may differ from the probe's: with the same base, with another one."""
LIKE_SIZE = 4.0
"""Between the parameters of two bases, the factor up to which one says something about the other."""
USUAL_SECONDS = 0.5
"""Of work at that speed, counted with what a past job of this kind did: a small file takes as long as its start."""


@dataclass(frozen=True)
class Pace:
    """`rate`: work a second; `basis`: what says so; `fixed`: seconds that do not grow with the work."""

    rate: float
    basis: str
    fixed: float


def pace(session: Session, request: Request, home: Path, fixed_work: FixedWork) -> Pace | None:
    """The pace of a request's kind: of the latest jobs like it, else of the machine; None for an endpoint's first.
    `fixed_work`: what the request does besides."""
    past = _past(session, request)
    if not request.rate.share or getattr(request, "endpoint", ""):
        return _by_past_jobs(request, past)
    probe = _Probe.read(home)
    expected = request.rate.share * getattr(probe, request.rate.unit)
    besides = fixed_seconds(request, fixed_work, home) - START_SECONDS[request.queue]
    told = [found for job in past if (found := _told(session, job, request, besides))]
    same = [each for each in told if each.same_base]
    starts = [each.start for each in same if each.measured][:COUNTED]
    fixed = (statistics.median(starts) if starts else START_SECONDS[request.queue]) + besides
    rates = [each.rate for each in same if each.telling][:COUNTED]
    factor = SAME_BASE
    if not rates:
        factor = OTHER_BASE if probe.measured else SAME_BASE
        others = (each.rate for each in told if each.telling and 1 / LIKE_SIZE <= each.scale <= LIKE_SIZE)
        rates = [rate for rate in others if expected / factor <= rate <= expected * factor][:COUNTED]
    if not rates:
        return Pace(expected, probe.basis, fixed)
    rate = min(max(statistics.median(rates), expected / factor), expected * factor)
    return Pace(rate, _basis(rates), fixed)


def _by_past_jobs(request: Request, past: list[Job]) -> Pace | None:
    """Of work that no probe measures: files, and endpoints."""
    fixed = START_SECONDS[request.queue] + request.rate.loading
    own = request.to_json()
    past = ([job for job in past if _same(job.request, own, ("base_id",))] or past)[:COUNTED]
    if past:
        taken = [_seconds(job) for job in past]
        fixed = min(fixed, (1 - LEAST_WORK) * min(taken))
        usual, least = (USUAL_SECONDS * request.rate.bytes, USUAL_SECONDS) if request.rate.bytes else (0.0, 0.05)
        worked = [max(seconds - fixed, 0.0) for seconds in taken]
        rates = [(job.work + usual) / (seconds + least) for job, seconds in zip(past, worked, strict=True)]
        return Pace(statistics.median(rates), _basis(rates), fixed)
    if getattr(request, "endpoint", "") or not request.rate.bytes:
        return None
    return Pace(request.rate.bytes, "what such files usually take", fixed)


def _basis(rates: list[float]) -> str:
    return "the last job like it" if len(rates) == 1 else f"the last {len(rates)} like it"


@dataclass(frozen=True)
class _Told:
    """What a past job says. `rate`: work a second; `start`: seconds before its work, `measured` or not; `telling`:
    whether enough of its time was work; `scale`: parameters of its base by those of the request's."""

    rate: float
    start: float
    measured: bool
    telling: bool
    same_base: bool
    scale: float


def _told(session: Session, job: Job, request: Request, besides: float) -> _Told | None:
    """None where the job's base is gone. `besides`: seconds that the request takes besides its start and its work,
    which grow with the base."""
    scale, same_base = 1.0, job.request.get("base_id") == request.base_id
    if not same_base:
        base, own = (session.get(Base, row_id) for row_id in (job.request.get("base_id"), request.base_id))
        if not (base and own and sizes.parameters(base) and sizes.parameters(own)):
            return None
        scale = sizes.parameters(base) / sizes.parameters(own)
    seconds, start = _seconds(job), job.result.get(START)
    measured = start is not None
    start = min(float(start) if measured else START_SECONDS[job.queue], seconds)
    apart = min(besides * scale, (1 - LEAST_WORK) * (seconds - start))
    worked = seconds - start - apart
    telling = worked > 0 and worked >= TELLING[measured] * (seconds - apart)
    rate = job.work * _passes(session, job) / max(worked, 0.05)
    return _Told(rate, start, measured, telling, same_base, scale)


def _passes(session: Session, job: Job) -> int:
    """How often an evaluation asked its questions: more than once where the machine was busy."""
    row = session.get(Evaluation, job.request.get("evaluation_id") or "")
    return max(int((row.result or {}).get("passes") or 1), 1) if row else 1


def _seconds(job: Job) -> float:
    return (job.finished_at - job.started_at).total_seconds()


@dataclass(frozen=True)
class _Probe:
    """Operations and bytes a second, of packed weights and of those that drafts learn with (`models.runtime.speed`)."""

    multiplies: float = OPERATIONS
    reads: float = MEMORY
    learns: float = OPERATIONS
    lies: float = MEMORY
    basis: str = "arithmetic, before anything was measured"
    measured: bool = False

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
        return cls(operations, memory, learns, lies, "a short probe of this machine", True)


def fixed_seconds(request: Request, fixed_work: FixedWork, home: Path) -> float:
    """What does not grow with the work: before the first row, step or answer, and `fixed_work`."""
    start = START_SECONDS[request.queue] + request.rate.loading
    if fixed_work == FixedWork():
        return start
    probe = _Probe.read(home)
    tuning = fixed_work.tuning / (TUNING_SHARE * probe.reads)
    return start + tuning + fixed_work.base / probe.reads + fixed_work.draft / probe.lies


def _past(session: Session, request: Request) -> list[Job]:
    """The latest jobs like `request`, of any base."""
    done = session.scalars(
        select(Job)
        .where(
            Job.kind == request.kind, Job.state == JobState.SUCCEEDED, Job.work > 0, Job.attempt == 1, Job.shards == 0
        )
        .order_by(Job.finished_at.desc())
        .limit(LOOKED_AT)
    )
    own = request.to_json()
    return [job for job in done if _same(job.request, own, ("method", "endpoint")) and not _cut(job)]


def _same(one: dict, other: dict, keys: tuple[str, ...]) -> bool:
    return all((one.get(key) or "") == (other.get(key) or "") for key in keys)


def _cut(job: Job) -> bool:
    """Whether the clock ended it: its time then says nothing of its work."""
    minutes = job.request.get("max_minutes") or (job.request.get("settings") or {}).get("max_minutes")
    return bool(minutes) and _seconds(job) > 0.9 * 60 * minutes

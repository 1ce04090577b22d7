"""Speed of a kind of work on this machine, from past jobs or from a probe of the machine. No torch.

A job's row stores the work that was estimated at submission (`Job.work`). Its duration then gives the pace of later
jobs, including what the estimate ignores: answers that end early, padding, evaluations during training. The time before
the work began is subtracted (`START`), and the probe bounds the pace: past jobs of another base are used only if the
base has a similar size and the pace agrees with the probe.
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
"""Seconds to start the process and load its files, by queue; `Rate.loading` is added."""
LOOKED_AT = 200
"""Maximum number of past jobs to read."""
COUNTED = 3
"""Number of latest matching jobs whose median pace is used."""
PROBE = "machine.json"
"""File in the home, which the inference server writes at every start (`models.runtime.speed`)."""
OPERATIONS, MEMORY = 1e11, 2e10
"""Operations per second in matrix products and bytes read per second of a CPU, before a probe has run."""
TUNING_SHARE = 0.4
"""`Rate.share` of a tuning, measured with the starter model on two cores like all shares."""
LEAST_WORK = 0.1
"""Minimum share of work in a past job's time, in case its start took less than START_SECONDS."""
START = "start_seconds"
"""Key in a job's result: seconds from its start until the models were loaded (`workers.child.reporter.JobReporter`)."""
TELLING = {True: 0.2, False: 0.75}
"""Minimum share of work in a past job's time for its pace to be used, by whether START was measured."""
SAME_BASE, OTHER_BASE = 30.0, 2.0
"""Maximum factors between the pace of past jobs and of the probe: with the same base, with another base."""
LIKE_SIZE = 4.0
"""Maximum factor between the parameter counts of two bases for their paces to be comparable."""
USUAL_SECONDS = 0.5
"""Seconds of work at `Rate.bytes` that are added to each past job, as small files take little beyond the start."""


@dataclass(frozen=True)
class Pace:
    """`rate`: work per second; `basis`: its source, for people; `fixed`: seconds that do not grow with the work."""

    rate: float
    basis: str
    fixed: float


def pace(session: Session, request: Request, home: Path, fixed_work: FixedWork) -> Pace | None:
    """The pace of a request: from the latest similar jobs, or from the probe; None for the first job of an endpoint.
    `fixed_work`: work that does not grow with the request."""
    past = _past(session, request)
    if not request.rate.share or getattr(request, "endpoint", ""):
        return _pace_without_probe(request, past)
    probe = _Probe.read(home)
    expected = request.rate.share * getattr(probe, request.rate.unit)
    extra = fixed_seconds(request, fixed_work, home) - START_SECONDS[request.queue]
    samples = [sample for job in past if (sample := _past_pace(session, job, request, extra))]
    same_base = [sample for sample in samples if sample.same_base]
    starts = [sample.start for sample in same_base if sample.start_measured][:COUNTED]
    fixed = (statistics.median(starts) if starts else START_SECONDS[request.queue]) + extra
    rates = [sample.rate for sample in same_base if sample.usable][:COUNTED]
    factor = SAME_BASE
    if not rates:
        factor = OTHER_BASE if probe.measured else SAME_BASE
        others = (sample.rate for sample in samples if sample.usable and 1 / LIKE_SIZE <= sample.scale <= LIKE_SIZE)
        rates = [rate for rate in others if expected / factor <= rate <= expected * factor][:COUNTED]
    if not rates:
        return Pace(expected, probe.basis, fixed)
    rate = min(max(statistics.median(rates), expected / factor), expected * factor)
    return Pace(rate, _basis(rates), fixed)


def _pace_without_probe(request: Request, past: list[Job]) -> Pace | None:
    """Pace of work that the probe does not measure: files and endpoints."""
    fixed = START_SECONDS[request.queue] + request.rate.loading
    fields = request.to_json()
    past = ([job for job in past if _are_equal(job.request, fields, ("base_id",))] or past)[:COUNTED]
    if past:
        durations = [_seconds(job) for job in past]
        fixed = min(fixed, (1 - LEAST_WORK) * min(durations))
        usual, least = (USUAL_SECONDS * request.rate.bytes, USUAL_SECONDS) if request.rate.bytes else (0.0, 0.05)
        worked = [max(seconds - fixed, 0.0) for seconds in durations]
        rates = [(job.work + usual) / (seconds + least) for job, seconds in zip(past, worked, strict=True)]
        return Pace(statistics.median(rates), _basis(rates), fixed)
    if getattr(request, "endpoint", "") or not request.rate.bytes:
        return None
    return Pace(request.rate.bytes, "the usual speed for such files", fixed)


def _basis(rates: list[float]) -> str:
    return "the last similar job" if len(rates) == 1 else f"the last {len(rates)} similar jobs"


@dataclass(frozen=True)
class _PastPace:
    """Pace of a past job. `rate`: work per second; `start`: seconds before its work; `usable`: whether enough of its
    time was work; `scale`: parameters of its base divided by those of the request's base."""

    rate: float
    start: float
    start_measured: bool
    usable: bool
    same_base: bool
    scale: float


def _past_pace(session: Session, job: Job, request: Request, extra: float) -> _PastPace | None:
    """Pace of a past job; None if its base was deleted. `extra`: seconds of the request besides start and work, which
    grow with the base."""
    scale, same_base = 1.0, job.request.get("base_id") == request.base_id
    if not same_base:
        past, current = (session.get(Base, row_id) for row_id in (job.request.get("base_id"), request.base_id))
        if not (past and current and sizes.parameters(past) and sizes.parameters(current)):
            return None
        scale = sizes.parameters(past) / sizes.parameters(current)
    seconds, start = _seconds(job), job.result.get(START)
    measured = start is not None
    start = min(float(start) if measured else START_SECONDS[job.queue], seconds)
    extra = min(extra * scale, (1 - LEAST_WORK) * (seconds - start))
    worked = seconds - start - extra
    usable = worked > 0 and worked >= TELLING[measured] * (seconds - extra)
    rate = job.work * _passes(session, job) / max(worked, 0.05)
    return _PastPace(rate, start, measured, usable, same_base, scale)


def _passes(session: Session, job: Job) -> int:
    """How many times an evaluation ran its questions: more than once if the machine was busy; 1 for other jobs."""
    row = session.get(Evaluation, job.request.get("evaluation_id") or "")
    return max(int((row.result or {}).get("passes") or 1), 1) if row else 1


def _seconds(job: Job) -> float:
    return (job.finished_at - job.started_at).total_seconds()


@dataclass(frozen=True)
class _Probe:
    """Operations and bytes per second with packed weights (`multiplies`, `reads`) and with trainable weights (`learns`,
    `trainable_reads`); see `models.runtime.speed`."""

    multiplies: float = OPERATIONS
    reads: float = MEMORY
    learns: float = OPERATIONS
    trainable_reads: float = MEMORY
    basis: str = "default values, before the first measurement"
    measured: bool = False

    @classmethod
    def read(cls, home: Path) -> "_Probe":
        """The probe of a home; defaults without a readable file. Older files have only figures of packed weights."""
        try:
            values = json.loads((home / PROBE).read_text(encoding="utf-8"))
            operations, memory = values["operations_per_second"], values["bytes_per_second"]
        except (OSError, ValueError, KeyError, TypeError):
            return cls()
        learns = values.get("learned_operations_per_second", operations)
        trainable_reads = values.get("learned_bytes_per_second", memory)
        return cls(operations, memory, learns, trainable_reads, "a short probe of this machine", True)


def fixed_seconds(request: Request, fixed_work: FixedWork, home: Path) -> float:
    """Seconds that do not grow with the work: the start, and `fixed_work`."""
    start = START_SECONDS[request.queue] + request.rate.loading
    if fixed_work == FixedWork():
        return start
    probe = _Probe.read(home)
    tuning = fixed_work.tuning / (TUNING_SHARE * probe.reads)
    return start + tuning + fixed_work.base / probe.reads + fixed_work.draft / probe.trainable_reads


def _past(session: Session, request: Request) -> list[Job]:
    """The latest successful jobs like `request`, of any base."""
    jobs = session.scalars(
        select(Job)
        .where(
            Job.kind == request.kind, Job.state == JobState.SUCCEEDED, Job.work > 0, Job.attempt == 1, Job.shards == 0
        )
        .order_by(Job.finished_at.desc())
        .limit(LOOKED_AT)
    )
    fields = request.to_json()
    return [job for job in jobs if _are_equal(job.request, fields, ("method", "endpoint")) and not _hit_time_limit(job)]


def _are_equal(one: dict, other: dict, keys: tuple[str, ...]) -> bool:
    return all((one.get(key) or "") == (other.get(key) or "") for key in keys)


def _hit_time_limit(job: Job) -> bool:
    """Whether the time limit ended the job, so that its duration does not depend on its work."""
    minutes = job.request.get("max_minutes") or (job.request.get("settings") or {}).get("max_minutes")
    return bool(minutes) and _seconds(job) > 0.9 * 60 * minutes

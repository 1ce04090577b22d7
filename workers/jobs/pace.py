"""Speed of a kind of work on this machine, from past jobs or from a probe of the machine. No torch.

A job's row stores the work that was estimated at submission (`Job.work`). Its duration then gives the pace of later
jobs of the same base, including what the estimate ignores: answers that end early, padding, evaluations during
training.
"""

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from tracking.states import JobState
from tracking.tables import Evaluation, Job
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
"""Minimum share of work in the time of a past job with files or an endpoint."""
TELLING = 0.5
"""Minimum share of work in the time of other past jobs for their pace to be used."""
MOST_FACTOR = 30.0
"""Maximum factor between the pace of past jobs and of the probe."""
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
    probe, fixed = _Probe.read(home), fixed_seconds(request, fixed_work, home)
    expected = request.rate.share * getattr(probe, request.rate.unit)
    times = [(job, _seconds(job)) for job in past if job.request.get("base_id") == request.base_id]
    telling = [(job, seconds - fixed) for job, seconds in times if seconds - fixed >= TELLING * seconds]
    rates = [job.work * _passes(session, job) / worked for job, worked in telling[:COUNTED]]
    if not rates:
        return Pace(expected, probe.basis, fixed)
    rate = min(max(statistics.median(rates), expected / MOST_FACTOR), expected * MOST_FACTOR)
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


def _basis(rates: Sequence[float]) -> str:
    return "the last similar job" if len(rates) == 1 else f"the last {len(rates)} similar jobs"


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
        return cls(operations, memory, learns, trainable_reads, "a short probe of this machine")


def fixed_seconds(request: Request, fixed_work: FixedWork, home: Path) -> float:
    """Seconds that do not grow with the work: the start, and `fixed_work`."""
    probe = _Probe.read(home)
    tuning = fixed_work.tuning / (TUNING_SHARE * probe.reads)
    start = START_SECONDS[request.queue] + request.rate.loading
    return start + tuning + fixed_work.base / probe.reads + fixed_work.draft / probe.trainable_reads


def _past(session: Session, request: Request) -> list[Job]:
    """The latest successful jobs like `request`, of any base."""
    told = (Job.state == JobState.SUCCEEDED, Job.work > 0, Job.attempt == 1, Job.shards == 0)
    query = select(Job).where(Job.kind == request.kind, *told).order_by(Job.finished_at.desc()).limit(LOOKED_AT)
    fields = request.to_json()
    return [
        job
        for job in session.scalars(query)
        if _are_equal(job.request, fields, ("method", "endpoint")) and not _hit_time_limit(job)
    ]


def _are_equal(one: dict, other: dict, keys: tuple[str, ...]) -> bool:
    return all((one.get(key) or "") == (other.get(key) or "") for key in keys)


def _hit_time_limit(job: Job) -> bool:
    """Whether the time limit ended the job, so that its duration does not depend on its work."""
    minutes = job.request.get("max_minutes") or (job.request.get("settings") or {}).get("max_minutes")
    return bool(minutes) and _seconds(job) > 0.9 * 60 * minutes

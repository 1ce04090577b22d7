"""Speed of a kind of work on this machine, from past jobs or from a probe of the machine. No torch.

A job's row stores the work that was estimated at submission (`Job.work`). Its duration then gives the pace of later
jobs of its kind and base, including what the estimate ignores: answers that end early, padding, evaluations during
training. The time before the work began is subtracted (`START`).
"""

import json
import statistics
from dataclasses import dataclass
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from tracking.states import JobState
from tracking.tables import Evaluation, Job
from workers.jobs.request import Need, Request

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
START = "start_seconds"
"""Key in a job's result: seconds from its start until the models were loaded (`workers.child.reporter.JobReporter`)."""
MOST_START = 0.9
"""Maximum share of the start in a past job's time, in case it took less than START_SECONDS."""
EXPECTED_SECONDS = 1.0
"""Seconds of work at the expected pace that are added to each past job, as a job that is nearly all start says little
of its pace."""
MOST_FACTOR = 30.0
"""Maximum factor between the pace of a past job and the expected pace: the machine may have been suspended."""


@dataclass(frozen=True)
class Pace:
    """`rate`: work per second; `basis`: its source, for people; `fixed`: seconds that do not grow with the work."""

    rate: float
    basis: str
    fixed: float


def pace(session: Session, request: Request, home: Path, need: Need) -> Pace | None:
    """The pace of a request: from the latest jobs of its kind, method, base and endpoint, else from the probe or the
    kind's usual speed; None for the first job of an endpoint."""
    rate, (probe, basis) = request.rate, _probe(home)
    expected = rate.share * probe[rate.unit] or rate.bytes
    fixed = rate.loading + need.fixed / probe["reads"]
    if getattr(request, "endpoint", ""):
        expected = 0.0
    if past := _past(session, request)[:COUNTED]:
        paces = [_past_pace(session, job, expected, fixed) for job in past]
        basis = "the last similar job" if len(past) == 1 else f"the last {len(past)} similar jobs"
        return Pace(statistics.median(p[0] for p in paces), basis, statistics.median(p[1] for p in paces))
    if not expected:
        return None
    return Pace(
        expected, basis if rate.share else "the usual speed for such files", START_SECONDS[request.queue] + fixed
    )


def _past_pace(session: Session, job: Job, expected: float, fixed: float) -> tuple[float, float]:
    """(work per second, seconds besides work) of a past job. `fixed`: seconds besides its start and its work."""
    seconds = _seconds(job)
    start = min(job.result.get(START, START_SECONDS[job.queue]) + fixed, MOST_START * seconds)
    worked, work = seconds - start, job.work * _passes(session, job)
    if not expected:
        return work / max(worked, 0.05), start
    rate = (work + EXPECTED_SECONDS * expected) / (worked + EXPECTED_SECONDS)
    return min(max(rate, expected / MOST_FACTOR), expected * MOST_FACTOR), start


def _passes(session: Session, job: Job) -> int:
    """How many times an evaluation ran its questions: more than once if the machine was busy; 1 for other jobs."""
    row = session.get(Evaluation, job.request.get("evaluation_id") or "")
    return (row and row.result or {}).get("passes") or 1


def _seconds(job: Job) -> float:
    return (job.finished_at - job.started_at).total_seconds()


def _probe(home: Path) -> tuple[dict[str, float], str]:
    """Operations (with packed and with trainable weights) and bytes per second of the machine, and their source."""
    try:
        values = json.loads((home / PROBE).read_text(encoding="utf-8"))
        operations, reads = values["operations_per_second"], values["bytes_per_second"]
    except (OSError, ValueError, KeyError, TypeError):
        usual = {"multiplies": OPERATIONS, "reads": MEMORY, "learns": OPERATIONS}
        return usual, "default values, before the first measurement"
    learns = values.get("learned_operations_per_second", operations)
    return {"multiplies": operations, "reads": reads, "learns": learns}, "a short probe of this machine"


def _past(session: Session, request: Request) -> list[Job]:
    """The latest successful jobs like `request`."""
    succeeded = Job.kind == request.kind, Job.state == JobState.SUCCEEDED, Job.attempt == 1
    query = select(Job).where(*succeeded, Job.work > 0, Job.shards == 0)
    jobs = session.scalars(query.order_by(Job.finished_at.desc()).limit(LOOKED_AT))
    fields = request.to_json()
    keys = ("method", "endpoint", "base_id")
    same = (job for job in jobs if all((job.request.get(key) or "") == (fields.get(key) or "") for key in keys))
    return [job for job in same if not _hit_time_limit(job)]


def _hit_time_limit(job: Job) -> bool:
    """Whether the time limit ended the job, so that its duration does not depend on its work."""
    minutes = job.request.get("max_minutes") or (job.request.get("settings") or {}).get("max_minutes")
    return bool(minutes) and _seconds(job) > 0.9 * 60 * minutes

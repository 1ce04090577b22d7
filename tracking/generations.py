"""Progress of a data generation, from the counters of the job and its shards (written by `corpus.generation_status`).
The number of queries does not depend on the number of shards."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from tracking.states import JobState
from tracking.tables import Job, Metric, Sample

COUNTER_PREFIX = "now/"  # name prefix of metrics that are counters instead of curves: one value each, at step 0
SPEED, REJECTED = "speed", "left_out"
ANSWERS, REJECTED_ROWS = 0, 1  # `step` of a generation's samples, which encodes their kind


@dataclass
class GenerationProgress:
    """Sums over a generation and its shards. Speeds of running shards in tokens per second, by worker and by server."""

    rows: int = 0
    tokens: int = 0
    bytes: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    workers: dict[str, float] = field(default_factory=dict)
    servers: dict[str, float] = field(default_factory=dict)

    @property
    def speed(self) -> float:
        return sum(self.workers.values())


def generation_progress(session: Session, job_id: str) -> GenerationProgress:
    """The progress of a generation, summed over the counters of the job and its shards."""
    running = (Job.state == JobState.RUNNING).label("running")
    conditions = (_of(job_id), Metric.step == 0, Metric.name.startswith(COUNTER_PREFIX, autoescape=True))
    query = select(Metric.name, Job.owner, running, func.sum(Metric.value)).join(Job, Metric.job_id == Job.id)
    query = query.where(*conditions).group_by(Metric.name, Job.owner, running)
    progress = GenerationProgress()
    for metric, owner, is_running, value in session.execute(query):
        name, _, part = metric.removeprefix(COUNTER_PREFIX).partition("/")
        if name == SPEED and is_running:
            speeds = progress.servers if part else progress.workers
            speeds[part or owner] = speeds.get(part or owner, 0.0) + value
        elif name == REJECTED:
            progress.left_out[part] = progress.left_out.get(part, 0) + int(value)
        elif name in ("rows", "tokens", "bytes"):
            setattr(progress, name, getattr(progress, name) + int(value))
    return progress


def samples(session: Session, job_id: str, step: int, limit: int) -> Sequence[dict[str, Any]]:
    """The first samples of one kind, given by `step`."""
    query = select(Sample.record).join(Job, Sample.job_id == Job.id).where(_of(job_id), Sample.step == step)
    return list(session.scalars(query.order_by(Sample.id).limit(limit)))


def _of(job_id: str) -> ColumnElement[bool]:
    return or_(Job.id == job_id, Job.parent_id == job_id)

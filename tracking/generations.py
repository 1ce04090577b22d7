"""A generation as it goes, from what it and its shards say of themselves (`corpus.telling` says it): a few queries,
however many shards there are."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, func, or_, select
from sqlalchemy.orm import Session

from tracking.states import JobState
from tracking.tables import Job, Metric, Sample

NOW = "now/"
"""How the names of metrics begin that are counters and no curves: one value each, at step 0."""
SPEED, LEFT_OUT = "speed", "left_out/"
ANSWERS, ROWS_LEFT_OUT = 0, 1
"""Steps of a generation's samples: what they are."""


@dataclass
class Going:
    """Sums over a generation and its shards; speeds in tokens a second, of what runs now, by worker and by server."""

    counts: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    left_out: dict[str, int] = field(default_factory=dict)
    workers: dict[str, float] = field(default_factory=dict)
    servers: dict[str, float] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        return int(self.counts["rows"])

    @property
    def tokens(self) -> int:
        return int(self.counts["tokens"])

    @property
    def bytes(self) -> int:
        return int(self.counts["bytes"])

    @property
    def speed(self) -> float:
        return sum(self.workers.values())


def going(session: Session, job_id: str) -> Going:
    """How far a generation is, by its own counters and its shards'."""
    running = (Job.state == JobState.RUNNING).label("running")
    which = (_of(job_id), Metric.step == 0, Metric.name.startswith(NOW, autoescape=True))
    query = select(Metric.name, Job.owner, running, func.sum(Metric.value)).join(Job, Metric.job_id == Job.id)
    found = Going()
    for name, owner, runs, value in session.execute(query.where(*which).group_by(Metric.name, Job.owner, running)):
        _count(found, name.removeprefix(NOW), owner, runs, value)
    return found


def samples(session: Session, job_id: str, step: int, limit: int) -> Sequence[dict[str, Any]]:
    """The first of a generation's samples of one sort, ANSWERS or ROWS_LEFT_OUT."""
    query = select(Sample.record).join(Job, Sample.job_id == Job.id).where(_of(job_id), Sample.step == step)
    return list(session.scalars(query.order_by(Sample.id).limit(limit)))


def _of(job_id: str) -> ColumnElement[bool]:
    return or_(Job.id == job_id, Job.parent_id == job_id)


def _count(found: Going, name: str, owner: str, runs: bool, value: float) -> None:
    if name.startswith(SPEED):
        server = name.removeprefix(SPEED).removeprefix("/")
        place = found.servers if server else found.workers
        if runs:
            place[server or owner] = place.get(server or owner, 0.0) + value
    elif name.startswith(LEFT_OUT):
        kind = name.removeprefix(LEFT_OUT)
        found.left_out[kind] = found.left_out.get(kind, 0) + int(value)
    else:
        found.counts[name] += value

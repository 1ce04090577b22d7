"""Downsampled metrics for charts: a limited number of evenly spaced points, with the first and the last.

The database selects the points, so that a page that refreshes every second does not read 100,000 rows.
"""

import math
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Row, and_, func, or_, select
from sqlalchemy.orm import Session

from tracking import reports
from tracking.tables import Metric

POINTS = 240
"""More points than a chart can show."""


def metrics(session: Session, job_id: str, points: int = POINTS, but: str = "") -> dict[str, list[tuple[int, float]]]:
    """Each metric's (step, value) pairs in order of step, about `points` at most. Metrics whose name starts with `but`
    are left out."""
    ranges = [row for row in _ranges(session, job_id) if not (but and row[0].startswith(but))]
    conditions = [_sampled(job_id, *row, points) for row in ranges]
    return reports.metrics(session, job_id, or_(*conditions)) if conditions else {}


def _ranges(session: Session, job_id: str) -> Sequence[Row[tuple[str, int, int, int]]]:
    """(name, count, first step, last step) of every metric."""
    columns = (Metric.name, func.count(), func.min(Metric.step), func.max(Metric.step))
    return session.execute(select(*columns).where(Metric.job_id == job_id).group_by(Metric.name)).all()


def _sampled(job_id: str, name: str, count: int, first: int, last: int, points: int) -> ColumnElement[bool]:
    """Matches the first step in each of `points` intervals, and the last step. A condition on the remainder would miss
    steps that are not evenly spaced."""
    if count <= points:
        return Metric.name == name
    width = math.ceil((last - first + 1) / points)
    metric = and_(Metric.job_id == job_id, Metric.name == name)
    firsts = select(func.min(Metric.step)).where(metric).group_by((Metric.step - first) // width)
    return and_(Metric.name == name, or_(Metric.step.in_(firsts), Metric.step == last))

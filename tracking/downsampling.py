"""Metrics of a long job for a chart: at most so many points of each, evenly spaced, the first and the last among them.

The database does the choosing, so a page that looks every second never reads a hundred thousand rows.
"""

import math
from collections.abc import Sequence

from sqlalchemy import ColumnElement, Row, and_, func, or_, select
from sqlalchemy.orm import Session

from tracking import reports
from tracking.tables import Metric

POINTS = 240
"""More than a chart has room for."""


def metrics(session: Session, job_id: str, points: int = POINTS, but: str = "") -> dict[str, list[tuple[int, float]]]:
    """Each metric's (step, value) pairs in order of step, about `points` of them at most; those whose name begins with
    `but` are left out."""
    spreads = [spread for spread in _spreads(session, job_id) if not (but and spread[0].startswith(but))]
    conditions = [_every(job_id, *spread, points) for spread in spreads]
    return reports.metrics(session, job_id, or_(*conditions)) if conditions else {}


def _spreads(session: Session, job_id: str) -> Sequence[Row[tuple[str, int, int, int]]]:
    """(name, how many, first step, last step) of every metric."""
    counted = (Metric.name, func.count(), func.min(Metric.step), func.max(Metric.step))
    return session.execute(select(*counted).where(Metric.job_id == job_id).group_by(Metric.name)).all()


def _every(job_id: str, name: str, count: int, first: int, last: int, points: int) -> ColumnElement[bool]:
    """The steps of one metric to take: the first of every so many, and the last. They need not lie at equal distances
    (the last one of a run seldom does), so they are not found by their remainder."""
    if count <= points:
        return Metric.name == name
    width = math.ceil((last - first + 1) / points)
    own = and_(Metric.job_id == job_id, Metric.name == name)
    firsts = select(func.min(Metric.step)).where(own).group_by((Metric.step - first) // width)
    return and_(Metric.name == name, or_(Metric.step.in_(firsts), Metric.step == last))

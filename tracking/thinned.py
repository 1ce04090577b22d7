"""Metrics of a long job for a chart: at most so many points of each, evenly spaced, the first and the last among them.

The database does the choosing, so a page that looks every second never reads a hundred thousand rows.
"""

import math

from sqlalchemy import ColumnElement, and_, func, or_, select
from sqlalchemy.orm import Session

from tracking.tables import Metric

POINTS = 240
"""More than a chart has room for."""


def metrics(session: Session, job_id: str, points: int = POINTS) -> dict[str, list[tuple[int, float]]]:
    """Each metric's (step, value) pairs in order of step, about `points` of them at most."""
    wanted = [_every(*spread, points) for spread in _spreads(session, job_id)]
    if not wanted:
        return {}
    query = select(Metric.name, Metric.step, Metric.value).where(Metric.job_id == job_id, or_(*wanted))
    found: dict[str, list[tuple[int, float]]] = {}
    for name, step, value in session.execute(query.order_by(Metric.name, Metric.step)):
        found.setdefault(name, []).append((step, value))
    return found


def _spreads(session: Session, job_id: str) -> list[tuple[str, int, int, int]]:
    """(name, how many, first step, last step) of every metric."""
    counted = (Metric.name, func.count(), func.min(Metric.step), func.max(Metric.step))
    return [
        tuple(row) for row in session.execute(select(*counted).where(Metric.job_id == job_id).group_by(Metric.name))
    ]


def _every(name: str, count: int, first: int, last: int, points: int) -> ColumnElement[bool]:
    """The steps of one metric to take: every n-th from the first, and the last."""
    if count <= points:
        return Metric.name == name
    spacing = max((last - first) // (count - 1), 1)
    stride = spacing * math.ceil(count / points)
    return and_(Metric.name == name, or_((Metric.step - first) % stride == 0, Metric.step == last))

"""HTML of a divided job's shards: a square per shard, and counts."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from app.views import matrix_grid
from app.views.job_view import MARKS, STATES
from app.widgets.text import safe, tag
from tracking import shards
from tracking.tables import Job

SQUARES = 1000
"""Maximum number of shards drawn as squares."""


def part(session: Session, job: Job) -> str:
    """The part of a divided job's page below its progress; "" for other jobs."""
    if not job.shards:
        return ""
    if job.kind == "matrix":
        return matrix_grid.part(session, job)
    rows, tally = shards.brief(session, job.id), shards.tally(session, job.id)
    words = tag("p", safe(f"{tally.words()}, {tally.done:,} {job.unit}."), class_="sp-lead")
    return tag("section", words + squares(rows), class_="sp-shards", aria_label="Shards")


def squares(rows: Sequence[Any]) -> str:
    if not rows or len(rows) > SQUARES:
        return ""
    return tag("ol", "".join(map(_square, rows)), class_="sp-shard-grid")


def whole_link(session: Session, job: Job) -> str:
    """Link from a shard to its divided job; "" for other jobs."""
    if not job.parent_id:
        return ""
    name = session.get_one(Job, job.parent_id).name
    link = tag("a", safe(name), href=f"/jobs?id={job.parent_id}")
    return tag(
        "p", safe(f"{'Cell' if job.kind == 'evaluate' else 'Shard'} {job.number + 1} of ") + link, class_="sp-lead"
    )


def _square(shard: Any) -> str:
    word, tone = STATES.get(shard.state, (shard.state, ""))
    counted = f"{shard.done:,} of {shard.total:,}" if shard.total is not None else f"{shard.done:,}"
    words = f"Shard {shard.number + 1}: {word.lower()}, {counted}"
    kind = f"sp-shard sp-{tone}" if tone else "sp-shard"
    mark = MARKS.get(shard.state, "·")
    link = tag("a", mark, href=f"/jobs?id={shard.id}", title=words, aria_label=words, class_=kind)
    return tag("li", link)

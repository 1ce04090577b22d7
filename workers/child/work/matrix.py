"""Job `matrix`: its cells become evaluations, jobs of their own; when they have ended this job comes here again."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select

from speculoos.errors import Cancelled
from tracking import db
from tracking.shards import Division, Shard
from tracking.tables import Evaluation
from workers.child.context import JobContext
from workers.child.work.divided import check_shards
from workers.child.work.evaluate import brief
from workers.jobs.estimates import of_cells
from workers.jobs.matrix import cell_name, cells
from workers.jobs.requests import Evaluate, Matrix
from workers.jobs.sizes import questions


def run(request: Matrix, context: JobContext) -> dict[str, Any] | Division:
    """The cells that are still to be measured, or how many there are. Raises JobFailed when some were not measured,
    Cancelled after a stop; what was measured is kept."""
    with context.session() as session:
        planned = cells(session, request, context.job_id)
        query = select(Evaluation).where(Evaluation.matrix_id == context.job_id, Evaluation.state == "ready")
        found = {row.id: brief(row.id, row.result) for row in session.scalars(query)}
    measured = [cell for cell in planned if cell.evaluation_id in found]
    if context.cancel_requested():
        raise Cancelled(f"Stopped at your request; {len(measured)} of {len(planned)} cells are measured and kept.")
    check_shards(context, "cells were not measured")
    if len(measured) == len(planned):
        return {"cells": len(planned), "matrix_id": context.job_id}
    return Division(Evaluate.kind, Evaluate.queue, "questions", _shards(context, planned, found))


def _shards(context: JobContext, planned: Sequence[Evaluate], found: Mapping[str, dict[str, Any]]) -> list[Shard]:
    with db.reading(context.settings) as session:  # a thousand cells take a while, and the database has one writer
        guesses = of_cells(session, planned, context.settings.home)
        return [
            Shard(
                cell.to_json(),
                questions(session, cell.dataset_id, cell.limit) * cell.most_passes,  # as the cell's own progress counts
                found.get(cell.evaluation_id),
                f"Evaluate {cell_name(session, cell)}"[:200],
                guess.seconds,
                guess.work,
            )
            for cell, guess in zip(planned, guesses, strict=True)
        ]

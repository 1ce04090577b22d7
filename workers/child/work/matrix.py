"""Job `matrix`: each cell becomes an evaluation job; when all have ended, this job runs again."""

from collections.abc import Mapping, Sequence
from typing import Any

from sqlalchemy import select

from speculoos.errors import Cancelled
from tracking import db
from tracking.shards import Division, Shard
from tracking.tables import Evaluation
from workers.child.context import JobContext
from workers.child.work.evaluate import brief
from workers.jobs.estimates import of_cells
from workers.jobs.matrix import cell_name, cells
from workers.jobs.requests import Evaluate, Matrix
from workers.jobs.sizes import questions


def run(request: Matrix, context: JobContext) -> dict[str, Any] | Division:
    """The cells to measure, or the result if all are measured. Raises JobFailed if cells failed, Cancelled after a
    cancel; measured cells are kept."""
    with context.session() as session:
        planned = cells(session, request, context.job_id)
        query = select(Evaluation).where(Evaluation.matrix_id == context.job_id, Evaluation.state == "ready")
        results = {row.id: brief(row.id, row.result) for row in session.scalars(query)}
    measured = [cell for cell in planned if cell.evaluation_id in results]
    if context.cancel_requested():
        raise Cancelled(f"Stopped at your request; {len(measured)} of {len(planned)} evaluations are kept.")
    context.check_shards("evaluations failed")
    if len(measured) == len(planned):
        return {"cells": len(planned), "matrix_id": context.job_id}
    return Division(Evaluate.kind, Evaluate.queue, "questions", _shards(context, planned, results))


def _shards(context: JobContext, planned: Sequence[Evaluate], results: Mapping[str, dict[str, Any]]) -> list[Shard]:
    with db.reading(context.settings) as session:  # many cells take long, and the database has one writer
        estimates = of_cells(session, planned, context.settings.home)
        return [
            Shard(
                cell.to_json(),
                questions(session, cell.dataset_id, cell.limit) * cell.most_passes,  # like the cell's progress
                results.get(cell.evaluation_id),
                f"Evaluate {cell_name(session, cell)}"[:200],
                estimate.seconds,
                estimate.work,
            )
            for cell, estimate in zip(planned, estimates, strict=True)
        ]

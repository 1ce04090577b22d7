"""Job `generate_data`: answers to a prompt set, by the local base or through endpoints.

A small set is answered in this job. A larger one is divided into shards, each a job of its own; when all have ended,
this job runs again and merges them.
"""

from pathlib import Path
from typing import Any

from corpus.conversations import count_answers
from corpus.sharding import has_unsharded_rows
from corpus.shards import begin_extension, count_rows, finish_extension, read_summary
from speculoos.errors import Cancelled
from tracking.shards import Division
from tracking.tables import Dataset
from workers.child.context import JobContext
from workers.child.work import generate_divided
from workers.child.work.answers import PARTS, answer, must_have_rows, options_of, publish
from workers.jobs.generate_data import SHARD_ROWS, GenerateData


def run(request: GenerateData, context: JobContext) -> dict[str, Any] | Division:
    """Generate the missing answers and fill the data set's row. Finished rows can be used after a cancel."""
    source, folder = (
        context.input_with_files(Dataset, request.source_id).path,
        context.dataset_folder(request.dataset_id),
    )
    context.files.bring_output(Dataset, request.dataset_id, folder)
    extends = extends_usable(request, context, folder)
    if is_divided(request, source, folder):
        return generate_divided.run(request, context, source, extends)
    work = begin_extension(folder, folder / PARTS / f"{context.job_id}.more") if extends else folder
    try:
        report = answer(request, context, source, work, options_of(request))
    except Cancelled as error:
        if context.cancel_requested() and extends:
            raise Cancelled(generate_divided.UNCHANGED) from error
        if context.cancel_requested() and (rows := count_rows(folder)):
            publish(request, context, rows, {"complete": False})
            raise Cancelled(f"Stopped at your request; the {rows} finished rows can be used.") from error
        raise
    must_have_rows(report)
    if extends:
        finish_extension(work, folder)
    if report.get("complete", True):
        context.progress(report["rows"], report["rows"], "rows")  # also if nothing was left to do
    publish(request, context, report["rows"], report)
    return {"dataset_id": request.dataset_id, **report}


def extends_usable(request: GenerateData, context: JobContext, folder: Path) -> bool:
    """Whether the data set has usable rows, which then stay unchanged until all new rows exist: it was finished, or the
    request has more samples or prompts than it was made with."""
    with context.session() as session:
        data = session.get_one(Dataset, request.dataset_id)
        rows, config = data.rows, data.config or {}
    changed = any(config.get(key) != getattr(request, key) for key in ("samples", "limit"))
    return rows > 0 and (changed or bool(read_summary(folder)))


def is_divided(request: GenerateData, source: str, folder: Path) -> bool:
    """Whether there are more answers than fit in a shard. A time limit, or unsharded rows in `folder` to continue, keep
    the work in one job."""
    answers = count_answers(source, options_of(request))
    large = request.max_minutes is None and answers > (request.shard_rows or SHARD_ROWS)
    return large and not has_unsharded_rows(folder)

"""Job `generate_shard`: one shard of a generation. Finished rows of a failed attempt are kept for the next."""

import shutil
from typing import Any

from corpus.sharding import store_shard
from tracking import jobs, reports
from tracking.tables import Dataset
from workers.child.context import JobContext
from workers.child.work.answers import answer, options_of, place_of, work_of
from workers.jobs.requests import GenerateShard


def run(request: GenerateShard, context: JobContext) -> dict[str, Any]:
    """Answer the shard's prompts and store it with the other shards, unless it is stored already."""
    place = place_of(request, context)
    report = place.report(request.key)
    if report is None:
        source, options = context.input_with_files(Dataset, request.source_id).path, options_of(request)
        work = work_of(request.key, request, context)
        summary = answer(request, context, source, work, options)
        with context.fenced():  # an outdated attempt must not store the shard
            pass
        report = store_shard(work, source, options, summary, request.key, place)
        shutil.rmtree(work, ignore_errors=True)
        _log_to_parent(context, report)
    context.progress(report["prompts"], report["prompts"], "rows")
    return report


def _log_to_parent(context: JobContext, report: dict[str, Any]) -> None:
    """Add a line to the log of the parent job."""
    failed = len(report["failed"])
    skipped = f", {failed} skipped" if failed else ""
    with context.session() as session:
        shard = jobs.get(session, context.job_id)
        if shard.parent_id:
            parent = jobs.get(session, shard.parent_id)
            counts = f"{report['rows']:,} rows, {report['tokens']:,} tokens{skipped}"
            message = f"Shard {shard.number + 1} of {parent.shards}: {counts}."
            reports.add_log(session, parent.id, parent.attempt, message)

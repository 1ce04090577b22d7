"""Job `generate_shard`: one shard of a generation. It lands whole, or what is finished waits for the next attempt."""

import shutil
from typing import Any

from corpus.sharding import store_shard
from tracking import jobs, reports
from tracking.tables import Dataset
from workers.child.context import JobContext
from workers.child.work.answers import answer, options_of, place_of, work_of
from workers.jobs.requests import GenerateShard


def run(request: GenerateShard, context: JobContext) -> dict[str, Any]:
    """Answer the shard's prompts and bring them to where the others are; one that is there already is left alone."""
    place = place_of(request, context)
    report = place.report(request.key)
    if report is None:
        source, options = context.usable(Dataset, request.source_id).path, options_of(request)
        work = work_of(request.key, request, context)
        made = answer(request, context, source, work, options)
        with context.fenced():  # nobody lands what is another attempt's by now
            pass
        report = store_shard(work, source, options, made, request.key, place)
        shutil.rmtree(work, ignore_errors=True)
        _tell_whole(context, report)
    context.progress(report["prompts"], report["prompts"], "rows")
    return report


def _tell_whole(context: JobContext, report: dict[str, Any]) -> None:
    """A line in the log of the job this is a shard of, which people read."""
    failed = len(report["failed"])
    left_out = f", {failed} left out" if failed else ""
    with context.session() as session:
        shard = jobs.get(session, context.job_id)
        if shard.parent_id:
            whole = jobs.get(session, shard.parent_id)
            made = f"{report['rows']:,} rows, {report['tokens']:,} tokens{left_out}"
            said = f"Shard {shard.number + 1} of {whole.shards}: {made}."
            reports.add_log(session, whole.id, whole.attempt, said)

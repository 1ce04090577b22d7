"""A generation in shards: the plan, and the merge into the data set after they have ended."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corpus.sharding import (
    ShardPart,
    add_unfinished,
    assemble,
    finished_reports,
    plan_shards,
    total_report,
)
from corpus.shards import count_rows, write_summary
from speculoos.errors import BadInput, Cancelled
from tracking.shards import Division, Shard
from workers.child.context import JobContext
from workers.child.work.answers import PARTS, author_of, must_have_rows, options_of, place_of, publish, work_of
from workers.jobs.generate_data import SHARD_ROWS
from workers.jobs.requests import GenerateData, GenerateShard

Reports = Mapping[str, Mapping[str, Any]]
UNCHANGED = "Stopped at your request; the data set is unchanged, and a retry continues from here."
MOST = 10_000
"""Maximum number of shards; each is a row and a square on the job's page."""


def run(request: GenerateData, context: JobContext, source: str, extends: bool) -> dict[str, Any] | Division:
    """The missing shards, or the report of the finished data set. Raises JobFailed if shards failed; after a cancel
    merges the finished rows and raises Cancelled, but leaves a data set that it `extends` unchanged."""
    options, place = options_of(request), place_of(request, context)
    author = author_of(request, context)
    parts = plan_shards(source, options, request.shard_rows or SHARD_ROWS, **author)
    _check_count(parts)
    folder = context.dataset_folder(request.dataset_id)
    reports = finished_reports(parts, place, folder)
    context.flush()
    if context.cancel_requested():
        if extends:
            raise Cancelled(UNCHANGED)
        raise _stopped(request, context, parts, reports)
    context.check_shards()
    if len(reports) < len(parts):
        return _division(request, parts, reports)
    if damaged := assemble(parts, reports, place, folder):
        context.log(f"{len(damaged)} finished shards are damaged and are generated again.", "warning")
        return _division(request, parts, finished_reports(parts, place, folder))
    report = total_report(parts, reports)
    must_have_rows(report)
    write_summary(
        folder,
        kind="conversations",
        source=Path(source).name,
        base_sha256=author.get("weights_sha256", ""),
        tokenizer_sha256=author.get("tokenizer_sha256", ""),
        config={**asdict(options), "endpoint": request.endpoint, "model": request.endpoint_model},
        **report,
    )
    brief = {**report, "shards": len(parts)}
    publish(request, context, report["rows"], brief)
    place.clear()
    shutil.rmtree(context.dataset_folder(request.dataset_id) / PARTS, ignore_errors=True)
    context.progress(report["prompts"], report["prompts"], "rows")
    return {"dataset_id": request.dataset_id, **brief}


def _check_count(parts: Sequence[ShardPart]) -> None:
    if len(parts) > MOST:
        raise BadInput(f"This would be {len(parts):,} shards, the maximum is {MOST:,}; use more prompts per shard.")


def _division(request: GenerateData, parts: Sequence[ShardPart], reports: Reports) -> Division:
    rows = [Shard(_request(request, part), part.rows, reports.get(part.key)) for part in parts]
    return Division(GenerateShard.kind, request.runs_on, "rows", rows)


def _request(request: GenerateData, part: ShardPart) -> dict[str, Any]:
    fields = {**request.to_json(), "samples": 1, "shard_rows": None, "limit": part.rows}
    return GenerateShard(**fields, key=part.key, first=part.first, first_sample=part.sample).to_json()


def _stopped(request: GenerateData, context: JobContext, parts: Sequence[ShardPart], reports: Reports) -> Cancelled:
    """Merge the finished rows, including those of unfinished shards; returns the error to raise."""
    folder, place = context.dataset_folder(request.dataset_id), place_of(request, context)
    if damaged := assemble(parts, reports, place, folder):
        reports = {key: report for key, report in reports.items() if key not in {part.key for part in damaged}}
        assemble(parts, reports, place, folder)
    works = {part.key: work_of(part.key, request, context) for part in parts if part.key not in reports}
    add_unfinished(parts, works, folder)
    if rows := count_rows(folder):
        publish(
            request,
            context,
            rows,
            {**total_report(parts, reports), "rows": rows, "complete": False, "shards": len(parts)},
        )
        return Cancelled(f"Stopped at your request; the {rows} finished rows can be used.")
    return Cancelled("Stopped at your request.")

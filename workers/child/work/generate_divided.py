"""A generation in shards: its plan, and the data set that is put together once they have ended."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from corpus.sharding import Part, add_unfinished, assemble, landed, plan, totals
from corpus.shards import count_rows, write_summary
from speculoos.errors import BadInput, Cancelled, SpeculoosError
from tracking import shards
from tracking.shards import Division, Shard
from workers.ask.requests import SHARD_ROWS, GenerateData, GenerateShard, queue_of
from workers.child.context import Context
from workers.child.work.answers import author_of, options_of, place_of, work_of

Publish = Callable[[GenerateData, Context, int, dict[str, Any]], None]
Reports = Mapping[str, Mapping[str, Any]]
MOST = 10_000
"""Shards of a generation: each is a row, and a square on its page."""


class ShardFailed(SpeculoosError):
    """Shards did not end well; `code` is that of the first."""

    def __init__(self, code: str, message: str, hint: str):
        super().__init__(message, hint)
        self._code = code

    @property
    def code(self) -> str:
        return self._code or super().code


def run(request: GenerateData, context: Context, source: str, publish: Publish) -> dict[str, Any] | Division:
    """The shards that are still to be made, or the finished data set's report. Raises ShardFailed when some did not
    end well, Cancelled after putting together what there is."""
    options, place = options_of(request), place_of(request, context)
    parts = plan(source, options, request.shard_rows or SHARD_ROWS, **author_of(request, context))
    _check_count(parts)
    folder = context.dataset_folder(request.dataset_id)
    reports = landed(parts, place, folder)
    context.flush()
    if context.cancel_requested():
        raise _stopped(request, context, parts, reports, publish)
    _check(context)
    if len(reports) < len(parts):
        return _division(request, parts, reports)
    if wrong := assemble(parts, reports, place, folder):
        context.log(f"{len(wrong)} finished shards are damaged and are made again.", "warning")
        return _division(request, parts, landed(parts, place, folder))
    report = totals(parts, reports)
    author = {key: value for key, value in author_of(request, context).items() if key.endswith("sha256")}
    identity = {"base_sha256": author.get("weights_sha256", ""), "tokenizer_sha256": author.get("tokenizer_sha256", "")}
    config = {**asdict(options), "endpoint": request.endpoint, "model": request.endpoint_model}
    write_summary(folder, kind="conversations", source=Path(source).name, **identity, config=config, **report)
    brief = {**report, "shards": len(parts)}
    publish(request, context, report["rows"], brief)
    place.clear()
    context.progress(report["prompts"], report["prompts"], "rows")
    return {"dataset_id": request.dataset_id, **brief}


def _check_count(parts: Sequence[Part]) -> None:
    if len(parts) > MOST:
        raise BadInput(f"This would be {len(parts):,} shards; take more prompts a shard, for {MOST:,} at most.")


def _division(request: GenerateData, parts: Sequence[Part], reports: Reports) -> Division:
    made = [Shard(_request(request, part), part.rows, reports.get(part.key)) for part in parts]
    return Division(GenerateShard.kind, queue_of(request), "rows", made)


def _request(request: GenerateData, part: Part) -> dict[str, Any]:
    whole = {**request.to_json(), "samples": 1, "shard_rows": None, "limit": part.rows}
    return GenerateShard(**whole, key=part.key, first=part.first, first_sample=part.sample).to_json()


def _check(context: Context) -> None:
    """Raises ShardFailed, saying how many did not end well and why the first did not."""
    with context.session() as session:
        failed, tally = shards.failed(session, context.job_id), shards.tally(session, context.job_id)
    if failed:
        first = failed[0]
        how = f"{len(failed)} of {tally.total} shards were not made; number {first.number + 1}: {first.error}"
        raise ShardFailed(first.error_code, how, first.hint or "Retry makes those again; the others are kept.")


def _stopped(
    request: GenerateData, context: Context, parts: Sequence[Part], reports: Reports, publish: Publish
) -> Cancelled:
    """Put together what there is, also of shards that were not finished."""
    folder, place = context.dataset_folder(request.dataset_id), place_of(request, context)
    if wrong := assemble(parts, reports, place, folder):
        reports = {key: report for key, report in reports.items() if key not in {part.key for part in wrong}}
        assemble(parts, reports, place, folder)
    works = {part.key: work_of(part.key, request, context) for part in parts if part.key not in reports}
    add_unfinished(parts, works, folder)
    if rows := count_rows(folder):
        publish(
            request, context, rows, {**totals(parts, reports), "rows": rows, "complete": False, "shards": len(parts)}
        )
        return Cancelled(f"Stopped at your request; the {rows} finished rows can be used.")
    return Cancelled("Stopped at your request.")

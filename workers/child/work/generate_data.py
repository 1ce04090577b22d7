"""Jobs `generate_data` and `generate_shard`: answers to a prompt set, by the local base or through endpoints.

A small set is answered in its job. A larger one is divided into shards, each a job of its own; when all have ended, the
generation runs again and merges them.
"""

import math
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from functools import partial
from pathlib import Path
from typing import Any

from corpus.conversations import GenerateOptions, count_answers
from corpus.labels import ServedBase
from corpus.sharding import (
    ShardFolder,
    ShardPart,
    add_unfinished,
    assemble,
    finished_reports,
    plan_shards,
    store_shard,
    total_report,
)
from corpus.shards import count_lengths, count_rows, write_summary
from models.tokenizer import load_tokenizer, read_eos_ids
from speculoos.errors import BadInput, Cancelled, SpeculoosError
from speculoos.files import write_json
from speculoos.store import Store
from tracking import db, jobs, reports, stored
from tracking.shards import ShardPlan, ShardSpec
from tracking.tables import Base, Dataset
from workers.child.context import JobContext
from workers.jobs.generate_data import SHARD_ROWS
from workers.jobs.requests import GenerateData, GenerateShard
from workers.jobs.sizes import prompt_tokens

Reports = Mapping[str, Mapping[str, Any]]
PREVIEW_ROWS = 20
PARTS = "parts"  # subfolder of a dataset with shards that have not been merged yet
MAX_SHARDS = 10_000  # maximum number of shards; each is a row and a square on the job's page


def run(request: GenerateData, context: JobContext) -> dict[str, Any] | ShardPlan:
    """Generate the missing answers and fill the dataset's row. Finished rows can be used after a cancel."""
    if isinstance(request, GenerateShard):
        return _run_shard(request, context)
    source = context.input_with_files(Dataset, request.source_id).path
    with db.reading(context.settings) as session:
        row = session.get(Dataset, request.dataset_id)
    if row and row.state == "pending" and row.rows:
        raise BadInput("Datasets can no longer be extended.", "Generate responses to all prompts as a new dataset.")
    folder, options = context.dataset_folder(request.dataset_id), _options(request)
    context.files.download_output(Dataset, request.dataset_id, folder)
    if request.max_minutes is None and count_answers(source, options) > (request.shard_rows or SHARD_ROWS):
        return _run_sharded(request, context, source, options)
    try:
        report = _answer(request, context, source, folder, options)
    except Cancelled as error:
        if context.cancel_requested() and (rows := count_rows(folder)):
            raise _stopped(request, context, rows, {}) from error
        raise
    _must_have_rows(report)
    if report.get("complete", True):
        context.progress(report["rows"], report["rows"], "rows")  # also if nothing was left to do
    _update_dataset_row(request, context, report["rows"], report)
    return {"dataset_id": request.dataset_id, **report}


def _run_sharded(
    request: GenerateData, context: JobContext, source: str, options: GenerateOptions
) -> dict[str, Any] | ShardPlan:
    shard_folder, author = _shard_folder(request, context), _author(request, context)
    folder = context.dataset_folder(request.dataset_id)
    parts = plan_shards(source, options, request.shard_rows or SHARD_ROWS, **author)
    if (count := len(parts)) > MAX_SHARDS:
        raise BadInput(f"This would be {count:,} shards, the maximum is {MAX_SHARDS:,}; use more prompts per shard.")
    finished = finished_reports(parts, shard_folder, folder)
    context.flush()
    if context.cancel_requested():
        raise _merge_stopped(request, context, parts, finished)
    context.check_shards()
    if len(finished) < len(parts):
        return _shard_plan(request, parts, finished)
    if damaged := assemble(parts, finished, shard_folder, folder):
        context.log(f"{len(damaged)} finished shards are damaged and are generated again.", "warning")
        return _shard_plan(request, parts, finished_reports(parts, shard_folder, folder))
    report = total_report(parts, finished)
    _must_have_rows(report)
    write_summary(
        folder,
        kind="conversations",
        source=Path(source).name,
        base_sha256=author.get("weights_sha256", ""),
        tokenizer_sha256=author.get("tokenizer_sha256", ""),
        config={**asdict(options), "endpoint": request.endpoint, "model": request.endpoint_model},
        **report,
    )
    report["shards"] = len(parts)
    _update_dataset_row(request, context, report["rows"], report)
    shard_folder.clear()
    shutil.rmtree(folder / PARTS, ignore_errors=True)
    context.progress(report["prompts"], report["prompts"], "rows")
    return {"dataset_id": request.dataset_id, **report}


def _run_shard(request: GenerateShard, context: JobContext) -> dict[str, Any]:
    """Answer the shard's prompts and store it, unless it is stored. Rows of a failed attempt are kept for the next."""
    shard_folder = _shard_folder(request, context)
    report = shard_folder.report(request.key)
    if report is None:
        source, options = context.input_with_files(Dataset, request.source_id).path, _options(request)
        work = _work_folder(request, context, request.key)
        summary = _answer(request, context, source, work, options)
        context.check_owned()  # an outdated attempt must not store the shard
        report = store_shard(work, source, options, summary, request.key, shard_folder)
        shutil.rmtree(work, ignore_errors=True)
        _log_to_parent(context, report)
    context.progress(report["prompts"], report["prompts"], "rows")
    return report


def _shard_plan(request: GenerateData, parts: Sequence[ShardPart], finished: Reports) -> ShardPlan:
    whole = {**request.to_json(), "samples": 1, "shard_rows": None}
    shards = []
    for part in parts:
        own = whole | {"limit": part.rows, "key": part.key, "first": part.first, "first_sample": part.sample}
        shards.append(ShardSpec(request=GenerateShard(**own).to_json(), total=part.rows, result=finished.get(part.key)))
    return ShardPlan(kind=GenerateShard.kind, queue=request.runs_on, unit="rows", shards=shards)


def _merge_stopped(
    request: GenerateData, context: JobContext, parts: Sequence[ShardPart], finished: Reports
) -> Cancelled:
    """Merge the finished rows, including those of unfinished shards; returns the error to raise."""
    folder, shard_folder = context.dataset_folder(request.dataset_id), _shard_folder(request, context)
    if damaged := assemble(parts, finished, shard_folder, folder):
        finished = {key: report for key, report in finished.items() if key not in {part.key for part in damaged}}
        assemble(parts, finished, shard_folder, folder)
    works = {part.key: _work_folder(request, context, part.key) for part in parts if part.key not in finished}
    add_unfinished(parts, works, folder)
    if rows := count_rows(folder):
        return _stopped(request, context, rows, {**total_report(parts, finished), "shards": len(parts)})
    return Cancelled("Stopped at your request.")


def _stopped(request: GenerateData, context: JobContext, rows: int, report: dict[str, Any]) -> Cancelled:
    _update_dataset_row(request, context, rows, {**report, "rows": rows, "complete": False})
    return Cancelled(f"Stopped at your request; the {rows} finished rows can be used.")


def _log_to_parent(context: JobContext, report: dict[str, Any]) -> None:
    failed = len(report["failed"])
    skipped = f", {failed} skipped" if failed else ""
    with context.session() as session:
        shard = jobs.get(session, context.job_id)
        if shard.parent_id:
            parent = jobs.get(session, shard.parent_id)
            counts = f"{report['rows']:,} rows, {report['tokens']:,} tokens{skipped}"
            message = f"Shard {shard.number + 1} of {parent.shards}: {counts}."
            reports.add_log(session, parent.id, parent.attempt, message)


def _must_have_rows(report: dict[str, Any]) -> None:
    if not report["rows"] and report["left_out"]:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in report["left_out"].items())
        raise BadInput(
            f"Every conversation was skipped: {kinds}.",
            "The log has the reasons for the first ones; allow longer responses, keep cut ones, or use another model.",
        )


def _update_dataset_row(request: GenerateData, context: JobContext, rows: int, report: dict[str, Any]) -> None:
    folder = context.dataset_folder(request.dataset_id)
    if request.base_id:
        write_preview(context, folder, context.input_with_files(Base, request.base_id).path)
    counts = {"rows": rows, "bad_rows": sum(report.get("left_out", {}).values())}
    report = {**report, **count_lengths(folder)}
    values = {"path": str(folder), "report": report, "config": request.to_json(), **counts}
    context.update_output(Dataset, request.dataset_id, state="ready", **values)


def write_preview(context: JobContext, folder: Path, base_path: str) -> None:
    """Write `preview.json` in a dataset folder: the tokens of the first conversations with their loss mask, as the web
    server has no tokenizer. An error is logged and does not fail the job."""
    from training.tokenizing import preview

    try:
        write_json(folder / "preview.json", {"rows": preview(folder, base_path, PREVIEW_ROWS)})
    except (SpeculoosError, OSError, ValueError) as error:
        context.log(f"The preview of the loss mask could not be created: {error}", "warning")


def _author(request: GenerateData, context: JobContext) -> dict[str, str]:
    """Identity of the answering model, by base and endpoint: equal identities give equal answers."""
    author = {}
    if request.endpoint:
        models = {request.endpoint_model or endpoint.model for endpoint in context.endpoints(request.endpoint)}
        author = {"endpoint": request.endpoint, "model": ",".join(sorted(models))}
    if request.base_id:
        base = context.input_row(Base, request.base_id)
        author |= {"weights_sha256": base.weights_sha256, "tokenizer_sha256": base.tokenizer_sha256}
    return author


def _shard_folder(request: GenerateData, context: JobContext) -> ShardFolder:
    """Folder for the finished shards of a generation: in the store, if configured, for other machines."""
    if store := context.files.store:
        return ShardFolder(store, f"{stored.store_prefix(stored.KINDS[Dataset], request.dataset_id)}/{PARTS}")
    return ShardFolder(Store(f"file://{context.dataset_folder(request.dataset_id)}"), PARTS)


def _work_folder(request: GenerateData, context: JobContext, key: str) -> Path:
    """Folder for the rows of shard `key` until the shard is complete, shared by all attempts."""
    return context.dataset_folder(request.dataset_id) / PARTS / f"{key}.work"


def _options(request: GenerateData) -> GenerateOptions:
    names = (f.name for f in fields(GenerateOptions) if hasattr(request, f.name))
    return GenerateOptions(**{name: getattr(request, name) for name in names})


def _answer(
    request: GenerateData, context: JobContext, source: str, folder: Path, options: GenerateOptions
) -> dict[str, Any]:
    if request.endpoint:
        from corpus.generate_remote import generate_remote

        endpoints, served = context.endpoints(request.endpoint), None
        if request.base_id:
            base = context.input_with_files(Base, request.base_id)
            tokenizer = load_tokenizer(base.path)
            eos_ids = read_eos_ids(base.path, tokenizer)
            served = ServedBase(tokenizer, eos_ids, base.weights_sha256, base.tokenizer_sha256)
        return generate_remote(endpoints, request.endpoint_model, source, folder, options, context, served)
    from corpus.generate_local import generate_local, generation_dtype
    from models.base import load_base
    from training.hidden_states.states_store import StatesStore
    from workers.child.gpu_memory import model_memory
    from workers.child.work.measure import take_device

    row = context.input_with_files(Base, request.base_id)
    dtype = generation_dtype(context.settings.device)
    prompt = prompt_tokens(context.input_row(Dataset, request.source_id))
    tokens = 2 * math.ceil(prompt + request.max_tokens)  # the cache grows by doubling
    memory = partial(model_memory, [row.path], dtype, tokens=tokens, sequences=request.batch_size)
    device = take_device(context, memory=memory)
    base = load_base(row.path, dtype, device, context.base_checksums(row), context.checksum_cache)
    states = None
    if store := request.hidden_states_store:
        folder_of_states = context.settings.hidden_states_folder / store
        states = StatesStore(folder_of_states, row.weights_sha256, base.dtype, base.hidden_size)
    return generate_local(base, source, folder, options, context, row.card or None, states)

"""Job `generate_data`: answers to a prompt set, by the local base or through an endpoint of the operator."""

from dataclasses import fields
from pathlib import Path
from typing import Any

from corpus.conversations import GenerateOptions
from corpus.shards import count_rows
from speculoos.errors import BadInput, Cancelled
from speculoos.settings import Endpoint
from tracking.tables import Base, Dataset
from workers.ask.requests import GenerateData
from workers.child.context import Context
from workers.child.work.previews import write_preview


def run(request: GenerateData, context: Context) -> dict[str, Any]:
    """Answer what is not answered yet and fill the data set's row. What is finished stays usable after a stop."""
    source = context.usable(Dataset, request.source_id)
    chosen = {f.name: getattr(request, f.name) for f in fields(GenerateOptions) if hasattr(request, f.name)}
    generate = _by_endpoint if request.endpoint else _by_base
    try:
        report = generate(request, context, source.path, GenerateOptions(**chosen))
    except Cancelled as error:
        if context.cancel_requested() and (rows := count_rows(context.dataset_folder(request.dataset_id))):
            publish(request, context, rows, {"complete": False})
            raise Cancelled(f"Stopped at your request; the {rows} finished rows can be used.") from error
        raise
    if report.get("complete", True):
        context.progress(report["rows"], report["rows"], "rows")  # also where an attempt found everything done
    publish(request, context, report["rows"], report)
    return {"dataset_id": request.dataset_id, **report}


def publish(request: GenerateData, context: Context, rows: int, report: dict[str, Any]) -> None:
    """Fill the data set's row, fenced; before that, the preview its page shows."""
    path = str(context.dataset_folder(request.dataset_id))
    if request.base_id:
        write_preview(context, Path(path), context.usable(Base, request.base_id).path)
    failed = len(report.get("failed", []))
    context.publish(Dataset, request.dataset_id, state="ready", path=path, rows=rows, bad_rows=failed, report=report)


def _by_base(request: GenerateData, context: Context, source: str, options: GenerateOptions) -> dict[str, Any]:
    from corpus.generate_local import generate_local, generation_dtype
    from models.base import load_base
    from workers.child.work.devices import take_device

    row = context.usable(Base, request.base_id)
    device = take_device(context)
    base = load_base(row.path, generation_dtype(device), device, context.known(row), context.sums)
    folder = context.dataset_folder(request.dataset_id)
    return generate_local(base, source, folder, options, context, row.card or None)


def _by_endpoint(request: GenerateData, context: Context, source: str, options: GenerateOptions) -> dict[str, Any]:
    from corpus.generate_remote import generate_remote

    endpoint: Endpoint | None = context.settings.endpoints.get(request.endpoint)
    if endpoint is None:
        known = ", ".join(context.settings.endpoints) or "none yet"
        raise BadInput(
            f"There is no endpoint named {request.endpoint!r} in settings.toml; known are: {known}.",
            "Add an [endpoints.NAME] table with its url, then retry.",
        )
    folder = context.dataset_folder(request.dataset_id)
    return generate_remote(endpoint, request.endpoint_model, source, folder, options, context)

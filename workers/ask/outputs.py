"""The rows a job will fill: made in state `pending` before the job, so that other jobs and pages can name them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from formats import find_format
from speculoos.errors import BadInput, Conflict
from tracking import queries
from tracking.names import STARTER, free_name, insist
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Table
from workers.ask.requests import (
    Evaluate,
    Export,
    FetchModel,
    GenerateData,
    ImportAnswered,
    ImportDraft,
    ImportPrompts,
    Request,
    Train,
)

OUTPUT = {
    FetchModel: ("base_id", Base),
    ImportDraft: ("checkpoint_id", Checkpoint),
    ImportPrompts: ("dataset_id", Dataset),
    ImportAnswered: ("dataset_id", Dataset),
    GenerateData: ("dataset_id", Dataset),
    Train: ("checkpoint_id", Checkpoint),
    Evaluate: ("evaluation_id", Evaluation),
}
"""Which field of a request names its output row. (`Evaluate.dataset_id` is an input.) An export has none."""


def input_ids(request: Request) -> list[tuple[type[Table], str]]:
    """The rows a request reads, as (table, id)."""
    if isinstance(request, ImportAnswered):
        return [(Base, request.base_id)]
    if isinstance(request, GenerateData):
        return [(Dataset, request.source_id)] + ([] if request.endpoint else [(Base, request.base_id)])
    if isinstance(request, ImportDraft):
        return [(Base, request.base_id)]
    if isinstance(request, Train):
        return [(Base, request.base_id), (Dataset, request.dataset_id)]
    if isinstance(request, Evaluate):
        pairs = [(Base, request.base_id), (Checkpoint, request.checkpoint_id), (Dataset, request.dataset_id)]
        return pairs[:1] + [(table, id) for table, id in pairs[1:] if id]
    if isinstance(request, Export):
        return [(Checkpoint, request.checkpoint_id)]
    return []


def make_output(
    session: Session, request: Request, name: str, experiment_id: str | None, like: str = ""
) -> tuple[Request, Any]:
    """Make the output row and return the request that names it, with the row; no row for requests that fill none.

    A `name` that was given must be free (Conflict otherwise); without one a free one is made up: `like`, `like-2`, ….
    """
    if type(request) not in OUTPUT:
        return request, None
    field, table = OUTPUT[type(request)]
    if isinstance(request, FetchModel) and request.source == STARTER:
        name = name or STARTER
    base_id = request.base_id if isinstance(request, Train | ImportDraft) else ""
    if isinstance(request, FetchModel):
        _keep_starter(request, name)
    if table is Evaluation:
        chosen = name or like or default_name(session, request)
    elif name:
        chosen = insist(session, table, name, base_id)
    else:
        chosen = free_name(session, table, like or default_name(session, request), base_id)
    row = table(name=chosen, **_columns(session, request, experiment_id))
    session.add(row)
    session.flush()
    return replace(request, **{field: row.id}), row


def _keep_starter(request: FetchModel, name: str) -> None:
    """The name `starter` means one set of weights on every machine."""
    if (request.source == STARTER) != (name.strip() == STARTER):
        raise Conflict(f"The name {STARTER!r} belongs to the starter model, and the starter model to that name.")


def default_name(session: Session, request: Request) -> str:
    """A name made from what goes in."""
    if isinstance(request, FetchModel):
        location = request.location.rstrip("/")
        return location if request.source == "hub" else Path(location).name.removesuffix(".gguf")
    if isinstance(request, ImportDraft):
        return request.location.rstrip("/").rpartition("/")[2].partition("@")[0]
    if isinstance(request, ImportPrompts | ImportAnswered):
        return Path(request.original_name or request.path).stem
    if isinstance(request, GenerateData):
        by = request.endpoint or queries.find_base(session, request.base_id).name
        return f"{queries.find_dataset(session, request.source_id).name} by {by}"
    if isinstance(request, Train):
        return f"{request.method}-{queries.find_dataset(session, request.dataset_id).name}"
    if isinstance(request, Evaluate):
        return queries.model_name(session, request.base_id, request.checkpoint_id or None)
    if isinstance(request, Export):
        return f"{queries.find_checkpoint(session, request.checkpoint_id).name} for {find_format(request.format).title}"
    raise BadInput(f"Unknown request {type(request).__name__}.")


def _columns(session: Session, request: Request, experiment_id: str | None) -> dict[str, Any]:
    config = request.to_json()
    if isinstance(request, FetchModel):
        return {"source": request.source, "location": request.location}
    if isinstance(request, ImportDraft):
        base = queries.find_base(session, request.base_id)
        return {"method": "", "config": config, "base_id": base.id, "base_sha256": base.weights_sha256}
    if isinstance(request, ImportPrompts):
        return {"kind": "prompts", "config": config, "experiment_id": experiment_id}
    if isinstance(request, ImportAnswered):
        links = {"base_id": request.base_id, "experiment_id": experiment_id}
        return {"kind": "conversations", "config": config, **links}
    if isinstance(request, GenerateData):
        links = {"source_id": request.source_id, "base_id": request.base_id or None}
        return {"kind": "conversations", "config": config, "experiment_id": experiment_id, **links}
    if isinstance(request, Train):
        base = queries.find_base(session, request.base_id)
        links = {"base_id": base.id, "base_sha256": base.weights_sha256, "dataset_id": request.dataset_id}
        return {"method": request.method, "config": config, "experiment_id": experiment_id, **links}
    assert isinstance(request, Evaluate)
    return {"base_id": request.base_id, "checkpoint_id": request.checkpoint_id or None, "config": config}

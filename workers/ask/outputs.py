"""The rows a job will fill: made in state `pending` before the job, so that other jobs and pages can name them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from sqlalchemy.orm import Session

from formats import find_format
from models.methods import trees
from speculoos.errors import BadInput, Conflict
from speculoos.suites import BUILT_IN, OWN, title
from tracking import queries
from tracking.names import STARTER, free_name, insist, plain, release
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Table
from workers.ask.builtin import QUESTIONS, built_in_of
from workers.ask.requests import (
    HUB,
    Evaluate,
    Export,
    FetchModel,
    GenerateData,
    ImportAnswered,
    ImportDraft,
    ImportPrompts,
    Matrix,
    PlanRequest,
    ReplayRequest,
    Request,
    Train,
    Tune,
)

OUTPUT = {
    FetchModel: ("base_id", Base),
    ImportDraft: ("checkpoint_id", Checkpoint),
    ImportPrompts: ("dataset_id", Dataset),
    ImportAnswered: ("dataset_id", Dataset),
    GenerateData: ("dataset_id", Dataset),
    Train: ("checkpoint_id", Checkpoint),
    Evaluate: ("evaluation_id", Evaluation),
    ReplayRequest: ("evaluation_id", Evaluation),
}
"""Which field of a request names its output row. (`Evaluate.dataset_id` is an input.) Plans, matrices, tunings and
exports have none."""


def input_ids(request: Request) -> list[tuple[type[Table], str]]:
    """The rows a request reads, as (table, id)."""
    if isinstance(request, ImportAnswered | ImportDraft):
        return [(Base, request.base_id)]
    if isinstance(request, GenerateData):
        return [(Dataset, request.source_id)] + ([(Base, request.base_id)] if request.base_id else [])
    if isinstance(request, Train):
        return [(Base, request.base_id), *((Dataset, row_id) for row_id in request.dataset_ids)]
    if isinstance(request, Evaluate | PlanRequest | ReplayRequest | Tune):
        pairs = [(Base, request.base_id), (Checkpoint, request.checkpoint_id), (Dataset, request.dataset_id)]
        served = isinstance(request, Evaluate) and request.endpoint
        return [(table, id) for table, id in pairs if id or (table is Base and not served)]
    if isinstance(request, Matrix):
        models = [(Base, m["base_id"]) for m in request.models]
        models += [(Checkpoint, m["checkpoint_id"]) for m in request.models if m.get("checkpoint_id")]
        return [*dict.fromkeys([*models, *((Dataset, suite) for suite in request.suites if suite)])]
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
        release(session, table, name.strip(), base_id)
        chosen = insist(session, table, name, base_id)
    else:
        wanted = plain(like or default_name(session, request))
        release(session, table, wanted, base_id)
        chosen = free_name(session, table, wanted, base_id)
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
    if isinstance(request, ImportPrompts) and request.suite:
        return request.suite
    if isinstance(request, ImportPrompts | ImportAnswered):
        if request.path.startswith(HUB):
            repo, _, part = request.original_name.partition(":")
            return "-".join(filter(None, [repo.partition("@")[0].rpartition("/")[2], *part.split("/")]))
        return Path(request.original_name or request.path).stem
    if isinstance(request, GenerateData):
        by = request.endpoint or queries.find_base(session, request.base_id).name
        return f"{queries.find_dataset(session, request.source_id).name} by {by}"
    if isinstance(request, Train):
        return f"{request.method}-{queries.find_dataset(session, request.dataset_id).name}"
    if isinstance(request, ReplayRequest):
        model = queries.model_name(session, request.base_id, request.checkpoint_id)
        return f"{model} on {queries.find_dataset(session, request.dataset_id).name}"
    if isinstance(request, PlanRequest | Tune):
        return queries.model_name(session, request.base_id, request.checkpoint_id or None)
    if isinstance(request, Evaluate):
        return evaluation_name(session, request)
    if isinstance(request, Matrix):
        return f"{_many(len(request.models), 'model')} on {_many(len(request.suites), 'suite')}"
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
    if isinstance(request, Evaluate):
        return evaluation_columns(session, request)
    assert isinstance(request, ReplayRequest)
    return {"base_id": request.base_id, "checkpoint_id": request.checkpoint_id or None, "config": config}


def evaluation_columns(session: Session, request: Evaluate) -> dict[str, Any]:
    """What the row of an evaluation says before it is measured."""
    data = session.get(Dataset, request.dataset_id) if request.dataset_id else None
    suite = suite_of(data)
    return {
        "base_id": request.base_id or None,
        "checkpoint_id": request.checkpoint_id or None,
        "config": request.to_json(),
        "matrix_id": request.matrix_id or None,
        "suite": suite,
        "questions": (title(suite) or data.name if data else title(suite))[:200],
        "temperature": request.temperature,
        "top_p": request.top_p,
        "tree": trees.words(request.drafting),
        "source": request.endpoint,
    }


def suite_of(data: Dataset | None) -> str:
    """What a set of questions is called on the leaderboard; the built-in ones as a data set are what they are alone."""
    if data is None or built_in_of(data.config) == QUESTIONS:
        return BUILT_IN
    return (data.config or {}).get("suite") or OWN


def evaluation_name(session: Session, request: Evaluate) -> str:
    """`starter@my-heads`; of an endpoint's, the model it was asked for and the endpoint."""
    model = queries.model_name(session, request.base_id, request.checkpoint_id or None) if request.base_id else ""
    if not request.endpoint:
        return model
    return f"{request.endpoint_model or model or 'its model'} at {request.endpoint}"


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

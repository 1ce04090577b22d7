"""Job `evaluate`: acceptance and speed of a base with a checkpoint (or another drafter), while it holds the device."""

from typing import Any

from evaluation.acceptance import evaluate
from evaluation.questions import built_in, read_questions
from models.base import Base as LoadedBase
from models.base import decoding_dtype, load_base
from models.checkpoints import load_draft
from tracking.tables import Base, Checkpoint, Dataset, Evaluation
from workers.ask.requests import Evaluate
from workers.child.context import Context
from workers.child.work.devices import take_device

OF_CHECKPOINT = (
    "mean_accepted_length",
    "acceptance_by_depth",
    "mean_accepted_length_interval",
    "speedup",
    "speedup_interval",
    "tokens_per_second",
    "plain_tokens_per_second",
    "identical_to_plain",
)
"""Figures that the checkpoint's row keeps too, as the last measured ones."""


def run(request: Evaluate, context: Context) -> dict[str, Any]:
    """Measure, and fill the evaluation's row and the checkpoint's figures."""
    base_row = context.usable(Base, request.base_id)
    questions = _questions(request, context)
    device = take_device(context)
    dtype = decoding_dtype(context.settings.dtype, device)
    base = load_base(base_row.path, dtype, device, context.known(base_row), context.sums)
    draft = _draft(request, context, base, base_row.weights_sha256)
    context.log(f"Measuring {len(questions)} questions on {device}, plain and with drafting, one after the other.")
    result = evaluate(base, draft, questions, context, max_tokens=request.max_tokens, options=request.drafting)
    context.publish(Evaluation, request.evaluation_id, state="ready", result=result)
    if request.checkpoint_id:
        _keep_figures(request, context, result)
    return {"evaluation_id": request.evaluation_id, **{k: result[k] for k in OF_CHECKPOINT if k in result}}


def _questions(request: Evaluate, context: Context) -> list[dict[str, Any]]:
    if not request.dataset_id:
        return built_in(request.limit)
    return read_questions(context.usable(Dataset, request.dataset_id).path, request.limit, context)


def _draft(request: Evaluate, context: Context, base: LoadedBase, base_sha256: str) -> Any:
    if not request.checkpoint_id:
        return None
    row = context.usable(Checkpoint, request.checkpoint_id)
    draft = load_draft(row.path, base, base_sha256, row.sha256, context.sums)
    for notice in getattr(draft, "notices", []):
        context.log(str(notice), "warning")
    return draft


def _keep_figures(request: Evaluate, context: Context, result: dict[str, Any]) -> None:
    with context.fenced() as session:
        checkpoint = session.get_one(Checkpoint, request.checkpoint_id)
        checkpoint.figures = {**checkpoint.figures, **{k: result[k] for k in OF_CHECKPOINT if k in result}}

"""Job `plan`: what drafting would give, from what steps cost here or on a given machine, while it holds the device."""

from typing import Any

from evaluation.costs import Costs
from evaluation.planner import Choices, plan
from models.base import decoding_dtype, load_base
from models.checkpoints import load_draft
from tracking.tables import Base, Checkpoint
from workers.ask.requests import Plan
from workers.child.context import Context
from workers.child.work.devices import take_device
from workers.child.work.questions import asked_questions


def run(request: Plan, context: Context) -> dict[str, Any]:
    """The prediction."""
    costs = Costs.from_json(request.costs, "The figures of the other machine") if request.costs else None
    base_row = context.usable(Base, request.base_id)
    questions = asked_questions(request, context)
    device = take_device(context)
    dtype = decoding_dtype(context.settings.dtype, device)
    base = load_base(base_row.path, dtype, device, context.known(base_row), context.sums)
    draft = None
    if request.checkpoint_id:
        row = context.usable(Checkpoint, request.checkpoint_id)
        draft = load_draft(row.path, base, base_row.weights_sha256, row.sha256, context.sums)
    choices = Choices(tuple(request.batches), tuple(request.layers), max_tokens=request.max_tokens)
    context.log(f"Planning on {device} with {len(questions)} questions.")
    found = plan(base, draft, questions, context, costs=costs, choices=choices)
    context.log(found["verdict"])
    return found

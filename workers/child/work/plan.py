"""Job `plan`: what drafting would give, from what steps cost here or on a given machine, while it holds the device."""

from typing import Any

from evaluation.costs import Costs
from evaluation.planner import PlanOptions, plan
from workers.child.context import JobContext
from workers.child.work.devices import load_models
from workers.child.work.questions import asked_questions
from workers.jobs.requests import PlanRequest


def run(request: PlanRequest, context: JobContext) -> dict[str, Any]:
    """The prediction."""
    costs = Costs.from_json(request.costs, "The figures of the other machine") if request.costs else None
    questions = asked_questions(request, context)
    loaded = load_models(context, request.base_id, request.checkpoint_id)
    sizes = {"max_tokens": request.max_tokens, "draft_hidden_size": request.draft_hidden_size}
    choices = PlanOptions(tuple(request.batches), tuple(request.layers), **sizes)
    context.log(f"Planning on {loaded.device} with {len(questions)} questions.")
    found = plan(loaded.base, loaded.draft, questions, context, costs=costs, choices=choices)
    context.log(found["verdict"])
    return found

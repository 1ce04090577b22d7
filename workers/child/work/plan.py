"""Job `plan`: predicts the speed of drafting from the cost of steps on the leased device or on another machine."""

from typing import Any

from evaluation.costs import Costs
from evaluation.planner import PlanOptions, plan
from workers.child.context import JobContext
from workers.child.work.devices import load_models
from workers.child.work.questions import asked_questions
from workers.jobs.requests import PlanRequest


def run(request: PlanRequest, context: JobContext) -> dict[str, Any]:
    """Measure what the prediction needs; returns the plan."""
    costs = Costs.from_json(request.costs, "The figures of the other machine") if request.costs else None
    questions = asked_questions(request, context)
    loaded = load_models(context, request.base_id, request.checkpoint_id)
    choices = PlanOptions(tuple(request.batches), tuple(request.layers), max_tokens=request.max_tokens)
    context.log(f"Planning on {loaded.device} with {len(questions)} questions.")
    result = plan(loaded.base, loaded.draft, questions, context, costs=costs, choices=choices)
    context.log(result["verdict"])
    return result

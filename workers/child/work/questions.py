"""The questions of a request: those of its data set, or the built-in ones."""

from typing import Any

from evaluation.questions import built_in, read_questions
from tracking.tables import Dataset
from workers.child.context import JobContext
from workers.jobs.requests import Evaluate, PlanRequest, Tune


def asked_questions(
    request: Evaluate | PlanRequest | Tune, context: JobContext, last: bool = False
) -> list[dict[str, Any]]:
    """At most `request.limit` questions; with `last` the last of the built-in ones.

    Raises NotFound or Conflict if the data set cannot be used.
    """
    if not request.dataset_id:
        return built_in()[-request.limit :] if last else built_in(request.limit)
    return read_questions(context.input_with_files(Dataset, request.dataset_id).path, request.limit, context)

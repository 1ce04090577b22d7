"""Conversion between values of the forms on the evaluations page and requests. Raises BadInput with the label."""

from typing import Any

from app.forms import number
from app.widgets.setting_fields import field_values
from models.methods import trees
from speculoos.errors import BadInput
from workers.jobs.evaluate import HOTTEST
from workers.jobs.requests import Evaluate, Matrix, from_json

BUILT_IN = "built-in"
"""Value of the built-in questions: a multiselect dropdown does not accept an empty value."""
PAIR = ":"
"""Separator of base id and checkpoint id in the value of a choice."""
MOST_VALUES = 50


def matrix_request(
    models: list[str] | None, suites: list[str] | None, temperatures: str, tree_lines: str, limit: Any, max_tokens: Any
) -> Matrix:
    """Request for every combination of the selected values. Raises BadInput."""
    if not models:
        raise BadInput("Models: choose one or more base models or checkpoints.")
    if not suites:
        raise BadInput("Suites: choose one or more sets of questions.")
    return Matrix(
        models=[dict(zip(("base_id", "checkpoint_id"), pair(model), strict=True)) for model in models],
        suites=[_data_id(suite) for suite in suites],
        temperatures=numbers("Temperatures", temperatures, 0, HOTTEST),
        drafting=[trees.parse(line) for line in lines("Trees", tree_lines) or [trees.CHECKPOINT_OPTIONS]],
        **field_values(Matrix, {"limit": limit, "max_tokens": max_tokens}),
    )


def served_request(
    endpoint: str | None,
    model: str,
    plain_model: str,
    serves: str | None,
    suite: str | None,
    limit: Any,
    max_tokens: Any,
) -> Evaluate:
    """Request to evaluate an endpoint on a suite. Raises BadInput."""
    values = {"endpoint_model": model, "plain_model": plain_model, "limit": limit, "max_tokens": max_tokens}
    if not endpoint:
        raise BadInput("Server: choose an endpoint; they are defined in settings.toml.")
    base_id, checkpoint_id = pair(serves or "")
    return Evaluate(
        base_id=base_id,
        checkpoint_id=checkpoint_id,
        dataset_id=_data_id(suite or BUILT_IN),
        endpoint=endpoint,
        **field_values(Evaluate, values),
    )


def cloned(kind: str, request: dict[str, Any]) -> tuple[str, list[Any]] | None:
    """The form (`matrix` or `served`) and field values that reproduce the request of a job; None if the form cannot
    express it (seed, top-p and precision are command-line only), and for other kinds of jobs."""
    try:
        original = from_json(kind, request) if kind in (Evaluate.kind, Matrix.kind) else None
        if isinstance(original, Evaluate) and original.endpoint:
            values = served_values(original)
            is_same = served_request(*values) == original.changed(evaluation_id="", matrix_id="")
            return ("served", values) if is_same else None
        matrix = as_matrix(original) if isinstance(original, Evaluate) else original
        if not isinstance(matrix, Matrix):
            return None
        values = matrix_values(matrix)
        return ("matrix", values) if matrix_request(*values) == _with_all_ids(matrix) else None
    except (BadInput, KeyError, TypeError):  # a request of another version
        return None


def as_matrix(request: Evaluate) -> Matrix:
    """An evaluation as a matrix of one cell."""
    return Matrix(
        models=[{"base_id": request.base_id, "checkpoint_id": request.checkpoint_id}],
        suites=[request.dataset_id],
        temperatures=[request.temperature],
        drafting=[request.drafting],
        top_ps=[request.top_p],
        dtypes=[request.dtype],
        limit=request.limit,
        max_tokens=request.max_tokens,
        seed=request.seed,
    )


def matrix_values(request: Matrix) -> list[Any]:
    """Arguments of `matrix_request` for a request."""
    return [
        [f"{model['base_id']}{PAIR}{model.get('checkpoint_id') or ''}" for model in request.models],
        [suite or BUILT_IN for suite in request.suites],
        ", ".join(f"{temperature:g}" for temperature in request.temperatures),
        "\n".join(trees.editable_text(options) for options in request.drafting),
        request.limit,
        request.max_tokens,
    ]


def served_values(request: Evaluate) -> list[Any]:
    """Arguments of `served_request` for a request."""
    serves = f"{request.base_id}{PAIR}{request.checkpoint_id}" if request.base_id else ""
    server = [request.endpoint, request.endpoint_model, request.plain_model, serves]
    return [*server, request.dataset_id or BUILT_IN, request.limit, request.max_tokens]


def _with_all_ids(request: Matrix) -> Matrix:
    """The request with both ids set for every model."""
    models = [{"base_id": m["base_id"], "checkpoint_id": m.get("checkpoint_id") or ""} for m in request.models]
    return request.changed(models=models)


def pair(choice: str) -> tuple[str, str]:
    """(base id, checkpoint id or "") of a choice's value."""
    base_id, _, checkpoint_id = choice.partition(PAIR)
    return base_id, checkpoint_id


def lines(label: str, text: str | None) -> list[str]:
    """Non-empty lines without duplicates. Raises BadInput if there are too many."""
    result = list(dict.fromkeys(line.strip() for line in (text or "").splitlines() if line.strip()))
    if len(result) > MOST_VALUES:
        raise BadInput(f"{label}: at most {MOST_VALUES} are allowed.")
    return result


def numbers(label: str, text: str | None, low: float, high: float) -> list[float]:
    """Parse `0, 0.7, 1`, without duplicates. Raises BadInput."""
    values = [value for value in (text or "").replace(";", ",").split(",") if value.strip()]
    if not values or len(values) > MOST_VALUES:
        raise BadInput(f"{label}: expected one or more numbers, such as 0, 1.")
    return list(dict.fromkeys(number(label, value.strip(), low, high, 0.0) for value in values))


def _data_id(suite: str) -> str:
    return "" if suite == BUILT_IN else suite

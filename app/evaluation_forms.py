"""What is in the forms of the evaluations page, as the requests they mean, and back. Raises BadInput in the words of
the page."""

from typing import Any

from app.forms import number
from app.widgets.setting_fields import field_values
from models.methods import trees
from speculoos.errors import BadInput
from workers.jobs.evaluate import HOTTEST
from workers.jobs.requests import Evaluate, Matrix, from_json

BUILT_IN = "built-in"
"""The choice of the built-in questions: a dropdown takes no empty value for one of several."""
PAIR = ":"
"""Between the ids of base and checkpoint in a choice."""
MOST_VALUES = 50


def matrix_request(
    models: list[str] | None, suites: list[str] | None, temperatures: str, tree_lines: str, limit: Any, max_tokens: Any
) -> Matrix:
    """Every combination of what was chosen."""
    if not models:
        raise BadInput("Models: choose a base or a checkpoint, or several.")
    if not suites:
        raise BadInput("Suites: choose the questions, or several sets of them.")
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
    """A suite asked of an endpoint."""
    values = {"endpoint_model": model, "plain_model": plain_model, "limit": limit, "max_tokens": max_tokens}
    if not endpoint:
        raise BadInput("Server: choose an endpoint; the operator names them in settings.toml.")
    base_id, checkpoint_id = pair(serves or "")
    return Evaluate(
        base_id=base_id,
        checkpoint_id=checkpoint_id,
        dataset_id=_data_id(suite or BUILT_IN),
        endpoint=endpoint,
        **field_values(Evaluate, values),
    )


def cloned(kind: str, request: dict[str, Any]) -> tuple[str, list[Any]] | None:
    """The form, `matrix` or `served`, and the values of its fields by which it says all that a job was asked for; None
    where it cannot (a seed, top-p or precision, which commands alone can give), and for other kinds of jobs."""
    try:
        asked = from_json(kind, request) if kind in (Evaluate.kind, Matrix.kind) else None
        if isinstance(asked, Evaluate) and asked.endpoint:
            values = served_values(asked)
            said = served_request(*values) == asked.changed(evaluation_id="", matrix_id="")
            return ("served", values) if said else None
        whole_matrix = as_matrix(asked) if isinstance(asked, Evaluate) else asked
        if not isinstance(whole_matrix, Matrix):
            return None
        values = matrix_values(whole_matrix)
        return ("matrix", values) if matrix_request(*values) == _plain(whole_matrix) else None
    except (BadInput, KeyError, TypeError):  # a row of another version
        return None


def as_matrix(request: Evaluate) -> Matrix:
    """One evaluation as a matrix of one cell."""
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
    """The fields of `matrix_request`."""
    return [
        [f"{model['base_id']}{PAIR}{model.get('checkpoint_id') or ''}" for model in request.models],
        [suite or BUILT_IN for suite in request.suites],
        ", ".join(f"{temperature:g}" for temperature in request.temperatures),
        "\n".join(trees.editable_text(options) for options in request.drafting),
        request.limit,
        request.max_tokens,
    ]


def served_values(request: Evaluate) -> list[Any]:
    """The fields of `served_request`."""
    serves = f"{request.base_id}{PAIR}{request.checkpoint_id}" if request.base_id else ""
    named = [request.endpoint, request.endpoint_model, request.plain_model, serves]
    return [*named, request.dataset_id or BUILT_IN, request.limit, request.max_tokens]


def _plain(request: Matrix) -> Matrix:
    """With every model written out."""
    models = [{"base_id": m["base_id"], "checkpoint_id": m.get("checkpoint_id") or ""} for m in request.models]
    return request.changed(models=models)


def pair(choice: str) -> tuple[str, str]:
    """(base id, checkpoint id or "") of a choice."""
    base_id, _, checkpoint_id = choice.partition(PAIR)
    return base_id, checkpoint_id


def lines(label: str, text: str | None) -> list[str]:
    """The lines of a box that say something, each once."""
    found = list(dict.fromkeys(line.strip() for line in (text or "").splitlines() if line.strip()))
    if len(found) > MOST_VALUES:
        raise BadInput(f"{label}: at most {MOST_VALUES} are taken.")
    return found


def numbers(label: str, text: str | None, low: float, high: float) -> list[float]:
    """`0, 0.7, 1` as numbers, each once."""
    values = [value for value in (text or "").replace(";", ",").split(",") if value.strip()]
    if not values or len(values) > MOST_VALUES:
        raise BadInput(f"{label}: expected one number or several, such as 0, 1.")
    return list(dict.fromkeys(number(label, value.strip(), low, high, 0.0) for value in values))


def _data_id(suite: str) -> str:
    return "" if suite == BUILT_IN else suite

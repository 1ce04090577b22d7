"""Requests from the values of the forms on the evaluations page. Raises BadInput with the label."""

from typing import Any

from app.forms import number
from app.widgets.setting_fields import field_values
from models.methods import trees
from speculoos.errors import BadInput
from workers.jobs.evaluate import HOTTEST
from workers.jobs.requests import Evaluate, Matrix

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

"""Which evaluations a matrix has: every combination of models, suites, temperatures and trees that can be. No torch.

The same request gives the same cells in the same order, and each the same id: planning again after a kill finds what
was measured before.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

from sqlalchemy.orm import Session

from models.methods import METHODS, trees
from speculoos.errors import BadInput, NotFound
from speculoos.settings import DTYPES
from speculoos.suites import BUILT_IN, title
from tracking import queries
from tracking.tables import Checkpoint, Dataset
from workers.ask.requests import Evaluate, Matrix

MOST = 1000
"""Cells of a matrix: each is a job, and a place in the grid of its page."""
MOST_COMBINED = 50 * MOST
"""Combinations, those that cannot be among them: a page that is being filled in looks at each."""
HOTTEST = 5.0


def cells(session: Session, request: Matrix, matrix_id: str = "") -> list[Evaluate]:
    """The evaluations of a matrix; with the id of its job each has the id of its row. Left out: what a checkpoint's
    method cannot draft, trees for a base alone, and a top-p where nothing is sampled."""
    made = {json.dumps(cell.to_json(), sort_keys=True): cell for cell in _combined(session, request)}
    return [_identified(cell, key, matrix_id) for key, cell in made.items()]


def left_out(session: Session, request: Matrix) -> int:
    """How many combinations cannot be."""
    asked = (request.models, request.suites, request.drafting, request.dtypes)
    hot = sum(temperature > 0 for temperature in set(request.temperatures))
    chances = hot * len(set(request.top_ps)) + (len(set(request.temperatures)) - hot)
    others = prod(len({json.dumps(value, sort_keys=True) for value in values}) for values in asked)
    return chances * others - len(cells(session, request))


def check(session: Session, request: Matrix) -> None:
    """Raises BadInput for a matrix without cells, with too many, or with numbers that cannot be."""
    check_numbers(request.temperatures, request.top_ps, request.limit, request.max_tokens)
    if (combined := prod(map(len, _asked(request)))) > MOST_COMBINED:
        raise BadInput(f"These are {combined:,} combinations; at most {MOST_COMBINED:,} are gone through.")
    for dtype in request.dtypes:
        if dtype and dtype not in DTYPES:
            raise BadInput(f"Precision {dtype!r}: expected one of {', '.join(DTYPES)}.")
    count = len(cells(session, request))
    if not count:
        raise BadInput("There is nothing to measure: choose models, suites, temperatures and trees that fit together.")
    if count > MOST:
        raise BadInput(f"This would be {count:,} evaluations; a matrix has {MOST:,} at most. Take fewer of each.")


def check_numbers(temperatures: Sequence[float], top_ps: Sequence[float], limit: int, max_tokens: int) -> None:
    """Raises BadInput for what no evaluation can have."""
    for temperature in temperatures:
        if not 0 <= temperature <= HOTTEST:
            raise BadInput(f"Temperature: expected 0 to {HOTTEST:g}, got {temperature:g}.")
    for top_p in top_ps:
        if not 0 < top_p <= 1:
            raise BadInput(f"Top-p: expected more than 0 and at most 1, got {top_p:g}.")
    if limit < 1 or max_tokens < 1:
        raise BadInput("Questions and tokens a turn: expected 1 or more of each.")


def cell_name(session: Session, cell: Evaluate) -> str:
    """`starter@my-heads · GSM8K · T 0 · chain 4`."""
    model = queries.model_name(session, cell.base_id, cell.checkpoint_id or None)
    parts = [model, suite_name(session, cell.dataset_id), *setting_words(cell.to_json())]
    return " · ".join(parts)[:200]


def setting_words(cell: dict[str, Any]) -> Iterator[str]:
    """Temperature, top-p and precision where they are not the usual ones, and the tree."""
    yield f"T {cell.get('temperature', 0.0):g}"
    if cell.get("top_p", 1.0) != 1:
        yield f"top-p {cell['top_p']:g}"
    if cell.get("dtype"):
        yield cell["dtype"]
    yield trees.words(cell.get("drafting") or {}) or "own tree"


def suite_name(session: Session, dataset_id: str) -> str:
    """The suite's title; of a prompt set of one's own, its name."""
    if not dataset_id:
        return title(BUILT_IN)
    data = session.get(Dataset, dataset_id)
    if data is None:
        raise NotFound("A question set of this matrix is gone; choose another.")
    return title((data.config or {}).get("suite") or "") or data.name


def _combined(session: Session, request: Matrix) -> Iterator[Evaluate]:
    methods = {model.get("checkpoint_id") or "": _method(session, model) for model in request.models}
    for model, drafting, suite, temperature, top_p, dtype in product(*_asked(request)):
        checkpoint_id = model.get("checkpoint_id") or ""
        method = methods[checkpoint_id]
        if not trees.fits(drafting, method, METHODS[method].drafting if method in METHODS else ()):
            continue
        yield Evaluate(
            base_id=model["base_id"],
            checkpoint_id=checkpoint_id,
            dataset_id=suite,
            drafting=drafting,
            temperature=temperature,
            top_p=top_p if temperature else 1.0,
            dtype=dtype,
            **{"limit": request.limit, "max_tokens": request.max_tokens, "seed": request.seed},
        )


def _asked(request: Matrix) -> tuple[Sequence[Any], ...]:
    return request.models, request.drafting, request.suites, request.temperatures, request.top_ps, request.dtypes


def _method(session: Session, model: dict[str, str]) -> str:
    """Of the checkpoint, "" for a base alone. Raises BadInput where the two do not belong together."""
    if not model.get("checkpoint_id"):
        return ""
    checkpoint = session.get(Checkpoint, model["checkpoint_id"])
    if checkpoint is None:
        raise NotFound("A checkpoint of this matrix is gone; choose another.")
    if checkpoint.base_id != model["base_id"]:
        raise BadInput(f"The checkpoint “{checkpoint.name}” was not trained for that base.")
    return checkpoint.method


def _identified(cell: Evaluate, key: str, matrix_id: str) -> Evaluate:
    if not matrix_id:
        return cell
    evaluation_id = hashlib.sha256(f"{matrix_id}/{key}".encode()).hexdigest()[:32]
    return Evaluate(**{**cell.to_json(), "matrix_id": matrix_id, "evaluation_id": evaluation_id})

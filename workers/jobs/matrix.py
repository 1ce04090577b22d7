"""Job kind `matrix`: evaluates every combination of models, suites, temperatures and trees, each in a job. No torch.

A cell of a matrix is one combination, measured by one `evaluate` job.
The same request gives the same cells in the same order with the same ids, so that a retry finds the measured cells.
"""

import hashlib
import json
from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any, ClassVar

from sqlalchemy.orm import Session

from models.methods import METHODS, trees
from models.methods.settings import setting
from speculoos.errors import BadInput, NotFound
from speculoos.suites import BUILT_IN_SUITE_NAME, suite_title
from tracking import queries
from tracking.tables import Base, Checkpoint, Dataset, Table
from workers.jobs.arguments import each, option
from workers.jobs.evaluate import DTYPE_HELP, MAX_NUMBER, SEED_HELP, Evaluate, check_sampling
from workers.jobs.request import Namer, Request

MAX_CELLS = 1000  # maximum number of cells; each is a job and a cell of the grid on the page
MAX_COMBINATIONS = 50 * MAX_CELLS
"""Maximum number of combinations including the left out ones; a form enumerates all of them on every change."""


class Matrix(Request):
    """`models` are {"base_id", "checkpoint_id"}, `suites` ids of datasets ("" for the built-in questions), `drafting`
    options of drafters ({} for the checkpoint's own tree)."""

    kind: ClassVar[str] = "matrix"
    title: ClassVar[str] = "Evaluation matrix"
    work: ClassVar[str] = "workers.child.work.evaluate:run_matrix"
    verb: ClassVar[str] = "Evaluate"

    models: list[dict[str, str]]
    suites: list[str] = [""]
    temperatures: list[float] = setting([0.0], "0 is greedy; may be repeated.", label="Temperatures")
    drafting: list[dict[str, Any]] = [{}]
    top_ps: list[float] = setting([1.0], "Used above temperature 0; may be repeated.")
    dtypes: list[str] = setting([""], f"{DTYPE_HELP} May be repeated.")
    limit: int = setting(
        20,
        "Questions to answer of each suite, taken evenly from its categories.",
        1,
        MAX_NUMBER,
        label="Max questions per suite",
    )
    max_tokens: int = setting(128, "Max new tokens per turn.", 1, MAX_NUMBER, label="Max tokens per turn")
    seed: int = setting(0, SEED_HELP)

    def inputs(self) -> list[tuple[type[Table], str]]:
        rows = [(Base, model["base_id"]) for model in self.models]
        rows += [(Checkpoint, model["checkpoint_id"]) for model in self.models if model.get("checkpoint_id")]
        return [*dict.fromkeys([*rows, *((Dataset, suite) for suite in self.suites if suite)])]

    def check_options(self) -> None:
        check_sampling(self.temperatures, self.top_ps, self.dtypes)

    def check(self, session: Session) -> None:
        """Raises BadInput for a matrix without cells or with too many."""
        if (combined := prod(map(len, self._axes()))) > MAX_COMBINATIONS:
            raise BadInput(f"These are {combined:,} combinations; at most {MAX_COMBINATIONS:,} are allowed.")
        count = len(matrix_evaluations(session, self))
        if not count:
            raise BadInput(
                "There is nothing to measure: choose models, suites, temperatures and trees that fit together."
            )
        if count > MAX_CELLS:
            raise BadInput(
                f"This would be {count:,} evaluations, the maximum is {MAX_CELLS:,}; choose fewer models or suites."
            )

    def default_name(self, session: Session) -> str:
        return f"{_count_of(len(self.models), 'model')} on {_count_of(len(self.suites), 'suite')}"

    def shard_requests(self, session: Session) -> list[Evaluate]:
        return matrix_evaluations(session, self)

    def command(self, named: Namer) -> list[str]:
        arguments = ["matrix"]
        for model in self.models:
            base, checkpoint = named(model["base_id"]), model.get("checkpoint_id")
            arguments += option("model", f"{base}@{named(checkpoint)}" if checkpoint else base)
        arguments += [
            argument
            for suite in self.suites
            for argument in option("suite", named(suite) if suite else BUILT_IN_SUITE_NAME)
        ]
        arguments += each("temperature", self.temperatures, [0.0]) + each("top-p", self.top_ps, [1.0])
        arguments += each("dtype", self.dtypes, [""])
        arguments += each(
            "tree", [trees.editable_text(options) for options in self.drafting], [trees.CHECKPOINT_OPTIONS]
        )
        return [
            *arguments,
            "--limit",
            str(self.limit),
            "--max-tokens",
            str(self.max_tokens),
            *option("seed", self.seed, 0),
        ]

    def _axes(self) -> tuple[Sequence[Any], ...]:
        return self.models, self.drafting, self.suites, self.temperatures, self.top_ps, self.dtypes


def matrix_evaluations(session: Session, request: Matrix, matrix_id: str = "") -> list[Evaluate]:
    """The evaluations of a matrix; with `matrix_id`, the id of its job, each has the id of its row. Left out are trees
    that the checkpoint's method does not support, trees without a checkpoint, and values of top-p at temperature 0."""
    unique = {json.dumps(cell.to_json(), sort_keys=True): cell for cell in _combinations(session, request)}
    if not matrix_id:
        return list(unique.values())
    ids = (hashlib.sha256(f"{matrix_id}/{key}".encode()).hexdigest()[:32] for key in unique)
    pairs = zip(unique.values(), ids, strict=True)
    return [cell.changed(matrix_id=matrix_id, evaluation_id=row_id) for cell, row_id in pairs]


def cell_name(session: Session, cell: Evaluate) -> str:
    """`starter@my-heads · GSM8K · T 0 · chain 4`."""
    model = queries.model_name(session, cell.base_id, cell.checkpoint_id or None)
    parts = [model, suite_name(session, cell.dataset_id), *setting_words(cell.to_json())]
    return " · ".join(parts)[:200]


def setting_words(cell: dict[str, Any]) -> Iterator[str]:
    """Temperature, top-p and precision if not the default, and the tree."""
    yield f"T {cell.get('temperature', 0.0):g}"
    if cell.get("top_p", 1.0) != 1:
        yield f"top-p {cell['top_p']:g}"
    if cell.get("dtype"):
        yield cell["dtype"]
    yield trees.drafting_text(cell.get("drafting") or {}) or "own tree"


def suite_name(session: Session, dataset_id: str) -> str:
    """Title of the suite, or name of another dataset. Raises NotFound."""
    if not dataset_id:
        return suite_title(BUILT_IN_SUITE_NAME)
    data = session.get(Dataset, dataset_id)
    if data is None:
        raise NotFound("A question set of this matrix was deleted; choose another.")
    return suite_title((data.config or {}).get("suite") or "") or data.name


def _combinations(session: Session, request: Matrix) -> Iterator[Evaluate]:
    methods = {model.get("checkpoint_id") or "": _method(session, model) for model in request.models}
    for model, drafting, suite, temperature, top_p, dtype in product(*request._axes()):
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
            limit=request.limit,
            max_tokens=request.max_tokens,
            seed=request.seed,
        )


def _method(session: Session, model: dict[str, str]) -> str:
    """Method of the checkpoint; "" without one. Raises NotFound, or BadInput for a checkpoint of another base."""
    if not model.get("checkpoint_id"):
        return ""
    checkpoint = session.get(Checkpoint, model["checkpoint_id"])
    if checkpoint is None:
        raise NotFound("A draft of this matrix was deleted; choose another.")
    if checkpoint.base_id != model["base_id"]:
        raise BadInput(f"The draft “{checkpoint.name}” was not trained for that base.")
    return checkpoint.method


def _count_of(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

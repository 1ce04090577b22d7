"""Queries of the leaderboard. Filters and sort order form a view, which is encoded in the page's URL."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, Select, false, func, select
from sqlalchemy.orm import Session

from tracking.tables import Base, Checkpoint, Evaluation

MEASURED = (Evaluation.state == "ready", Evaluation.suite != "")
"""Excludes replays of recorded answers, which have no suite and are shown with their checkpoint."""
THIS_ENGINE, OWN_TREE = "here", "own"  # filter values: measured by this engine; drafted with the checkpoint's own tree
DEFAULT_SORT = "-speedup"
SORTS: dict[str, Any] = {
    "model": Evaluation.name,
    "suite": Evaluation.questions,
    "temperature": Evaluation.temperature,
    "tree": Evaluation.tree,
    "speedup": Evaluation.speedup,
    "tau": Evaluation.tau,
    "speed": Evaluation.tokens_per_second,
    "machine": Evaluation.machine,
    "made": func.coalesce(Evaluation.finished_at, Evaluation.created_at),
}
question_count = Evaluation.result["prompts"].as_integer()
"""Number of questions; results of few and of many questions are not comparable."""
NUMBER = re.compile(r"\d{1,9}(\.\d+)?", re.ASCII)
MAX_LENGTH = 200  # maximum characters of a value in a URL


@dataclass(frozen=True)
class LeaderboardView:
    """Filter value of each column ("" for all), and `sort`, a key of SORTS, with a minus for descending order."""

    base: str = ""
    checkpoint: str = ""
    suite: str = ""
    prompts: str = ""
    temperature: str = ""
    tree: str = ""
    machine: str = ""
    source: str = ""
    matrix: str = ""
    sort: str = DEFAULT_SORT

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "LeaderboardView":
        """The view of a URL's query; unknown parameters are ignored."""
        values = {field.name: str(query.get(field.name) or "")[:MAX_LENGTH] for field in fields(cls)}
        sort = values["sort"] if values["sort"].removeprefix("-") in SORTS else DEFAULT_SORT
        return cls(**{**values, "sort": sort})

    @property
    def filtered(self) -> bool:
        """Whether a filter leaves out rows."""
        return self != LeaderboardView(sort=self.sort)

    def query(self, **more: str) -> str:
        """The query part of its URL, without the `?`."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        values |= {"sort": "" if self.sort == DEFAULT_SORT else self.sort, **more}
        return urlencode({key: value for key, value in values.items() if value})

    def sorted_by(self, key: str) -> "LeaderboardView":
        """Sort by another column, or reverse the current one. Numbers start in descending order."""
        first = key if key in ("model", "suite", "temperature", "tree", "machine") else f"-{key}"
        other = {key: f"-{key}", f"-{key}": key}
        return replace(self, sort=other.get(self.sort, first))

    def select(self) -> Select[Any]:
        """The query of the evaluations in order; rows without a value in the sorted column come last. Speeds of each
        server are listed after those of the local engine: they include the prompt and the network."""
        query = select(Evaluation).where(*MEASURED, *self._conditions())
        key = self.sort.removeprefix("-")
        order = SORTS[key].desc() if self.sort.startswith("-") else SORTS[key].asc()
        groups = (Evaluation.source,) if key in ("speedup", "speed") else ()
        return query.order_by(SORTS[key].is_(None), *groups, order, Evaluation.created_at.desc(), Evaluation.id)

    def _conditions(self) -> list[ColumnElement[bool]]:
        equal = {
            Evaluation.base_id: self.base,
            Evaluation.checkpoint_id: self.checkpoint,
            Evaluation.questions: self.suite,
            Evaluation.machine: self.machine,
            Evaluation.matrix_id: self.matrix,
        }
        conditions = [column == value for column, value in equal.items() if value]
        if self.tree:
            conditions.append(Evaluation.tree == ("" if self.tree == OWN_TREE else self.tree))
        if self.source:
            conditions.append(Evaluation.source == ("" if self.source == THIS_ENGINE else self.source))
        for column, text in ((question_count, self.prompts), (Evaluation.temperature, self.temperature)):
            if text:
                conditions.append(column == float(text) if NUMBER.fullmatch(text) else false())
        return conditions


Choice = tuple[str, str]  # (label, value)


def filter_choices(session: Session) -> dict[str, list[Choice]]:
    filters = (Evaluation.base_id, Evaluation.checkpoint_id, Evaluation.questions, Evaluation.temperature)
    filters += (Evaluation.tree, Evaluation.machine, Evaluation.source, question_count)
    rows = session.execute(select(*filters).where(*MEASURED).distinct()).all()
    columns = list(zip(*rows, strict=True)) or [()] * len(filters)
    base, checkpoint, suite, temperature, tree, machine, source, prompts = ({*column} - {None} for column in columns)
    return {
        "base": _named(session, Base, base),
        "checkpoint": _named(session, Checkpoint, checkpoint),
        "suite": [(name, name) for name in sorted(suite) if name],
        "prompts": [(f"{count:,}", str(count)) for count in sorted(prompts)],
        "temperature": [(f"{value:g}", f"{value:g}") for value in sorted(temperature)],
        "tree": [(name or "its own", name or OWN_TREE) for name in sorted(tree)],
        "machine": [(name, name) for name in sorted(machine) if name],
        "source": [(name or "this engine", name or THIS_ENGINE) for name in sorted(source)],
    }


def signature(session: Session) -> str:
    """A short text that changes when an evaluation is added, measured or deleted."""
    counted = select(func.count(), func.max(Evaluation.created_at)).where(*MEASURED)
    return ".".join(map(str, session.execute(counted).one()))


def comparable_evaluations(session: Session, row: Evaluation) -> list[Evaluation]:
    """`row`, and of every other source the newest evaluation of the same draft, questions and temperature."""
    if row.base_id is None:
        return [row]
    same = (
        Evaluation.base_id == row.base_id,
        Evaluation.checkpoint_id.is_not_distinct_from(row.checkpoint_id),
        question_count.is_not_distinct_from((row.result or {}).get("prompts")),
        Evaluation.questions == row.questions,
        Evaluation.temperature == row.temperature,
    )
    query = select(Evaluation).where(*MEASURED, *same)
    newest: dict[str, Evaluation] = {row.source: row}
    for each in session.scalars(query.order_by(Evaluation.created_at.desc(), Evaluation.id).limit(200)):
        newest.setdefault(each.source, each)
    return sorted(newest.values(), key=lambda each: each.source)


def _named(session: Session, table: type[Base] | type[Checkpoint], ids: set[str]) -> list[Choice]:
    rows = session.execute(select(table.name, table.id).where(table.id.in_(ids)).order_by(table.name, table.id))
    return [(name, row_id) for name, row_id in rows]

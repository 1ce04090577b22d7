"""Evaluations as people compare them: which are shown and in which order is one View, which an address holds."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import ColumnElement, Select, func, select
from sqlalchemy.orm import Session

from tracking.tables import Base, Checkpoint, Evaluation

MEASURED = (Evaluation.state == "ready", Evaluation.suite != "")
"""Replays of recorded answers are evaluations without a suite; they are shown with their checkpoint."""
HERE, OWN = "here", "own"
"""Values of filters: measured by this engine; drafted as the checkpoint is tuned."""
BEST = "-speedup"
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
"""How many questions were asked: figures of few and of many are not alike."""
COUNT = re.compile("[0-9]{1,9}")
LONGEST = 200
"""Most characters of a value in an address."""


@dataclass(frozen=True)
class LeaderboardView:
    """What is shown: a value for each column to narrow by ("" for all), and `sort`, a key of SORTS, largest first
    with a minus."""

    base: str = ""
    checkpoint: str = ""
    suite: str = ""
    prompts: str = ""
    temperature: str = ""
    tree: str = ""
    machine: str = ""
    source: str = ""
    matrix: str = ""
    sort: str = BEST

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "LeaderboardView":
        """The view an address asks for; what it does not know is left out."""
        known = {field.name: str(query.get(field.name) or "")[:LONGEST] for field in fields(cls)}
        sort = known["sort"] if known["sort"].removeprefix("-") in SORTS else BEST
        return cls(**{**known, "sort": sort})

    def query(self, **more: str) -> str:
        """What follows the `?` of its address."""
        said = {field.name: getattr(self, field.name) for field in fields(self)}
        said |= {"sort": "" if self.sort == BEST else self.sort, **more}
        return urlencode({key: value for key, value in said.items() if value})

    def sorted_by(self, key: str) -> "LeaderboardView":
        """By another column; by the same one the other way round. Figures begin with the largest."""
        first = key if key in ("model", "suite", "temperature", "tree", "machine") else f"-{key}"
        other = {key: f"-{key}", f"-{key}": key}
        return replace(self, sort=other.get(self.sort, first))

    def select(self) -> Select[Any]:
        """The evaluations, in order; those without the figure come last."""
        query = select(Evaluation).where(*MEASURED, *self._conditions())
        column = SORTS[self.sort.removeprefix("-")]
        order = column.desc() if self.sort.startswith("-") else column.asc()
        return query.order_by(column.is_(None), order, Evaluation.created_at.desc(), Evaluation.id)

    def _conditions(self) -> list[ColumnElement[bool]]:
        equal = {
            Evaluation.base_id: self.base,
            Evaluation.checkpoint_id: self.checkpoint,
            Evaluation.questions: self.suite,
            Evaluation.machine: self.machine,
            Evaluation.matrix_id: self.matrix,
        }
        found = [column == value for column, value in equal.items() if value]
        if self.tree:
            found.append(Evaluation.tree == ("" if self.tree == OWN else self.tree))
        if self.source:
            found.append(Evaluation.source == ("" if self.source == HERE else self.source))
        if self.prompts:
            found.append(question_count == (int(self.prompts) if COUNT.fullmatch(self.prompts) else -1))
        if self.temperature:
            found.append(Evaluation.temperature == _number(self.temperature))
        return found


Choice = tuple[str, str]
"""(words, value)."""


def choices(session: Session) -> dict[str, list[Choice]]:
    """What each column can be narrowed to, from the evaluations there are."""
    kinds = (Evaluation.base_id, Evaluation.checkpoint_id, Evaluation.questions, Evaluation.temperature)
    kinds += (Evaluation.tree, Evaluation.machine, Evaluation.source, question_count)
    rows = session.execute(select(*kinds).where(*MEASURED).distinct()).all()
    columns = list(zip(*rows, strict=True)) or [()] * len(kinds)
    base, checkpoint, suite, temperature, tree, machine, source, prompts = ({*column} - {None} for column in columns)
    return {
        "base": _named(session, Base, base),
        "checkpoint": _named(session, Checkpoint, checkpoint),
        "suite": [(name, name) for name in sorted(suite) if name],
        "prompts": [(f"{count:,}", str(count)) for count in sorted(prompts)],
        "temperature": [(f"{value:g}", f"{value:g}") for value in sorted(temperature)],
        "tree": [(name or "its own", name or OWN) for name in sorted(tree)],
        "machine": [(name, name) for name in sorted(machine) if name],
        "source": [(name or "this engine", name or HERE) for name in sorted(source)],
    }


def signature(session: Session) -> str:
    """A short text that changes when an evaluation comes, is measured or goes."""
    counted = select(func.count(), func.max(Evaluation.created_at)).where(*MEASURED)
    return ".".join(map(str, session.execute(counted).one()))


def counterparts(session: Session, row: Evaluation) -> list[Evaluation]:
    """Measurements of the same draft on as many of the same questions, here and of servers; the newest of each
    source first."""
    if row.base_id is None:
        return [row]
    same = (Evaluation.base_id == row.base_id, Evaluation.checkpoint_id.is_not_distinct_from(row.checkpoint_id))
    alike = question_count.is_not_distinct_from((row.result or {}).get("prompts"))
    asked = (alike, Evaluation.questions == row.questions, Evaluation.temperature == row.temperature)
    query = select(Evaluation).where(*MEASURED, *same, *asked)
    newest: dict[str, Evaluation] = {row.source: row}
    for each in session.scalars(query.order_by(Evaluation.created_at.desc(), Evaluation.id).limit(200)):
        newest.setdefault(each.source, each)
    return sorted(newest.values(), key=lambda each: each.source)


def _named(session: Session, table: type[Base] | type[Checkpoint], ids: set[str]) -> list[Choice]:
    found = session.execute(select(table.name, table.id).where(table.id.in_(ids)).order_by(table.name, table.id))
    return [(name, row_id) for name, row_id in found]


def _number(text: str) -> float:
    """The number a text says; one that no evaluation has, where it says none."""
    try:
        return float(text)
    except ValueError:
        return -1.0

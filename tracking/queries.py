"""Queries of bases, datasets, checkpoints, evaluations and experiments.

A reference is a name or an id. A model's name is `base` or `base@checkpoint`.
"""

from collections.abc import Iterable
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from speculoos.errors import BadInput, Conflict, NotFound
from tracking.names import KIND_NAMES, STARTER, check_name, is_empty_failure, split_model
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Experiment, Table

Row = TypeVar("Row", bound=Table)


def find_base(session: Session, reference: str) -> Base:
    """By name or id. Raises NotFound with the names of existing rows."""
    return _find(session, Base, reference)


def find_dataset(session: Session, reference: str) -> Dataset:
    """By name or id. Raises NotFound with the names of existing rows."""
    return _find(session, Dataset, reference)


def find_checkpoint(session: Session, reference: str, base_id: str = "") -> Checkpoint:
    """By `base@checkpoint`, id, or name (within one base, or unique over all). Raises NotFound or BadInput."""
    if checkpoint := session.get(Checkpoint, reference):
        return checkpoint
    name = reference
    if "@" in reference:
        base_name, name = split_model(reference)
        base_id = find_base(session, base_name).id
    query = select(Checkpoint).where(Checkpoint.name == name)
    rows = list(session.scalars(query.where(Checkpoint.base_id == base_id) if base_id else query))
    if len(rows) > 1:
        raise BadInput(f"Several models have a draft {name!r}; specify one as MODEL@{name}.")
    if not rows:
        raise _missing(session, Checkpoint, reference)
    return rows[0]


def find_model(session: Session, reference: str) -> tuple[Base, Checkpoint | None]:
    """The rows of `base` or `base@checkpoint`. Raises NotFound."""
    if "@" not in reference:
        return find_base(session, reference), None
    checkpoint = find_checkpoint(session, reference)
    return session.get_one(Base, checkpoint.base_id), checkpoint


def find_experiment(session: Session, reference: str) -> Experiment:
    """By name (the newest) or id. Raises NotFound."""
    return _find(session, Experiment, reference)


def ensure_experiment(session: Session, name: str) -> Experiment:
    """The newest experiment with this name or id; created if it does not exist."""
    try:
        return find_experiment(session, name)
    except NotFound:
        experiment = Experiment(name=check_name(name))
        session.add(experiment)
        session.flush()
        return experiment


def names(session: Session, ids: Iterable[str | None] | None = None) -> dict[str, str]:
    """Name of the bases, datasets and checkpoints with these ids, or of all, by id."""
    wanted_ids = None if ids is None else {*ids} - {None, ""}
    if wanted_ids == set():
        return {}
    found: dict[str, str] = {}
    for table in (Base, Dataset, Checkpoint):
        conditions = () if wanted_ids is None else (table.id.in_(wanted_ids),)
        found |= dict(session.execute(select(table.id, table.name).where(*conditions)).tuples().all())
    return found


def model_name(session: Session, base_id: str, checkpoint_id: str | None = None) -> str:
    """`base` or `base@checkpoint`, the model's name in the API and the web app."""
    name = session.get_one(Base, base_id).name
    return f"{name}@{session.get_one(Checkpoint, checkpoint_id).name}" if checkpoint_id else name


def must_be_ready(row: Base | Dataset | Checkpoint) -> None:
    """Raises Conflict with the reason unless the row's state is ready."""
    noun = KIND_NAMES[row.__tablename__]
    if row.state == "failed":
        raise Conflict(f"The {noun} {row.name!r} was not finished; retry the job that makes it, or choose another.")
    if row.state != "ready":
        raise Conflict(f"The {noun} {row.name!r} is still being created; wait for its job.")


def listed(table: type[Row], *conditions: ColumnElement[bool], ready_only: bool = False) -> Select[Any]:
    """The query of a list, without unfinished rows without files: newest first, bases as added after the starter."""
    order = (Base.source != STARTER, Base.created_at) if table is Base else (table.created_at.desc(),)
    query = select(table).where(~is_empty_failure(table), *conditions).order_by(*order, table.id)
    return query.where(table.state == "ready") if ready_only else query


def bases(session: Session, ready_only: bool = False) -> list[Base]:
    return list(session.scalars(listed(Base, ready_only=ready_only)))


def datasets(session: Session, kind: str = "", ready_only: bool = False) -> list[Dataset]:
    """`kind` is prompts or conversations, "" for both."""
    conditions = [Dataset.kind == kind] if kind else []
    return list(session.scalars(listed(Dataset, *conditions, ready_only=ready_only)))


def checkpoints(session: Session, base_id: str = "", ready_only: bool = False) -> list[Checkpoint]:
    """Of one base or of all."""
    conditions = [Checkpoint.base_id == base_id] if base_id else []
    return list(session.scalars(listed(Checkpoint, *conditions, ready_only=ready_only)))


def evaluations(session: Session, checkpoint_id: str) -> list[Evaluation]:
    """Evaluations of one checkpoint, newest first."""
    query = select(Evaluation).where(Evaluation.checkpoint_id == checkpoint_id)
    return list(session.scalars(query.order_by(Evaluation.created_at.desc())))


def _find(session: Session, table: type[Row], reference: str) -> Row:
    if row := session.get(table, reference):
        return row
    by_name = select(table).where(table.name == reference).order_by(table.created_at.desc()).limit(1)
    if row := session.scalar(by_name):
        return row
    raise _missing(session, table, reference)


def _missing(session: Session, table: type[Table], reference: str) -> NotFound:
    noun = KIND_NAMES[table.__tablename__]
    shown = [~is_empty_failure(table)] if table in (Base, Dataset, Checkpoint) else []
    names = list(session.scalars(select(table.name).where(*shown).order_by(table.created_at.desc()).limit(6)))
    existing_names = (
        "known are " + ", ".join(names[:5]) + (", …" if len(names) > 5 else "") if names else "there is none yet"
    )
    return NotFound(f"There is no {noun} {reference!r}; {existing_names}.")


def trained_on(checkpoint: Checkpoint) -> list[str]:
    """Ids of the datasets a checkpoint was trained on, the primary one first."""
    more = (checkpoint.config or {}).get("more_dataset_ids") or ()
    return list(dict.fromkeys(row_id for row_id in (checkpoint.dataset_id, *more) if row_id))

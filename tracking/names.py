"""Names of rows: validation and generation of unused names."""

import re
from typing import Any

from sqlalchemy import ColumnElement, and_, func, select
from sqlalchemy.orm import Session

from speculoos.errors import BadInput, Conflict
from tracking.tables import Base, Checkpoint, Dataset, Experiment, Table

STARTER = "starter"  # source and name of the starter base model. The name always means the same weights.
DRAFTER = re.compile(r"^:|:(?=(ngram|mtp)$)")
"""Pages read a model's name with :ngram or :mtp at its end, and a draft with a colon at its start, as a drafter without
a draft (app/views/targets.py)."""
LONGEST = 120
LONGEST_USER = 80
KIND_NAMES = {"bases": "model", "datasets": "dataset", "checkpoints": "draft"}
KIND_NAMES |= {"experiments": "experiment", "evaluations": "evaluation"}
UNIQUE = (Base, Dataset, Checkpoint, Experiment)


def check_name(name: str) -> str:
    """The stripped name. Raises BadInput if it is empty, too long, has an @ or a control character, or is read as a
    drafter."""
    name = _check_text(name, LONGEST)
    if not name:
        raise BadInput("A name cannot be empty.")
    if "@" in name:
        raise BadInput(f"The name {name!r} has an @, which separates a model from its draft; use another sign.")
    if DRAFTER.search(name):
        raise BadInput(
            f"The name {name!r} starts with a colon or ends in :ngram or :mtp, which names a drafter; use another one."
        )
    return name


def check_user(name: str) -> str:
    """The stripped user name for jobs; may be empty. Raises BadInput."""
    return _check_text(name, LONGEST_USER)


def _check_text(name: str, longest: int) -> str:
    name = name.strip()
    if len(name) > longest:
        raise BadInput(f"The name {name[:30]!r}… has {len(name)} characters; at most {longest} are allowed.")
    if not name.isprintable():
        raise BadInput(f"The name {name!r} has a character that cannot be shown; use plain text.")
    return name


def find_named(session: Session, table: type[Table], name: str, base_id: str = "") -> Any | None:
    """The row with this name (checkpoint names are unique per base model), or None."""
    return session.scalar(select(table).where(*_scope(table, base_id), table.name == name))


def free_name(session: Session, table: type[Table], like: str, base_id: str = "") -> str:
    """`like`, or the first unused of `like-2`, `like-3`, …"""
    like = to_allowed_name(like[:LONGEST])
    query = select(table.name).where(*_scope(table, base_id), func.length(table.name) >= len(like))
    used = set(session.scalars(query))
    return next(n for n in (like, *(f"{like}-{i}" for i in range(2, len(used) + 3))) if n not in used)


def is_empty_failure(table: Any) -> ColumnElement[bool]:
    """Matches bases, datasets or checkpoints whose job failed or was cancelled before it stored any files. A retry of
    the job fills them; until then lists leave them out and new rows may take their names."""
    empty = table.state == "failed", table.path == ""
    return and_(*empty, table.rows == 0) if table is Dataset else and_(*empty)


def release_name(session: Session, table: type[Table], name: str, base_id: str = "") -> None:
    """Rename the failed and empty row that has `name`, if there is one, so that the name is free."""
    query = select(table).where(*_scope(table, base_id), table.name == name, is_empty_failure(table))
    if row := session.scalar(query):
        row.name = free_name(session, table, f"{name[: LONGEST - 20]} (not finished)", base_id)
        session.flush()


def check_free_name(session: Session, table: type[Table], name: str, base_id: str = "") -> str:
    """The checked name. Raises BadInput, or Conflict if it is taken."""
    name = check_name(name)
    if find_named(session, table, name, base_id):
        raise Conflict(f"There is a {KIND_NAMES[table.__tablename__]} named {name!r} already; choose another name.")
    return name


def split_model(name: str) -> tuple[str, str]:
    """(base, checkpoint) of a model name `base` or `base@checkpoint`; "" for no checkpoint."""
    base, _, checkpoint = name.partition("@")
    return base, checkpoint


def server_of(model: str) -> str:
    """The endpoint of a run's model `@endpoint`, whose server chooses base and draft; "" for models of this home."""
    return model[1:] if model.startswith("@") else ""


def to_allowed_name(text: str) -> str:
    """Convert any text to an allowed name: no @, no control characters, not read as a drafter, stripped."""
    plain = re.sub(r"\s+", " ", "".join(c if c.isprintable() else " " for c in text.replace("@", "-")))
    return DRAFTER.sub("-", plain.strip()) or "x"


def _scope(table: type[Table], base_id: str) -> list[ColumnElement[bool]]:
    return [table.base_id == base_id] if table is Checkpoint else []

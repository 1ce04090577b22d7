"""Paths inside the home, stored relative to it (`home:checkpoints/<id>/attempt-1`), so that a home can be moved.

These column types convert a path inside the home when it is written and read; other paths (a model in the user's own
folder, the installation's starter) are stored unchanged. The home belongs to the SQLAlchemy engine, see tracking.db.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import Text
from sqlalchemy.engine import Dialect, Engine
from sqlalchemy.types import TypeDecorator

from tracking.values import Json, storable

MARK = "home:"
KEYS = frozenset({"path", "location", "draft_path"})
"""Keys of JSON values (requests, settings, results) that may name a file or folder."""


def set_home(engine: Engine, home: Path) -> None:
    engine.dialect.speculoos_home = home


def to_stored_path(home: Path | None, text: str) -> str:
    """The stored form of a path: relative with the mark if it is inside the home."""
    if home is None or not text.startswith(f"{home}/"):
        return text
    return MARK + text[len(str(home)) + 1 :]


def from_stored_path(home: Path | None, text: str) -> str:
    """The absolute path of a stored path, in the current home."""
    if home is None or not text.startswith(MARK):
        return text
    return f"{home}/{text[len(MARK) :]}"


class HomePath(TypeDecorator):
    """A column with a path or another text, such as a hub id."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value and to_stored_path(_home(dialect), value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return value and from_stored_path(_home(dialect), value)


class HomeJson(Json):
    """A JSON object in which values of `KEYS` may be paths."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return map_paths(storable(value), lambda text: to_stored_path(_home(dialect), text))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        value = super().process_result_value(value, dialect)
        return map_paths(value, lambda text: from_stored_path(_home(dialect), text))


def map_paths(value: Any, change: Any) -> Any:
    """`value` with `change` applied to every text under one of `KEYS`, at any depth."""
    if isinstance(value, dict):
        return {
            key: change(item) if key in KEYS and isinstance(item, str) else map_paths(item, change)
            for key, item in value.items()
        }
    return [map_paths(item, change) for item in value] if isinstance(value, list) else value


def _home(dialect: Dialect) -> Path | None:
    return getattr(dialect, "speculoos_home", None)

"""Where files of a home lie, as rows say it: `home:checkpoints/<id>/attempt-1`, so that a home can be moved or copied.

Columns of these types turn a path inside the home into that form when it is written, and back when it is read; what
lies elsewhere (a model in a folder of the user's own, the installation's starter) stays as it is. The home is that of
the engine a row comes through: see tracking.db. Nobody else needs to know.
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


def tell_home(engine: Engine, home: Path) -> None:
    """Rows that come through this engine belong to this home."""
    engine.dialect.speculoos_home = home


def stored(home: Path | None, text: str) -> str:
    """A path as rows keep it: with the mark when it lies inside the home."""
    if home is None or not text.startswith(f"{home}/"):
        return text
    return MARK + text[len(str(home)) + 1 :]


def resolved(home: Path | None, text: str) -> str:
    """The path that `stored` was given, in the home as it is called now."""
    if home is None or not text.startswith(MARK):
        return text
    return f"{home}/{text[len(MARK) :]}"


class HomePath(TypeDecorator):
    """A path, or another text such as a hub id."""

    impl = Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: Dialect) -> str | None:
        return value and stored(_home(dialect), value)

    def process_result_value(self, value: str | None, dialect: Dialect) -> str | None:
        return value and resolved(_home(dialect), value)


class HomeJson(Json):
    """A JSON object in which the texts under `KEYS` may be paths."""

    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Dialect) -> Any:
        return each_path(storable(value), lambda text: stored(_home(dialect), text))

    def process_result_value(self, value: Any, dialect: Dialect) -> Any:
        found = super().process_result_value(value, dialect)
        return each_path(found, lambda text: resolved(_home(dialect), text))


def each_path(value: Any, change: Any) -> Any:
    """`value` with `change` applied to every text under one of `KEYS`, however deep."""
    if isinstance(value, dict):
        return {
            key: change(item) if key in KEYS and isinstance(item, str) else each_path(item, change)
            for key, item in value.items()
        }
    return [each_path(item, change) for item in value] if isinstance(value, list) else value


def _home(dialect: Dialect) -> Path | None:
    return getattr(dialect, "speculoos_home", None)

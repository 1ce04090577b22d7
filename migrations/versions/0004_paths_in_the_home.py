"""Paths inside the home are stored relative to it (`home:checkpoints/<id>/attempt-1`), so that a home can be moved.

Paths inside a home are recognized by the row's own id in them, which also yields the earlier locations of a home that
was moved before.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import postgresql

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

MARK = "home:"
KEYS = {"path", "location", "draft_path"}
PLACES = {"bases": "models", "datasets": "datasets", "checkpoints": "checkpoints"}
TEXTS = {"bases": ("path", "location"), "datasets": ("path",), "checkpoints": ("path",)}
VALUES = {"datasets": ("config",), "checkpoints": ("config",), "jobs": ("request", "result")}
UPLOAD = r"/uploads/[0-9a-f]{64}/.+"
"""Path of an uploaded file: Gradio names its folder by the hash of the content."""
Change = Callable[[str], str]


def upgrade() -> None:
    homes = sorted(set(_homes()), key=len, reverse=True)

    def relative(text: str) -> str:
        home = next((home for home in homes if text.startswith(f"{home}/")), None)
        return MARK + text[len(home) + 1 :] if home else text

    _change_all(relative)


def downgrade() -> None:
    home = op.get_bind().dialect.speculoos_home
    _change_all(lambda text: f"{home}/{text[len(MARK) :]}" if text.startswith(MARK) else text)


def _homes() -> Iterator[str]:
    """Every folder that was the home when a row was written."""
    for name, place in PLACES.items():
        for row_id, path in _rows(name, "path"):
            yield from _before(rf"/{place}/{re.escape(row_id)}(?:/.*)?", path)
    checkpoints = {row_id for row_id, _ in _rows("checkpoints", "path")}
    for _, request in _rows("jobs", "request"):
        yield from _homes_in(request if isinstance(request, dict) else {}, checkpoints)


def _homes_in(request: dict[str, Any], checkpoints: set[str]) -> Iterator[str]:
    if request.get("delete_after"):
        yield from _before(UPLOAD, request.get("path"))
    draft = (request.get("settings") or {}).get("draft_path")
    if isinstance(draft, str) and checkpoints & set(draft.split("/")):
        yield from _before(r"/checkpoints/[^/]+/attempt-\d+(?:/.*)?", draft)


def _before(ending: str, path: Any) -> list[str]:
    """The part of an absolute path before `ending` (a pattern); empty if the path does not match."""
    found = re.fullmatch(f"(/.+?){ending}", path) if isinstance(path, str) else None
    return [found[1]] if found else []


def _change_all(change: Change) -> None:
    for columns, each in ((TEXTS, lambda text: change(text) if text else text), (VALUES, lambda v: _deep(v, change))):
        for name, keys in columns.items():
            for key in keys:
                _change(name, key, each)


def _change(name: str, key: str, change: Callable[[Any], Any]) -> None:
    table = _table(name, key)
    for row_id, value in _rows(name, key):
        if (changed := change(value)) != value:
            op.get_bind().execute(sa.update(table).where(table.c.id == row_id).values({key: changed}))


def _deep(value: Any, change: Change) -> Any:
    if isinstance(value, dict):
        return {k: change(v) if k in KEYS and isinstance(v, str) else _deep(v, change) for k, v in value.items()}
    return [_deep(item, change) for item in value] if isinstance(value, list) else value


def _rows(name: str, key: str) -> list[Any]:
    table = _table(name, key)
    return list(op.get_bind().execute(sa.select(table.c.id, table.c[key])))


def _table(name: str, key: str) -> sa.TableClause:
    json = sa.JSON().with_variant(postgresql.JSONB(), "postgresql")
    return sa.table(name, sa.column("id", sa.String), sa.column(key, json if key in VALUES.get(name, ()) else sa.Text))

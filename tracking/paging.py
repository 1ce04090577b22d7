"""Paging of long lists. A page starts at a row instead of an offset, so that new rows do not shift it."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

SIZE = 50  # rows on a page
Row = TypeVar("Row")


@dataclass(frozen=True)
class Page(Generic[Row]):
    """`rows`, the first of which is number `first` of `total`. `newer` and `older` are the places of the adjacent
    pages, or None; the first page's place is ""."""

    rows: list[Row]
    first: int
    total: int
    newer: str | None
    older: str | None


def page(session: Session, query: Select[Any], place: str = "", size: int = SIZE) -> Page[Any]:
    """The page of an ordered `query` of one table that starts at `place`.

    A place is `<offset>.<row id>`. The row is used if it still exists, so that new rows do not shift the page;
    otherwise the offset. An invalid place means the first page.
    """
    table = query.column_descriptions[0]["entity"]
    if not place:
        rows = list(session.scalars(query.limit(size + 1)))
        total = session.scalar(select(func.count()).select_from(query.order_by(None).subquery())) or 0
        return Page(rows[:size], 1 if rows else 0, total, None, f"{size}.{rows[size].id}" if rows[size:] else None)
    ids = list(session.scalars(query.with_only_columns(table.id)))
    start = _start(ids, place, size)
    page_ids = ids[start : start + size]
    by_id = {row.id: row for row in session.scalars(select(table).where(table.id.in_(page_ids)))}
    newer, older = max(0, start - size), start + size
    return Page(
        [by_id[row_id] for row_id in page_ids if row_id in by_id],
        start + 1 if page_ids else 0,
        len(ids),
        None if start == 0 else f"{newer}.{ids[newer]}" if newer else "",
        f"{older}.{ids[older]}" if older < len(ids) else None,
    )


def _start(ids: list[str], place: str, size: int) -> int:
    number, _, row_id = place.partition(".")
    if row_id in ids:
        return ids.index(row_id)
    start = int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 0
    return min(start, max(0, len(ids) - 1)) // size * size

"""Paging of long lists."""

from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from sqlalchemy import Select, func, select
from sqlalchemy.orm import Session

SIZE = 50  # rows on a page
MOST_COUNTED = 1000  # rows: counting all of a long list takes longer than reading a page
Row = TypeVar("Row")


@dataclass(frozen=True)
class Page(Generic[Row]):
    """`rows`, the first of which is number `first` of `total`. `newer` and `older` are the offsets of the adjacent
    pages, or None; the first page's offset is ""."""

    rows: list[Row]
    first: int
    total: int
    newer: str | None
    older: str | None
    is_exact: bool = True

    @property
    def range(self) -> str:
        """`1–50 of 312`, `12` if all rows are shown, `1–50 of 1,000+` if not all were counted."""
        if len(self.rows) == self.total:
            return f"{self.total:,}"
        return f"{self.first:,}–{self.first + len(self.rows) - 1:,} of {self.total:,}" + ("" if self.is_exact else "+")


def page(session: Session, query: Select[Any], offset: str = "", size: int = SIZE) -> Page[Any]:
    """The page of an ordered `query` at `offset`, a number as text; an invalid one means the first page."""
    number = offset.partition(".")[0]  # URLs of earlier versions have a row's id after a point
    start = int(number) if number.isascii() and number.isdigit() and len(number) < 9 else 0
    most = ((start + size) // MOST_COUNTED + 1) * MOST_COUNTED
    total = session.scalar(select(func.count()).select_from(query.order_by(None).limit(most + 1).subquery())) or 0
    total, is_exact = min(total, most), total <= most
    start = min(start, max(0, total - 1)) // size * size
    rows = list(session.scalars(query.offset(start).limit(size)))
    newer = None if start == 0 else str(start - size) if start > size else ""
    older = str(start + size) if start + size < total else None
    return Page(rows, start + 1 if rows else 0, total, newer, older, is_exact)

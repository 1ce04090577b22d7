"""Query of a list: filter, search and sort order. It is part of the URL, so a reload, a bookmark or a second tab shows
the same list."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Select, or_

from app.paths import PAGES
from app.widgets.elements import empty_state

SORT_ORDERS = {"Newest first": "", "Oldest first": "oldest", "By name": "name"}
"""Label of a sort order → its value in the URL."""
SORT_COLUMNS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "oldest": lambda table: (table.created_at, table.id),
    "name": lambda table: (table.name, table.id),
}
LONGEST = 200
"""Maximum number of characters of a search."""


@dataclass(frozen=True)
class ListQuery:
    """Name of a filter ("" and "All" show all rows), words to search in names and notes, and the sort order."""

    filter: str = ""
    search: str = ""
    sort: str = ""

    @classmethod
    def of(cls, values: Any, filters: tuple[str, ...]) -> "ListQuery":
        """From [filter, search, sort] of a page or its URL. Invalid values become the defaults."""
        chosen, search, sort = (str(value or "") for value in (*values, "", "", "")[:3])
        chosen = chosen if chosen in filters else filters[0]
        return cls(chosen, search.strip()[:LONGEST], sort if sort in SORT_COLUMNS else "")

    @property
    def values(self) -> list[str]:
        """[filter, search, sort], the value of the hidden component."""
        return list(astuple(self))

    @property
    def is_filtered(self) -> bool:
        """Whether a filter or a search may leave out rows."""
        return self.filter not in ("", "All") or bool(self.search)


ALL_ROWS = ListQuery()


def list_url(page: str, offset: str = "", query: ListQuery = ALL_ROWS, first: str = "All") -> str:
    """URL of the list on `page` that starts at the row `offset`; the filter `first` is the default and is left out."""
    chosen = "" if query.filter == first else query.filter
    fields = {"show": chosen, "find": query.search, "order": query.sort, "from": offset}
    encoded = urlencode({key: value for key, value in fields.items() if value})
    return f"{PAGES[page]}?{encoded}" if encoded else PAGES[page]


def filtered_query(query: Select[Any], list_query: ListQuery) -> Select[Any]:
    """`query` restricted to rows whose name or note contains every word of the search, sorted."""
    table = query.column_descriptions[0]["entity"]
    for word in list_query.search.split():
        query = query.where(or_(*(text.icontains(word, autoescape=True) for text in (table.name, table.note))))
    return query.order_by(None).order_by(*SORT_COLUMNS[list_query.sort](table)) if list_query.sort else query


def empty_list_html(query: ListQuery, word: str, *begin: str) -> str:
    """Text of an empty list; `word` is what the list contains, `begin` (text, link, link text) says how to add one."""
    if query.is_filtered:
        return empty_state("No matches", f"No {word} matches the filter and the search.")
    return empty_state(f"No {word} yet", *begin)


WRITE_QUERY_SCRIPT = """(filter, search, sort) => {
  const address = new URL(location.href);
  const fields = {show: filter === FIRST ? '' : filter, find: search, order: SORT_ORDERS[sort] || '', from: ''};
  for (const [key, value] of Object.entries(fields)) {
    if (value) address.searchParams.set(key, value); else address.searchParams.delete(key);
  }
  history.replaceState(history.state, '', address);
  return [filter, search, sort];
}"""
"""Writes the query into the URL before the list is requested."""

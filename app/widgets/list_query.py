"""Query of a list: filter, search words and order. It is part of the URL, so a reload, a bookmark or a second tab shows
the same list."""

from collections.abc import Callable
from dataclasses import astuple, dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Select, or_

from app.widgets.elements import empty_state

ORDERS = {"Newest first": "", "Oldest first": "oldest", "By name": "name"}
"""Label of an order → its value in the URL."""
ORDER_COLUMNS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "oldest": lambda table: (table.created_at, table.id),
    "name": lambda table: (table.name, table.id),
}
LONGEST = 200
"""Maximum number of characters of a search."""


@dataclass(frozen=True)
class ListQuery:
    """Name of a filter ("" and "All" show all rows), words to search in names and notes, and an order."""

    which: str = ""
    words: str = ""
    order: str = ""

    @classmethod
    def of(cls, values: Any, filters: tuple[str, ...]) -> "ListQuery":
        """From [filter, words, order] of a page or its URL. Invalid values become the defaults."""
        which, words, order = (str(value or "") for value in (*values, "", "", "")[:3])
        which = which if which in filters else filters[0]
        return cls(which, words.strip()[:LONGEST], order if order in ORDER_COLUMNS else "")

    @property
    def values(self) -> list[str]:
        """[filter, words, order], the value of the hidden component."""
        return list(astuple(self))

    @property
    def is_filtered(self) -> bool:
        """Whether a filter or a search may leave out rows."""
        return self.which not in ("", "All") or bool(self.words)


ALL_ROWS = ListQuery()


def list_url(page: str, place: str = "", query: ListQuery = ALL_ROWS, first: str = "All") -> str:
    """URL of the list on `page` that starts at the row `place`; the filter `first` is the default and is left out."""
    which = "" if query.which == first else query.which
    fields = {"show": which, "find": query.words, "order": query.order, "from": place}
    encoded = urlencode({key: value for key, value in fields.items() if value})
    return f"/{page}?{encoded}" if encoded else f"/{page}"


def filtered_query(query: Select[Any], wanted: ListQuery) -> Select[Any]:
    """`query` restricted to rows whose name or note contains every word of `wanted`, in its order."""
    table = query.column_descriptions[0]["entity"]
    for word in wanted.words.split():
        query = query.where(or_(*(text.icontains(word, autoescape=True) for text in (table.name, table.note))))
    return query.order_by(None).order_by(*ORDER_COLUMNS[wanted.order](table)) if wanted.order else query


def empty_list_html(query: ListQuery, word: str, *begin: str) -> str:
    """Text of an empty list; `word` is what the list contains, `begin` (text, link, link text) says how to add one."""
    if query.is_filtered:
        return empty_state("None of these", f"No {word} matches the filter and the search. Change them to see others.")
    return empty_state(f"No {word} yet", *begin)


WRITE_QUERY_SCRIPT = """(show, find, order) => {
  const address = new URL(location.href);
  const fields = {show: show === FIRST ? '' : show, find, order: ORDERS[order] || '', from: ''};
  for (const [key, value] of Object.entries(fields)) {
    if (value) address.searchParams.set(key, value); else address.searchParams.delete(key);
  }
  history.replaceState(history.state, '', address);
  return [show, find, order];
}"""
"""Writes the query into the URL before the list is requested."""

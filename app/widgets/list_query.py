"""Query of a list: filter, search words and order. It is part of the URL, so a reload, a bookmark or a second tab shows
the same list."""

from collections.abc import Callable, Mapping
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


class ListQuery(str):
    """Name of a filter, with the words to search in names and notes and the order. A plain `str` is a filter only."""

    words: str
    order: str

    def __new__(cls, which: str, words: str = "", order: str = "") -> "ListQuery":
        query = super().__new__(cls, which)
        query.words, query.order = words.strip()[:LONGEST], order if order in ORDER_COLUMNS else ""
        return query

    @classmethod
    def of(cls, values: Any, filters: tuple[str, ...]) -> "ListQuery":
        """From [filter, words, order] of a page or its URL. Invalid values become the defaults."""
        which, find, order = (str(value or "") for value in (*values, "", "", "")[:3])
        return cls(which if which in filters else filters[0], find, order)

    @property
    def values(self) -> list[str]:
        """[filter, words, order], the value of the hidden component."""
        return [str(self), self.words, self.order]

    @property
    def order_words(self) -> str:
        return next(words for words, order in ORDERS.items() if order == self.order)


def list_query_of_url(query: Mapping[str, str], filters: tuple[str, ...]) -> ListQuery:
    """The query in `?show=`, `?find=` and `?order=`."""
    return ListQuery.of([query.get("show"), query.get("find"), query.get("order")], filters)


def list_url(page: str, place: str = "", list_query: str = "", first: str = "All") -> str:
    """URL of the list on `page` that starts at the row `place`; the filter `first` is the default and is left out."""
    query = list_query if isinstance(list_query, ListQuery) else ListQuery(list_query)
    fields = {"show": "" if query in ("", first) else str(query), "find": query.words, "order": query.order}
    encoded = urlencode({key: value for key, value in (fields | {"from": place}).items() if value})
    return f"/{page}?{encoded}" if encoded else f"/{page}"


def is_filtered(list_query: str) -> bool:
    """Whether a filter or a search may leave out rows."""
    return list_query not in ("", "All") or bool(getattr(list_query, "words", ""))


def filtered_query(query: Select[Any], list_query: str) -> Select[Any]:
    """`query` restricted to rows whose name or note contains every word of `list_query`, in its order."""
    table = query.column_descriptions[0]["entity"]
    words, order = getattr(list_query, "words", ""), getattr(list_query, "order", "")
    for word in words.split():
        query = query.where(or_(*(text.icontains(word, autoescape=True) for text in (table.name, table.note))))
    return query.order_by(None).order_by(*ORDER_COLUMNS[order](table)) if order else query


def empty_list_html(list_query: str, word: str, *begin: str) -> str:
    """Text of an empty list; `word` is what the list contains, `begin` (text, link, link text) says how to add one."""
    if is_filtered(list_query):
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

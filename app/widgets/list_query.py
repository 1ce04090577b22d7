"""Query of a list: filter, search and sort order. It is part of the URL, so a reload, a bookmark or a second tab shows
the same list."""

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Select, or_

from app.i18n import N_, t
from app.paths import PAGES
from app.widgets.elements import empty_state

SORT_ORDERS = {N_("Newest first"): "", N_("Oldest first"): "oldest", N_("By name"): "name"}
"""Label of a sort order → its value in the URL."""
SORT_COLUMNS: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "oldest": lambda table: (table.created_at, table.id),
    "name": lambda table: (table.name, table.id),
}
LONGEST = 200
"""Maximum number of characters of a search."""


@dataclass(frozen=True)
class ListQuery:
    """Name of a filter ("" and "All" show all rows), words to search in names and notes, the sort order, and the id of
    the base model whose rows are shown ("" for all)."""

    filter: str = ""
    search: str = ""
    sort: str = ""
    base: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str], filters: tuple[str, ...]) -> "ListQuery":
        """From the parameters of a URL. Invalid values become the defaults."""
        chosen, search, sort, base = (query.get(name) or "" for name in ("show", "find", "order", "of"))
        chosen = chosen if chosen in filters else filters[0]
        return cls(chosen, search.strip()[:LONGEST], sort if sort in SORT_COLUMNS else "", base[:64])

    @property
    def is_filtered(self) -> bool:
        """Whether a filter or a search may leave out rows."""
        return self.is_chosen or bool(self.search or self.base)

    @property
    def is_chosen(self) -> bool:
        """Whether a filter other than the first is chosen."""
        return self.filter not in ("", "All")


ALL_ROWS = ListQuery()


def list_url(page: str, offset: str = "", query: ListQuery = ALL_ROWS) -> str:
    """URL of the list on `page` that starts at the row `offset`."""
    chosen = query.filter if query.is_chosen else ""
    fields = {"show": chosen, "find": query.search, "order": query.sort, "of": query.base, "from": offset}
    encoded = urlencode({key: value for key, value in fields.items() if value})
    return f"{PAGES[page]}?{encoded}" if encoded else PAGES[page]


def filtered_query(query: Select[Any], list_query: ListQuery) -> Select[Any]:
    """`query` restricted to rows whose name or note contains every word of the search, and of one base, sorted."""
    table = query.column_descriptions[0]["entity"]
    if list_query.base and hasattr(table, "base_id"):
        query = query.where(table.base_id == list_query.base)
    for word in list_query.search.split():
        query = query.where(or_(*(text.icontains(word, autoescape=True) for text in (table.name, table.note))))
    return query.order_by(None).order_by(*SORT_COLUMNS[list_query.sort](table)) if list_query.sort else query


def empty_list_html(query: ListQuery, noun: str, *how_to_add: str) -> str:
    """Text of an empty list; `noun` is what the list contains. `how_to_add`: text, link and link text."""
    none, empty = f"No {noun} matches the filter and the search.", f"No {noun} yet"
    return empty_state(t("No matches"), t(none)) if query.is_filtered else empty_state(t(empty), *how_to_add)


def narrow_script(names: Iterable[str]) -> str:
    """Script of an event whose inputs are the URL's query and the fields `names`: writes them into the URL first."""
    write = f"window.speculoos.narrow({json.dumps([*names])}, values);"
    return f"(_, ...values) => {{ {write} return [window.location.search, ...values]; }}"

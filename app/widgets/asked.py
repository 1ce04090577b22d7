"""What a list was asked for: a filter, words to look for, an order. All of it is in the address, so that a reload, a
bookmark and a second tab show the same."""

from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Select, or_

from app.widgets.elements import empty_state

ORDERS = {"Newest first": "", "Oldest first": "oldest", "By name": "name"}
"""Words of an order, and how the address calls it."""
BY: dict[str, Callable[[Any], tuple[Any, ...]]] = {
    "oldest": lambda table: (table.created_at, table.id),
    "name": lambda table: (table.name, table.id),
}
LONGEST = 200


class ListQuery(str):
    """A filter's name; with it what is looked for in names and notes, and the order. A plain text is a filter."""

    words: str
    order: str

    def __new__(cls, which: str, words: str = "", order: str = "") -> "ListQuery":
        made = super().__new__(cls, which)
        made.words, made.order = words.strip()[:LONGEST], order if order in BY else ""
        return made

    @classmethod
    def of(cls, values: Any, filters: tuple[str, ...]) -> "ListQuery":
        """From what a page or its address says: [filter, words, order], each checked."""
        which, find, order = (str(value or "") for value in (*values, "", "", "")[:3])
        return cls(which if which in filters else filters[0], find, order)

    @property
    def values(self) -> list[str]:
        """As the hidden component keeps it."""
        return [str(self), self.words, self.order]

    @property
    def order_words(self) -> str:
        return next(words for words, order in ORDERS.items() if order == self.order)


def of_address(query: Mapping[str, str], filters: tuple[str, ...]) -> ListQuery:
    """What `?show=`, `?find=` and `?order=` ask for."""
    return ListQuery.of([query.get("show"), query.get("find"), query.get("order")], filters)


def address(page: str, place: str = "", asked: str = "", first: str = "All") -> str:
    """Of the list on `page` from `place` on, asked for `asked`; `first` is the filter that needs no word."""
    of = asked if isinstance(asked, ListQuery) else ListQuery(asked)
    said = {"show": "" if of in ("", first) else str(of), "find": of.words, "order": of.order, "from": place}
    query = urlencode({key: value for key, value in said.items() if value})
    return f"/{page}?{query}" if query else f"/{page}"


def is_narrowed(asked: str) -> bool:
    """Whether some rows may be left out."""
    return asked not in ("", "All") or bool(getattr(asked, "words", ""))


def narrowed(query: Select[Any], asked: str) -> Select[Any]:
    """The rows of `query` whose name or note has the words, in the order that was asked for."""
    table = query.column_descriptions[0]["entity"]
    words, order = getattr(asked, "words", ""), getattr(asked, "order", "")
    for word in words.split():
        query = query.where(or_(*(text.icontains(word, autoescape=True) for text in (table.name, table.note))))
    return query.order_by(None).order_by(*BY[order](table)) if order else query


def nothing(asked: str, word: str, *begin: str) -> str:
    """What a list of things called `word` shows without a row: `begin` says how to get one (text, link, its words)."""
    if is_narrowed(asked):
        return empty_state("None of these", f"No {word} is called or noted so; look for other words.")
    return empty_state(f"No {word} yet", *begin)


WRITE = """(show, find, order) => {
  const address = new URL(location.href);
  const said = {show: show === FIRST ? '' : show, find, order: ORDERS[order] || '', from: ''};
  for (const [key, value] of Object.entries(said)) {
    if (value) address.searchParams.set(key, value); else address.searchParams.delete(key);
  }
  history.replaceState(history.state, '', address);
  return [show, find, order];
}"""
"""Puts what was asked for into the address, before the list is asked for it."""

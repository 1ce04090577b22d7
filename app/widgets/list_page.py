"""A page that lists rows and opens one by `?id=`: the base of Models, Data, Jobs and Drafts.

Opening, clicks and a poll read the rows again; the poll redraws only what changed. A long list has pages (`?from=`)
whose start does not move while rows are added. The query (`?show=`, `?find=`, `?order=`) is part of the URL too.
"""

import json
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import arrivals
from app.widgets.elements import block, hidden, hidden_json, notice, on_change, on_load, on_typing
from app.widgets.fields import dropdown, one_line
from app.widgets.list_query import SORT_ORDERS, WRITE_QUERY_SCRIPT, ListQuery, list_url
from app.widgets.picker import on_pick, pick, picker
from app.widgets.problems import show_errors
from app.widgets.text import safe
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Job, Table

SIGNATURE_SEPARATOR = " # "
"""Separates a signature from the checksums of the parts drawn for it."""
CONTEXT_KEYS = ("base",)
"""Keys of the URL's query that stay when another row is opened."""
Html = Callable[[Session, ListQuery, str], str]


class Panel(Protocol):
    """Components of the open row. `live` outputs are redrawn when the row changes, `outputs` when it is opened;
    `query` holds the parameters of the URL."""

    live: list[Any]
    outputs: list[Any]

    def live_view(self, session: Session, row: Any) -> list[Any]: ...

    def view(self, session: Session, row: Any | None, query: Mapping[str, str]) -> list[Any]: ...


@dataclass(frozen=True)
class Listing:
    """A list of rows of `table` on `page`; `word` is the name of one row. `html(session, list_query, offset)` draws a
    page of the list for a ListQuery.

    `signature` returns a text that changes with the list, `row_signature` one that changes with the open row.
    """

    page: str
    table: type[Table]
    word: str
    html: Html
    signature: Callable[[Session], str]
    filters: tuple[str, ...] = field(default=("All",))
    hint: Callable[[Session, Mapping[str, str]], str] = lambda session, query: ""
    """HTML above the list for parameters of the URL; those in CONTEXT_KEYS stay when a row is opened."""
    row_signature: Callable[[Session, str], str] | None = None
    bulk: bool = False
    """Whether rows have checkboxes (app/widgets/bulk.py)."""

    def now(self, session: Session, row_id: str) -> str:
        """Signature of what a page shows: the list, or the row with this id."""
        if row_id and self.row_signature:
            return f"{row_id}|{self.row_signature(session, row_id)}{arrivals.signature()}"
        return f"{row_id}|{self.signature(session)}{arrivals.signature()}"


def signature_of(table: type[Table]) -> Callable[[Session], str]:
    """A text that changes when a row of `table` or its job changes."""

    def signature(session: Session) -> str:
        query = select(table.id, table.name, table.state, Job.version).outerjoin(Job, Job.id == table.job_id)
        states = session.execute(query.order_by(table.id)).all()
        return str(hash(tuple((i, n, s, v if s == "pending" else 0) for i, n, s, v in states)))

    return signature


class ListPage:
    """The components. Create those above the list inside `with page.listing():` and those of the panel inside
    `with page.opened():`, then call `wire(panel)`."""

    def __init__(self, settings: Settings, what: Listing):
        self.settings, self.what = settings, what
        self.chosen = hidden(f"{what.page}-chosen")
        self.seen = hidden(f"{what.page}-seen")
        self.offset = hidden(f"{what.page}-offset")
        self.url_query = hidden(f"{what.page}-url-query")
        self.context = hidden_json(f"{what.page}-context", {})
        self.list_query = hidden_json(f"{what.page}-list-query", [])
        self.problem = block(elem_id=f"{what.page}-problem")

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Components shown while no row is open; the list comes last."""
        what = self.what
        with gr.Column(elem_id=f"{what.page}-listing") as self.list:
            yield
            with gr.Row(elem_classes="sp-find"):
                self.filter = gr.Radio(
                    list(what.filters),
                    value=what.filters[0],
                    label="Show",
                    elem_id=f"{what.page}-filter",
                    container=False,
                    show_label=False,
                    visible=len(what.filters) > 1,
                    scale=3,
                )
                self.search = one_line("Search", f"{what.page}-find", scale=2)
                sort = {"value": next(iter(SORT_ORDERS)), "label": "Sort", "elem_id": f"{what.page}-order"}
                self.sort = dropdown(list(SORT_ORDERS), min_width=190, **sort)
            self.fields = [self.filter, self.search, self.sort]
            self.table = picker(f"{what.page}-table", main=True, bulk=what.bulk)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Components shown while a row is open."""
        with gr.Column(visible=False, elem_id=f"{self.what.page}-detail") as self.detail:
            self.back = picker(f"{self.what.page}-back")
            yield
        self.frame = [self.chosen, self.seen, self.problem, self.list, self.detail, self.table, self.back]

    def wire(self, panel: Panel) -> None:
        """Connect the events: opening, clicks and the poll."""
        self.panel = panel
        outputs = [*self.frame, *panel.outputs]
        on_load(self.open_address, [*outputs, self.offset, self.context, self.list_query, *self.fields])
        for listed in (self.table, self.back):
            state = [self.list_query, self.offset, self.context]
            on_pick(listed, self.url_query, self.pick, state, [*outputs, self.offset])
        drawn = [self.table, self.back, self.offset, self.list_query]
        write = WRITE_QUERY_SCRIPT.replace("FIRST", json.dumps(self.what.filters[0]))
        on_typing(self.fields, self.narrow, self.fields, drawn, write.replace("SORT_ORDERS", json.dumps(SORT_ORDERS)))
        shown = [self.chosen, self.list_query, self.offset, self.seen]
        names = {"chosen": f"{self.what.page}-chosen", "seen": f"{self.what.page}-seen"}
        on_change(self.what.page, self.poll, shown, [self.seen, self.table, *panel.live], **names)

    @property
    def again(self) -> tuple[Callable[..., list[Any]], list[Any], list[Any]]:
        """(function, inputs, outputs) that redraw everything except form fields."""
        return self.redraw, [self.chosen, self.list_query, self.offset], [*self.frame, *self.panel.live]

    def open_address(self, request: gr.Request) -> list[Any]:
        """Show the row or the list of the URL."""
        query = {key: str(value)[:200] for key, value in request.query_params.items()}
        context, offset = {key: query[key] for key in CONTEXT_KEYS if key in query}, query.get("from", "")[:64]
        list_query = self._read_query([query.get("show"), query.get("find"), query.get("order")])
        shown = self.open(query.get("id", ""), list_query.values, offset, query)
        sort = next(label for label, sort in SORT_ORDERS.items() if sort == list_query.sort)
        return [*shown, offset, context, list_query.values, list_query.filter, list_query.search, sort]

    def pick(self, row_id: str, start: str, list_query: Any, offset: str, query: Mapping[str, str]) -> list[Any]:
        """Open the clicked row, keeping `offset`, the start of the list, or show the list from `start` on."""
        offset = offset if row_id else start
        return [*self.open(row_id, list_query, offset, query), offset]

    def open(self, row_id: str, values: Any, offset: str = "", query: Mapping[str, str] | None = None) -> list[Any]:
        """Show one row, or the list if `row_id` is empty or unknown. `values` are those of a ListQuery."""
        list_query = self._read_query(values)
        try:
            with reading(self.settings) as session:
                row = session.get(self.what.table, row_id) if row_id else None
                missing = f"This {self.what.word} does not exist: it was deleted, or the URL is wrong."
                problem = ""
                if row is None:
                    problem = notice(missing, "warn") if row_id else self.what.hint(session, query or {})
                return [
                    *self._frame(session, row, list_query, offset, problem),
                    *self.panel.view(session, row, query or {}),
                ]
        except SpeculoosError as error:
            unchanged = [gr.skip()] * (len(self.frame) + len(self.panel.outputs) - 3)
            return ["", "", notice(str(error), "bad"), *unchanged]

    def redraw(self, row_id: str, list_query: Any, offset: str) -> list[Any]:
        """As `open`, for the outputs of the page itself and the live outputs of the panel."""
        return self.open(row_id, list_query, offset)[: len(self.frame) + len(self.panel.live)]

    @show_errors(gr.skip(), gr.skip(), gr.skip())
    def narrow(self, chosen: str, search: str, sort: str) -> list[Any]:
        """The list for a new query from its start, the link back to it, the start and the query's values."""
        query = self._read_query([chosen, search, SORT_ORDERS.get(sort, "")])
        with reading(self.settings) as session:
            return [self.what.html(session, query, ""), self._back(query, ""), "", query.values]

    def _read_query(self, values: Any) -> ListQuery:
        return ListQuery.of(values if isinstance(values, list) else [values], self.what.filters)

    def poll(self, row_id: str, values: Any, offset: str, seen: str) -> Any:
        """The parts that changed since `seen`; gr.skip() if none did or the database is not available."""
        list_query = self._read_query(values)
        try:
            with reading(self.settings) as session:
                now = self.what.now(session, row_id)
                if now == seen.partition(SIGNATURE_SEPARATOR)[0]:
                    return gr.skip()
                row = session.get(self.what.table, row_id) if row_id else None
                live = self.panel.live_view(session, row) if row else [gr.skip()] * len(self.panel.live)
                listed = gr.skip() if row else self.what.html(session, list_query, offset)
                return changed_parts(seen, now, [listed, *live])
        except SpeculoosError:
            return gr.skip()

    def _frame(self, session: Session, row: Any | None, list_query: ListQuery, offset: str, problem: str) -> list[Any]:
        chosen = row.id if row else ""
        shown = (gr.Column(visible=row is None), gr.Column(visible=row is not None))
        listed = gr.skip() if row else self.what.html(session, list_query, offset)
        return [chosen, self.what.now(session, chosen), problem, *shown, listed, self._back(list_query, offset)]

    def _back(self, list_query: ListQuery, offset: str) -> str:
        """Link back to the list with its query and start."""
        href = list_url(self.what.page, offset, list_query, self.what.filters[0])
        return pick(self.what.page, "", safe(f"← All {self.what.word}s"), class_="sp-back", href=href)


def changed_parts(seen: str, now: str, parts: list[Any]) -> list[Any]:
    """[the new `seen` (signature and checksums), *parts], with gr.skip() for texts that the page shows already."""
    before = seen.partition(SIGNATURE_SEPARATOR)[2].split()
    sums = [str(zlib.crc32(part.encode())) if isinstance(part, str) else "-" for part in parts]
    known = before if len(before) == len(sums) else ["-"] * len(sums)
    fresh = [gr.skip() if new == old != "-" else part for part, new, old in zip(parts, sums, known, strict=True)]
    return [now + SIGNATURE_SEPARATOR + " ".join(sums), *fresh]

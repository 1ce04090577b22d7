"""A page that lists rows and opens one by `?id=`: the base of Models, Data, Jobs, Drafts, Experiments and Results.

The URL holds all that a page shows: the open row, the query of the list (`?show=`, `?find=`, `?order=`) and its first
row (`?from=`), which does not move while rows are added. The poll reads the rows again and redraws only what changed.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol
from urllib.parse import parse_qsl, urlencode

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import store_downloads
from app.i18n import N_, t
from app.paths import PAGES
from app.widgets.bulk import Action, on_bulk
from app.widgets.elements import QUIET, block, hidden, notice, on_change, on_load, on_typing
from app.widgets.fields import BARE, dropdown, one_line
from app.widgets.list_query import SORT_ORDERS, ListQuery, narrow_script
from app.widgets.picker import on_pick, pick, picker
from app.widgets.problems import show_errors
from app.widgets.text import safe
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Job, Table

SIGNATURE_SEPARATOR = " # "
"""Separates a signature from the checksums of the parts drawn for it."""
LIST_KEYS = ("show", "find", "order", "of", "from", "base")
"""Parameters of the URL that stay when a row is opened (picker.FOLLOW) or closed."""
LONGEST_QUERY, LONGEST_VALUE = 64_000, 2000
Html = Callable[[Session, Any, str], str]


class Panel(Protocol):
    """Components of the open row. `live` outputs are redrawn when the row changes, `outputs` only when it is opened;
    `query` holds the parameters of the URL."""

    live: list[Any]
    outputs: list[Any]

    def live_view(self, session: Session, row: Any) -> list[Any]: ...

    def view(self, session: Session, row: Any | None, query: Mapping[str, str]) -> list[Any]: ...


@dataclass(frozen=True)
class Listing:
    """A list of rows of `table` on `page`; `noun` is the name of one row. `html(session, list_query, offset)` draws a
    page of the list for the result of `query_of`.

    `signature` returns a text that changes with the list, `row_signature` one that changes with the open row.
    """

    page: str
    table: type[Table]
    noun: str
    html: Html
    signature: Callable[[Session], str]
    filters: tuple[str, ...] = field(default=(N_("All"),))
    hint: Callable[[Session, Mapping[str, str]], str] = lambda session, query: ""
    """HTML above the list for parameters of the URL."""
    row_signature: Callable[[Session, str], str] | None = None
    bulk: bool = False
    """Whether rows have checkboxes (app/widgets/bulk.py)."""
    keys: tuple[str, ...] = LIST_KEYS

    def now(self, session: Session, row_id: str) -> str:
        """Signature of what a page shows: the list, or the row with this id."""
        if row_id and self.row_signature:
            return f"{row_id}|{self.row_signature(session, row_id)}{store_downloads.signature()}"
        return f"{row_id}|{self.signature(session)}{store_downloads.signature()}"

    def query_of(self, query: Mapping[str, str]) -> Any:
        """The list's query in the URL."""
        return ListQuery.of(query, self.filters)

    def fields(self) -> dict[str, Any]:
        """Parameter of the URL → its control above the list."""
        with gr.Row(elem_classes="sp-find"):
            choices = [(t(name), name if number else "") for number, name in enumerate(self.filters)]
            shown = gr.Radio(
                choices,
                value="",
                label=t("Show"),
                elem_id=f"{self.page}-filter",
                visible=len(choices) > 1,
                scale=3,
                **BARE,
            )
            name = t("Search")
            search = one_line(name, f"{self.page}-find", placeholder=name, scale=2, **BARE)
            sort = {"value": "", "label": t("Sort"), "elem_id": f"{self.page}-order", "min_width": 190, **BARE}
            orders = [(t(label), value) for label, value in SORT_ORDERS.items()]
            return {"show": shown, "find": search, "order": dropdown(orders, **sort)}

    def field_values(self, session: Session, query: Mapping[str, str]) -> list[Any]:
        """Values of `fields`."""
        shown = self.query_of(query)
        return [shown.filter if shown.is_chosen else "", shown.search, shown.sort]


def signature_of(table: type[Table]) -> Callable[[Session], str]:
    """A text that changes when a row of `table` or its job changes."""

    def signature(session: Session) -> str:
        query = select(table.id, table.name, table.state, Job.version).outerjoin(Job, Job.id == table.job_id)
        states = session.execute(query.order_by(table.id)).all()
        return str(hash(tuple((i, n, s, v if s == "pending" else 0) for i, n, s, v in states)))

    return signature


class ListPage:
    """The components. Create those above the list inside `with page.listing():` and those of the panel inside
    `with page.opened():`, then call `wire(panel, manage)` (see `app.views.manage.build_list`)."""

    def __init__(self, settings: Settings, what: Listing):
        self.settings, self.what = settings, what
        self.chosen, self.seen, self.query = (hidden(f"{what.page}-{name}") for name in ("chosen", "seen", "query"))
        self.problem = block(elem_id=f"{what.page}-problem")

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Components shown while no row is open; the list comes last."""
        with gr.Column(elem_id=f"{self.what.page}-listing") as self.list:
            yield
            self.bulk_message = block(elem_id=f"{self.what.page}-bulk-message")
            self.fields = self.what.fields()
            self.table = picker(f"{self.what.page}-table", main=True, bulk=self.what.bulk)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Components shown while a row is open."""
        with gr.Column(visible=False, elem_id=f"{self.what.page}-detail") as self.detail:
            self.back = picker(f"{self.what.page}-back")
            yield
        self.frame = [self.chosen, self.seen, self.problem, self.query, self.list, self.detail, self.table, self.back]

    def wire(self, panel: Panel, manage: Any) -> None:
        """Connect the events: opening, clicks and the poll. `manage` are the controls of app/views/manage.py."""
        self.panel, self.manage, fields = panel, manage, [*self.fields.values()]
        outputs = [*self.frame, *panel.live, *panel.outputs, *manage.outputs, *fields]
        self.output_count = len(outputs)
        on_load(self.open_address, outputs)
        for listed in (self.table, self.back):
            on_pick(listed, self.query, lambda query: self.open(fields_of(query)), outputs)
        drawn = [self.table, self.back, self.query]
        on_typing(fields, self.narrow, [self.query, *fields], drawn, narrow_script(self.fields))
        names = {"chosen": f"{self.what.page}-chosen", "seen": f"{self.what.page}-seen"}
        shown = [self.chosen, self.query, self.seen]
        on_change(self.what.page, self.poll, shown, [self.seen, self.table, *panel.live], **names)
        manage.wire(*self.again)

    def on_bulk(self, actions: Mapping[str, Action]) -> None:
        """Run an action on the selected rows when its button is pressed."""
        redraw, inputs, outputs = self.again
        on_bulk(self.table, actions, self.bulk_message).then(redraw, inputs, outputs, **QUIET)

    @property
    def again(self) -> tuple[Callable[..., list[Any]], list[Any], list[Any]]:
        """(function, inputs, outputs) that redraw everything except form fields."""
        return self.redraw, [self.chosen, self.query], [*self.frame, *self.panel.live]

    def open_address(self, request: gr.Request) -> list[Any]:
        """Show the row or the list of the URL."""
        return self.open(fields_of(str(request.query_params)))

    def open(self, query: Mapping[str, str]) -> list[Any]:
        """Show the row with the id in `query`, or the list if there is no such row."""
        row_id = query.get("id", "")[:64]
        try:
            with reading(self.settings) as session:
                row = session.get(self.what.table, row_id) if row_id else None
                missing = f"This {self.what.noun} does not exist: it was deleted, or the URL is wrong."
                problem = ""
                if row is None:
                    problem = notice(t(missing), "warn") if row_id else self.what.hint(session, query)
                frame = self._frame(session, row, query, problem)
                more = [*self.panel.view(session, row, query), *self.manage.view(row)]
                return [*frame, *self._live(session, row), *more, *self.what.field_values(session, query)]
        except SpeculoosError as error:
            return ["", "", notice(str(error), "bad"), *[gr.skip()] * (self.output_count - 3)]

    def redraw(self, row_id: str, query: str) -> list[Any]:
        """As `open`, for the outputs of the page itself and the live outputs of the panel."""
        return self.open({**fields_of(query), "id": row_id})[: len(self.frame) + len(self.panel.live)]

    @show_errors(gr.skip(), gr.skip())
    def narrow(self, query: str, *_values: Any) -> list[Any]:
        """The list for the query that the script wrote into the URL, the link back to it, and the query."""
        fields = fields_of(query)
        with reading(self.settings) as session:
            return [self._listed(session, fields), self._back(fields), query]

    def poll(self, row_id: str, query: str, seen: str) -> Any:
        """The parts that changed since `seen`; gr.skip() if none did or the database is not available."""

        def draw(session: Session) -> list[Any]:
            row = session.get(self.what.table, row_id) if row_id else None
            listed = gr.skip() if row else self._listed(session, fields_of(query))
            return [listed, *self._live(session, row)]

        return redrawn(self.settings, seen, lambda session: self.what.now(session, row_id), draw)

    def _frame(self, session: Session, row: Any | None, query: Mapping[str, str], problem: str) -> list[Any]:
        chosen = row.id if row else ""
        shown = (gr.Column(visible=row is None), gr.Column(visible=row is not None))
        listed = gr.skip() if row else self._listed(session, query)
        now = self.what.now(session, chosen)
        return [chosen, now, problem, urlencode(query), *shown, listed, self._back(query)]

    def _live(self, session: Session, row: Any | None) -> list[Any]:
        return self.panel.live_view(session, row) if row else [gr.skip()] * len(self.panel.live)

    def _listed(self, session: Session, query: Mapping[str, str]) -> str:
        return self.what.html(session, self.what.query_of(query), query.get("from", ""))

    def _back(self, query: Mapping[str, str]) -> str:
        """Link back to the list with its query and start."""
        query_text = urlencode({key: query[key] for key in self.what.keys if query.get(key)})
        href = PAGES[self.what.page] + (f"?{query_text}" if query_text else "")
        back = f"← All {self.what.noun}s"
        return pick(self.what.page, "", safe(t(back)), class_="sp-back", href=href)


def fields_of(query: str) -> dict[str, str]:
    """Parameters of a URL's query."""
    pairs = parse_qsl(str(query)[:LONGEST_QUERY].removeprefix("?"), keep_blank_values=True)
    return {key: value[:LONGEST_VALUE] for key, value in pairs}


def live_page(
    settings: Settings,
    page: str,
    signature: Callable[[Session, str], str],
    draw: Callable[[Session, str], list[Any]],
    outputs: list[Any],
    id_of: Callable[[Mapping[str, str]], str] = lambda query: "",
) -> None:
    """Show `draw(session, id)` in `outputs` when the page is opened and when `signature(session, id)` has changed;
    `id_of` takes the id from the URL's query. The first output also shows errors."""
    chosen, seen = hidden(f"{page}-chosen"), hidden(f"{page}-seen")

    def opened(request: gr.Request) -> list[Any]:
        row_id = id_of(request.query_params)
        try:
            with reading(settings) as session:
                return [row_id, *changed_parts("", signature(session, row_id), draw(session, row_id))]
        except SpeculoosError as error:
            return [row_id, "", notice(str(error), "bad"), *[gr.skip()] * (len(outputs) - 1)]

    def poll(row_id: str, before: str) -> Any:
        return redrawn(settings, before, lambda rows: signature(rows, row_id), lambda rows: draw(rows, row_id))

    on_load(opened, [chosen, seen, *outputs])
    on_change(page, poll, [chosen, seen], [seen, *outputs], chosen=f"{page}-chosen", seen=f"{page}-seen")


def redrawn(
    settings: Settings, seen: str, signature: Callable[[Session], str], draw: Callable[[Session], list[Any]]
) -> Any:
    """`changed_parts` since `seen`; gr.skip() if the signature is the same or the database is not available."""
    try:
        with reading(settings) as session:
            now = signature(session)
            if now == seen.partition(SIGNATURE_SEPARATOR)[0]:
                return gr.skip()
            return changed_parts(seen, now, draw(session))
    except SpeculoosError:
        return gr.skip()


def changed_parts(seen: str, now: str, parts: list[Any]) -> list[Any]:
    """[the new `seen` (signature and checksums), *parts], with gr.skip() for texts that the page shows already."""
    before = seen.partition(SIGNATURE_SEPARATOR)[2].split()
    sums = [str(zlib.crc32(part.encode())) if isinstance(part, str) else "-" for part in parts]
    old_sums = before if len(before) == len(sums) else ["-"] * len(sums)
    fresh = [gr.skip() if new == old != "-" else part for part, new, old in zip(parts, sums, old_sums, strict=True)]
    return [now + SIGNATURE_SEPARATOR + " ".join(sums), *fresh]

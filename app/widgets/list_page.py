"""A page that lists rows and opens one by `?id=`: the frame Models, Data, Jobs and Checkpoints share.

What is shown comes from rows at every turn: opening, a click, and a poll that draws only when something changed. A long
list has pages (`?from=`), which stay where they are while rows are added.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.widgets.elements import QUIET, block, notice, on_change, on_load
from app.widgets.hidden import hidden, hidden_json
from app.widgets.picker import address, on_pick, pick, picker
from app.widgets.text import safe
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Job, Table

DRAWN = " # "
"""Stands between a signature and the checksums of what was drawn for it."""
CONTEXT_KEYS = ("base",)
"""What the address asked for that still counts when another row is picked."""
Html = Callable[[Session, str, str], str]


class Panel(Protocol):
    """One row's part of a page. `live` outputs are drawn again when the row changes, `outputs` when it is opened
    (`query` is what else the address says)."""

    live: list[Any]
    outputs: list[Any]

    def live_view(self, session: Session, row: Any) -> list[Any]: ...

    def view(self, session: Session, row: Any | None, query: Mapping[str, str]) -> list[Any]: ...


@dataclass(frozen=True)
class Listing:
    """What is listed: rows of `table`, called `word`, on `page`; `html(rows, filter, place)` draws a page of the list.

    `signature` is a text that changes when the list does; `row_signature`, where there is one, when the open row (its
    id is given) does.
    """

    page: str
    table: type[Table]
    word: str
    html: Html
    signature: Callable[[Session], str]
    filters: tuple[str, ...] = field(default=("All",))
    hint: Callable[[Session, Mapping[str, str]], str] = lambda session, query: ""
    """What to say above the list when the address asks for something; `KEPT` keys stay while rows are picked."""
    row_signature: Callable[[Session, str], str] | None = None

    def now(self, session: Session, row_id: str) -> str:
        """What a page remembers of what it shows: the list, or the row with this id."""
        if row_id and self.row_signature:
            return f"{row_id}|{self.row_signature(session, row_id)}"
        return f"{row_id}|{self.signature(session)}"


def signature_of(table: type[Table]) -> Callable[[Session], str]:
    """A text that changes when a row of `table`, or the job that makes it, does."""

    def signature(session: Session) -> str:
        query = select(table.id, table.name, table.state, Job.version).outerjoin(Job, Job.id == table.job_id)
        states = session.execute(query.order_by(table.id)).all()
        return str(hash(tuple((i, n, s, v if s == "pending" else 0) for i, n, s, v in states)))

    return signature


class ListPage:
    """The components. Inside `with page.listing():` goes what stands above the list, in `with page.opened():` the
    panel; then `wire(panel)`."""

    def __init__(self, settings: Settings, what: Listing):
        self.settings, self.what = settings, what
        self.chosen = hidden(f"{what.page}-chosen")
        self.seen = hidden(f"{what.page}-seen")
        self.place = hidden(f"{what.page}-place")
        self.search = hidden(f"{what.page}-search")
        self.query = hidden_json(f"{what.page}-asked", {})
        self.problem = block(elem_id=f"{what.page}-problem")

    @contextmanager
    def listing(self) -> Iterator[None]:
        """Everything that is seen while no row is open; the list comes last."""
        what = self.what
        with gr.Column(elem_id=f"{what.page}-listing") as self.list:
            yield
            self.which = gr.Radio(
                list(what.filters),
                value=what.filters[0],
                label="Show",
                elem_id=f"{what.page}-filter",
                container=False,
                show_label=False,
                visible=len(what.filters) > 1,
            )
            self.table = picker(f"{what.page}-table", main=True)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Everything that is seen while a row is open."""
        with gr.Column(visible=False, elem_id=f"{self.what.page}-detail") as self.detail:
            self.back = picker(f"{self.what.page}-back")
            yield
        self.frame = [self.chosen, self.seen, self.problem, self.list, self.detail, self.table, self.back]

    def wire(self, panel: Panel) -> None:
        """Opening, clicks and the poll."""
        self.panel = panel
        outputs = [*self.frame, *panel.outputs]
        on_load(self.open_address, self.which, [*outputs, self.place, self.query])
        for listed in (self.table, self.back):
            on_pick(listed, self.search, self.pick, [self.which, self.place, self.query], [*outputs, self.place])
        self.which.change(self.filtered, self.which, [self.table, self.place], **QUIET)
        shown = [self.chosen, self.which, self.place, self.seen]
        names = {"chosen": f"{self.what.page}-chosen", "seen": f"{self.what.page}-seen"}
        on_change(self.what.page, self.poll, shown, [self.seen, self.table, *panel.live], **names)

    @property
    def again(self) -> tuple[Callable[..., list[Any]], list[Any], list[Any]]:
        """(function, inputs, outputs) that draw everything anew but what someone may be writing in."""
        return self.redraw, [self.chosen, self.which, self.place], [*self.frame, *self.panel.live]

    def open_address(self, which: str, request: gr.Request) -> list[Any]:
        """Show what the address asks for."""
        query = {key: str(value)[:200] for key, value in request.query_params.items()}
        context, place = {key: query[key] for key in CONTEXT_KEYS if key in query}, query.get("from", "")[:64]
        return [*self.open(query.get("id", ""), which, place, query), place, context]

    def pick(self, row_id: str, start: str, which: str, place: str, query: Mapping[str, str]) -> list[Any]:
        """Show the row that was clicked, remembering the place in the list, or the list from `start` on."""
        place = place if row_id else start
        return [*self.open(row_id, which, place, query), place]

    def open(self, row_id: str, which: str, place: str = "", query: Mapping[str, str] | None = None) -> list[Any]:
        """Show one row, or the list when `row_id` is empty or unknown."""
        try:
            with reading(self.settings) as session:
                row = session.get(self.what.table, row_id) if row_id else None
                lost = f"This {self.what.word} is gone; it was deleted, or the address is wrong."
                lost_or_hint = notice(lost, "warn") if row_id else self.what.hint(session, query or {})
                problem = "" if row else lost_or_hint
                return [*self._frame(session, row, which, place, problem), *self.panel.view(session, row, query or {})]
        except SpeculoosError as error:
            nothing = [gr.skip()] * (len(self.frame) + len(self.panel.outputs) - 3)
            return ["", "", notice(str(error), "bad"), *nothing]

    def redraw(self, row_id: str, which: str, place: str) -> list[Any]:
        """As `open`, for the frame and the live parts."""
        return self.open(row_id, which, place)[: len(self.frame) + len(self.panel.live)]

    def filtered(self, which: str) -> list[str]:
        """The list under another filter, from its beginning, and that place."""
        with reading(self.settings) as session:
            return [self.what.html(session, which, ""), ""]

    def poll(self, row_id: str, which: str, place: str, seen: str) -> Any:
        """What changed since `seen`; nothing when nothing did, or when the database does not answer now."""
        try:
            with reading(self.settings) as session:
                now = self.what.now(session, row_id)
                if now == seen.partition(DRAWN)[0]:
                    return gr.skip()
                return changed_parts(seen, now, self._parts(session, row_id, which, place))
        except SpeculoosError:
            return gr.skip()

    def _parts(self, session: Session, row_id: str, which: str, place: str) -> list[Any]:
        row = session.get(self.what.table, row_id) if row_id else None
        live = self.panel.live_view(session, row) if row else [gr.skip()] * len(self.panel.live)
        return [gr.skip() if row else self.what.html(session, which, place), *live]

    def _frame(self, session: Session, row: Any | None, which: str, place: str, problem: str) -> list[Any]:
        chosen = row.id if row else ""
        shown = (gr.Column(visible=row is None), gr.Column(visible=row is not None))
        listed = gr.skip() if row else self.what.html(session, which, place)
        words = safe(f"← All {self.what.page}")
        back = pick(self.what.page, "", words, class_="sp-back", href=address(self.what.page, place))
        return [chosen, self.what.now(session, chosen), problem, *shown, listed, back]


def changed_parts(seen: str, now: str, parts: list[Any]) -> list[Any]:
    """`parts` with texts that the page shows already left out, after the text to remember: signature and checksums."""
    before = seen.partition(DRAWN)[2].split()
    sums = [str(zlib.crc32(part.encode())) if isinstance(part, str) else "-" for part in parts]
    known = before if len(before) == len(sums) else ["-"] * len(sums)
    fresh = [gr.skip() if new == old != "-" else part for part, new, old in zip(parts, sums, known, strict=True)]
    return [now + DRAWN + " ".join(sums), *fresh]

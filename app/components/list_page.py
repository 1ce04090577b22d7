"""A page that lists rows and opens one by `?id=`: the frame Models, Data and Jobs share.

What is shown comes from rows at every turn: opening, a click, and a poll that draws only when something changed.
"""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.components.hidden import hidden, hidden_json
from app.components.picker import on_pick, pick, picker
from app.components.pieces import QUIET, block, notice, on_load, on_tick
from app.components.text import safe
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Job, Table

DRAWN = "\n"
"""Stands between a signature and the checksums of what was drawn for it."""
KEPT = ("base",)
"""What the address asked for that still counts when another row is picked."""


class Panel(Protocol):
    """One row's part of a page. `live` outputs are drawn again when the row changes, `outputs` when it is opened
    (`asked` is what else the address says)."""

    live: list[Any]
    outputs: list[Any]

    def live_view(self, rows: Session, row: Any) -> list[Any]: ...

    def view(self, rows: Session, row: Any | None, asked: Mapping[str, str]) -> list[Any]: ...


@dataclass(frozen=True)
class Listing:
    """What is listed: rows of `table`, called `word`, on `page`; `html(rows, filter)` draws the list."""

    page: str
    table: type[Table]
    word: str
    html: Callable[[Session, str], str]
    signature: Callable[[Session], str]
    filters: tuple[str, ...] = field(default=("All",))
    hint: Callable[[Session, Mapping[str, str]], str] = lambda rows, asked: ""
    """What to say above the list when the address asks for something; `KEPT` keys stay while rows are picked."""


def signature_of(table: type[Table]) -> Callable[[Session], str]:
    """A text that changes when a row of `table`, or the job that makes it, does."""

    def signature(rows: Session) -> str:
        query = select(table.id, table.name, table.state, Job.version).outerjoin(Job, Job.id == table.job_id)
        found = rows.execute(query.order_by(table.id)).all()
        return str(hash(tuple((i, n, s, v if s == "pending" else 0) for i, n, s, v in found)))

    return signature


class ListPage:
    """The components. Inside `with page.listing():` goes what stands above the list, in `with page.opened():` the
    panel; then `wire(panel)`."""

    def __init__(self, settings: Settings, what: Listing):
        self.settings, self.what = settings, what
        self.chosen = hidden(f"{what.page}-chosen")
        self.seen = hidden(f"{what.page}-seen")
        self.asked = hidden_json(f"{what.page}-asked", {})
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

    def wire(self, panel: Panel, seconds: float = 1.0) -> None:
        """Opening, clicks and the poll."""
        self.panel = panel
        outputs = [*self.frame, *panel.outputs]
        on_load(self.open_address, self.which, [*outputs, self.asked])
        for listed in (self.table, self.back):
            on_pick(listed, self.open, [self.which, self.asked], outputs)
        self.which.change(self.filtered, self.which, self.table, **QUIET)
        on_tick(seconds, self.poll, [self.chosen, self.which, self.seen], [self.seen, self.table, *panel.live])

    @property
    def again(self) -> tuple[Callable[..., list[Any]], list[Any], list[Any]]:
        """(function, inputs, outputs) that draw everything anew but what someone may be writing in."""
        return self.redraw, [self.chosen, self.which], [*self.frame, *self.panel.live]

    def open_address(self, which: str, request: gr.Request) -> list[Any]:
        """Show what the address asks for."""
        asked = {key: str(value)[:200] for key, value in request.query_params.items()}
        return [*self.open(asked.get("id", ""), which, asked), {key: asked[key] for key in KEPT if key in asked}]

    def open(self, row_id: str, which: str, asked: Mapping[str, str] | None = None) -> list[Any]:
        """Show one row, or the list when `row_id` is empty or unknown."""
        try:
            with reading(self.settings) as rows:
                row = rows.get(self.what.table, row_id) if row_id else None
                lost = f"This {self.what.word} is gone; it was deleted, or the address is wrong."
                lost_or_hint = notice(lost, "warn") if row_id else self.what.hint(rows, asked or {})
                problem = "" if row else lost_or_hint
                return [*self._frame(rows, row, which, problem), *self.panel.view(rows, row, asked or {})]
        except SpeculoosError as error:
            nothing = [gr.skip()] * (len(self.frame) + len(self.panel.outputs) - 3)
            return ["", "", notice(str(error), "bad"), *nothing]

    def redraw(self, row_id: str, which: str) -> list[Any]:
        """As `open`, for the frame and the live parts."""
        return self.open(row_id, which)[: len(self.frame) + len(self.panel.live)]

    def filtered(self, which: str) -> str:
        """The list under another filter."""
        with reading(self.settings) as rows:
            return self.what.html(rows, which)

    def poll(self, row_id: str, which: str, seen: str) -> Any:
        """What changed since `seen`; nothing when nothing did, or when the database does not answer now."""
        try:
            with reading(self.settings) as rows:
                now = self._signature(rows, row_id)
                if now == seen.partition(DRAWN)[0]:
                    return gr.skip()
                return changed_parts(seen, now, self._parts(rows, row_id, which))
        except SpeculoosError:
            return gr.skip()

    def _parts(self, rows: Session, row_id: str, which: str) -> list[Any]:
        row = rows.get(self.what.table, row_id) if row_id else None
        live = self.panel.live_view(rows, row) if row else [gr.skip()] * len(self.panel.live)
        return [gr.skip() if row else self.what.html(rows, which), *live]

    def _frame(self, rows: Session, row: Any | None, which: str, problem: str) -> list[Any]:
        chosen = row.id if row else ""
        shown = (gr.Column(visible=row is None), gr.Column(visible=row is not None))
        listed = gr.skip() if row else self.what.html(rows, which)
        back = pick(self.what.page, "", safe(f"← All {self.what.page}"), class_="sp-back")
        return [chosen, self._signature(rows, chosen), problem, *shown, listed, back]

    def _signature(self, rows: Session, row_id: str) -> str:
        return f"{row_id}|{self.what.signature(rows)}"


def changed_parts(seen: str, now: str, parts: list[Any]) -> list[Any]:
    """`parts` with texts that the page shows already left out, after the text to remember: signature and checksums."""
    before = seen.partition(DRAWN)[2].split()
    sums = [str(zlib.crc32(part.encode())) if isinstance(part, str) else "-" for part in parts]
    known = before if len(before) == len(sums) else ["-"] * len(sums)
    fresh = [gr.skip() if new == old != "-" else part for part, new, old in zip(parts, sums, known, strict=True)]
    return [now + DRAWN + " ".join(sums), *fresh]

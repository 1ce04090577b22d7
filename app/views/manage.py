"""Controls to rename, annotate and delete a row, shared by all pages with a list.

Deletion requires a confirmation, which lists the rows that depend on the deleted one.
"""

from collections.abc import Callable
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.i18n import N_, t
from app.widgets.elements import QUIET, block, closed_accordion, notice
from app.widgets.fields import one_line
from app.widgets.formatting import size
from app.widgets.list_page import Listing, ListPage, Panel
from app.widgets.problems import show_errors
from app.widgets.text import safe, tag
from speculoos.errors import NotFound
from speculoos.settings import Settings
from tracking import changes
from tracking.db import reading, writing
from tracking.tables import Experiment, Table

SMALL = {"size": "md", "scale": 0, "min_width": 110}


class Manage:
    """The controls, in a closed accordion, for rows of `table`. `chosen` is the hidden text with the row's id; `noun`
    names a row in messages and begins the element ids."""

    def __init__(self, settings: Settings, table: type[Table], noun: str, chosen: gr.Textbox):
        self.settings, self.table, self.noun, self.chosen = settings, table, noun, chosen
        with closed_accordion(t("Name, note, delete"), elem_id=f"{noun}-manage"):
            with gr.Row(equal_height=True, elem_classes="sp-manage"):
                self.name = one_line(t("Name"), f"{noun}-name", max_length=200, scale=2)
                note = {"max_lines": 4, "max_length": 4000, "scale": 3, "placeholder": "…"}
                self.note = gr.Textbox(label=t("Note"), elem_id=f"{noun}-note", **note)
            with gr.Row(elem_classes="sp-buttons"):
                self.save = gr.Button(t("Save"), elem_id=f"{noun}-save", **SMALL)
                label = t("Delete this {word}", word=t(noun))
                delete = gr.Button(label, elem_id=f"{noun}-delete", variant="stop", **SMALL)
            self.message = block(elem_id=f"{noun}-message")
            self.confirm, question, self.really = confirmation_dialog(noun)
        self.outputs = [self.name, self.note, self.message, self.confirm]
        delete.click(self._ask, chosen, [question, self.confirm], **QUIET)

    def view(self, row: Any) -> list[Any]:
        """Values of `outputs` for a newly opened row (None: no row is open)."""
        return [row.name if row else "", row.note if row else "", "", gr.Column(visible=False)]

    def wire(self, redraw: Callable[..., list[Any]], inputs: list[Any], outputs: list[Any]) -> None:
        """After saving or deleting, put `redraw(*inputs)` into `outputs`; after deleting, `chosen` is empty."""
        saved = self.save.click(self._save, [self.chosen, self.name, self.note], self.message, **QUIET)
        deleted = self.really.click(self._delete, self.chosen, [self.message, self.chosen, self.confirm], **QUIET)
        closed = deleted.then(None, self.chosen, None, js=LEAVE_IF_EMPTY, api_visibility="private")
        for event in (saved, closed):
            event.then(redraw, inputs, outputs, **QUIET)

    @show_errors(gr.Column(visible=True))
    def _ask(self, row_id: str) -> tuple[str, Any]:
        return notice(question(self.settings, self.table, self.noun, row_id), "warn"), gr.Column(visible=True)

    @show_errors()
    def _save(self, row_id: str, name: str, note: str) -> str:
        return notice(save(self.settings, self.table, self.noun, row_id, name, note), "good")

    @show_errors(gr.skip(), gr.Column(visible=False))
    def _delete(self, row_id: str) -> tuple[str, str, Any]:
        return notice(delete(self.settings, self.table, self.noun, row_id), "good"), "", gr.Column(visible=False)


def build_list(
    settings: Settings,
    what: Listing,
    panel_of: Callable[[Settings, gr.Textbox], Panel],
    above: Callable[[Settings], Any] = lambda settings: None,
) -> ListPage:
    """A page with a list and, for the open row, the panel of `panel_of(settings, chosen)` and the controls. `above`
    creates what stands above the list."""
    page = ListPage(settings, what)
    with page.listing():
        above(settings)
    with page.opened():
        panel, manage = panel_of(settings, page.chosen), Manage(settings, what.table, what.noun, page.chosen)
    page.wire(panel, manage)
    return page


def confirmation_dialog(
    prefix: str, confirm_label: str = N_("Delete permanently"), cancel_label: str = N_("Cancel"), html: str = ""
) -> tuple[gr.Column, gr.HTML, gr.Button]:
    """A hidden confirmation: (column, question, confirming button)."""
    with gr.Column(visible=False, elem_id=f"{prefix}-confirm") as confirmation:
        question = block(html, elem_id=f"{prefix}-question")
        with gr.Row(elem_classes="sp-buttons"):
            really = gr.Button(t(confirm_label), variant="stop", elem_id=f"{prefix}-really", **SMALL)
            no = gr.Button(t(cancel_label), elem_id=f"{prefix}-keep", **SMALL)
    no.click(lambda: gr.Column(visible=False), None, confirmation, **QUIET)
    return confirmation, question, really


KEPT_ROWS_NOTE = {Experiment: N_("Its jobs, datasets and drafts are kept.")}
"""Table → what remains when a row is deleted."""
LEAVE_IF_EMPTY = "(id) => { if (!id) history.replaceState({}, '', location.pathname); }"


def note_line(row: Any) -> str:
    """The row's note, below its name; "" without one."""
    return tag("p", safe(row.note), class_="sp-lead sp-note") if row.note else ""


def question(settings: Settings, table: type[Table], noun: str, row_id: str) -> str:
    with reading(settings) as session:
        dependents = changes.dependents(session, row(session, table, noun, row_id))
    if table in KEPT_ROWS_NOTE:
        return t("Deleting this {word} cannot be undone.", word=t(noun)) + f" {t(KEPT_ROWS_NOTE[table])}"
    if not dependents:
        return t("Nothing depends on this {word}. Deleting it cannot be undone.", word=t(noun))
    values = {"word": t(noun), "rows": ", ".join(dependents)}
    return t("Deleting this {word} cannot be undone, and these depend on it: {rows}.", **values)


def save(settings: Settings, table: type[Table], noun: str, row_id: str, name: str, note: str) -> str:
    with writing(settings) as session:
        record = row(session, table, noun, row_id)
        if name.strip() != record.name:  # generated names may be invalid as user input
            changes.rename(session, record, name)
        changes.set_note(session, record, note)
    return t("Saved.")


def delete(settings: Settings, table: type[Table], noun: str, row_id: str) -> str:
    """Delete a row, its files and what depends on it. The user has confirmed this."""
    with writing(settings) as session:
        record = row(session, table, noun, row_id)
        name, paths = record.name, changes.delete(session, settings, record, force=True)
    freed = changes.remove_files(paths)
    message = t("Deleted “{name}”; {size} freed.", name=name, size=size(freed))
    return message if freed else t("Deleted “{name}”.", name=name)


def row(session: Session, table: type[Table], noun: str, row_id: str) -> Any:
    """The row. Raises NotFound."""
    if record := session.get(table, row_id):
        return record
    raise NotFound(f"This {noun} does not exist: it was deleted, or the URL is wrong.")

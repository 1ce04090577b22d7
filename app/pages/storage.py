"""The Storage page: disk usage of rows, what depends on them, and cleanup. Sizes are measured in the background."""

import threading
from collections.abc import Callable
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.views import storage_view
from app.views.manage import LEAVE_IF_EMPTY, SMALL, confirmation_dialog, delete, outcome_notice, question
from app.widgets.elements import QUIET, block, hidden, notice, on_load, page_header, section
from app.widgets.picker import on_pick, pick, picker
from app.widgets.problems import error_text, show_errors
from app.widgets.text import safe, tag
from ops import retention, storage
from speculoos.errors import NotFound, SpeculoosError
from speculoos.settings import Settings
from tracking import changes, rules, stored
from tracking.db import reading
from tracking.tables import Preference

LEAD = "Disk usage, dependencies, and cleanup."
MEASURING = "Measuring the files of the home folder …"

POLL_SECONDS = 2.0


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Storage", LEAD)
    page = StoragePage(settings)
    page.build()


class BackgroundTask:
    """Runs one long task at a time in a thread; `words` is a notice about its state or result."""

    def __init__(self) -> None:
        self.words = ""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, what: str, work: Callable[[], str]) -> None:
        """Start the task, unless another one is running."""
        with self._lock:
            if self.busy:
                return
            self.words = notice(what, "info")
            self._thread = threading.Thread(target=self._run, args=(work,), name="chore", daemon=True)
            self._thread.start()

    def _run(self, work: Callable[[], str]) -> None:
        try:
            self.words = notice(work(), "good")
        except (SpeculoosError, OSError) as error:
            self.words = notice(error_text(error) if isinstance(error, SpeculoosError) else str(error), "bad")


class StoragePage:
    """The components and their values."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.surveys = storage.surveys_of(settings)
        self.chore = BackgroundTask()

    def build(self) -> None:
        self.chosen, self.seen = hidden("storage-chosen"), hidden("storage-seen")
        self.search = hidden("storage-search")
        self.problem = block(elem_id="storage-problem")
        with gr.Column(elem_id="storage-listing") as self.list:
            self._build_list()
        with gr.Column(visible=False, elem_id="storage-detail") as self.detail:
            self._build_detail()
        self.drawn = [self.seen, self.overview, self.parts, self.things, self.left, self.chore_said, self.round]
        frame = [self.chosen, self.list, self.detail, self.problem, self.back, self.one, self.confirm]
        on_load(self.open_address, [*frame, *self.drawn])
        for listed in (self.things, self.back):
            on_pick(listed, self.search, lambda row_id, _place: self.open(row_id), [], frame)
        gr.Timer(POLL_SECONDS).tick(self.poll, self.seen, self.drawn, **QUIET)  # sizes and tasks are not in rows
        self._wire_delete(frame)

    def _build_list(self) -> None:
        self.overview = block(elem_id="storage-overview")
        self.parts = block(elem_id="storage-parts")
        section(
            "Cleanup",
            "The reconciler cleans up every hour by the retention rules above. Change them on the Settings page.",
        )
        self.round = block(elem_id="storage-round")
        self.chore_said = block(elem_id="storage-chore")
        with gr.Row(elem_classes="sp-buttons"):
            preview = gr.Button("Preview cleanup", elem_id="storage-look", **SMALL)
            cleanup = gr.Button("Clean up now", elem_id="storage-clean", **SMALL)
            measure = gr.Button("Measure again", elem_id="storage-count", **SMALL)
        section("Largest things", "Open one to see what depends on it, and to delete it.")
        self.things = picker("storage-things", main=True)
        section("Leftovers", "Files and folders of the home folder that are not in use and unchanged for a day.")
        self.left = block(elem_id="storage-leftovers")
        with gr.Row(elem_classes="sp-buttons"):
            sweep = gr.Button("Delete leftovers …", elem_id="storage-sweep", **SMALL)
        warning = notice("They are deleted for good. Nothing on these pages uses them.", "warn")
        dialog, _, confirm = confirmation_dialog("storage-sweep", "Delete for good", "Keep them", warning)
        preview.click(self.look, None, self.chore_said, **QUIET)
        cleanup.click(self.clean, None, self.chore_said, **QUIET)
        measure.click(self.count, None, self.overview, **QUIET)
        sweep.click(lambda: gr.Column(visible=True), None, dialog, **QUIET)
        confirm.click(self.sweep, None, [self.chore_said, dialog], **QUIET)

    def _build_detail(self) -> None:
        self.back = picker("storage-back")
        self.one = block(elem_id="storage-one")
        self.said = block(elem_id="storage-said")
        self.delete = gr.Button("Delete", variant="stop", elem_id="storage-delete", **SMALL)
        self.confirm, self.question, self.really = confirmation_dialog("storage")

    def _wire_delete(self, frame: list[Any]) -> None:
        self.delete.click(self.ask, self.chosen, [self.confirm, self.question], **QUIET)
        event = self.really.click(self.remove, self.chosen, [self.chosen, self.said, self.confirm], **QUIET)
        event.then(None, self.chosen, None, js=LEAVE_IF_EMPTY, api_visibility="private").then(
            self.after_removal, [self.chosen, self.said], [*frame, *self.drawn], **QUIET
        )

    def open_address(self, request: gr.Request) -> list[Any]:
        """Show the row or the list of the URL."""
        return [*self.open(str(request.query_params.get("id", ""))[:64]), *self.draw()]

    def open(self, row_id: str) -> list[Any]:
        """One row, or the list."""
        try:
            html, problem = (self.thing_html(row_id), "") if row_id else ("", "")
        except SpeculoosError as error:
            row_id, html, problem = "", "", notice(error_text(error), "warn")
        back = pick("storage", "", "← All storage", class_="sp-back") if row_id else ""
        columns = (gr.Column(visible=not row_id), gr.Column(visible=bool(row_id)))
        return [row_id, *columns, problem, back, html, gr.Column(visible=False)]

    def thing_html(self, row_id: str) -> str:
        """Details of one row with what depends on it. Raises NotFound."""
        with reading(self.settings) as session:
            kind, row = find(session, row_id)
            dependents = changes.dependents(session, row)
            path = str(self.settings.home / row.path) if row.path else ""
        return storage_view.row_details(storage.thing(self.settings, kind, row), path, dependents)

    def draw(self) -> list[Any]:
        """Values of the outputs of the poll."""
        survey = self.surveys.get()
        tail = [self.chore.words, self.round_html()]
        if survey is None:
            words = self.surveys.problem or MEASURING
            return [self.signature(), tag("p", safe(words), class_="sp-lead"), "", "", "", *tail]
        views = [
            storage_view.overview(survey),
            storage_view.parts(survey, rules.current_settings(self.settings)),
            storage_view.rows_table(survey),
        ]
        return [self.signature(), *views, storage_view.leftovers(survey.leftovers, str(self.settings.home)), *tail]

    def poll(self, seen: str) -> Any:
        """Values of `drawn` if something changed since `seen`."""
        self.surveys.get()
        return gr.skip() if self.signature() == seen else self.draw()

    def signature(self) -> str:
        """Changes when a measurement ends or the notice of a task changes."""
        last = self.surveys.last
        return f"{last.at.isoformat() if last else ''}|{self.surveys.problem}|{hash(self.chore.words)}"

    @show_errors()
    def round_html(self) -> str:
        with reading(self.settings) as session:
            return storage_view.last_cleanup(session.get(Preference, retention.NOTE))

    def look(self) -> str:
        """Show what a cleanup would delete."""

        def work() -> str:
            words = retention.in_words(retention.clean(self.settings, dry_run=True))
            return f"Would delete: {words}." if words else "Nothing to delete."

        self.chore.start("Checking …", work)
        return self.chore.words

    def clean(self) -> str:
        """Apply the retention rules now."""
        return self._remove(retention.clean, "Cleaning up. You can close this page …", "Nothing to delete.")

    def sweep(self) -> tuple[str, Any]:
        """Delete the leftovers."""
        words = self._remove(retention.sweep, "Deleting leftovers …", "There are no leftovers.")
        return words, gr.Column(visible=False)

    def _remove(self, action: Callable[[Settings], Any], what: str, nothing: str) -> str:
        """Run `action` in the background, then measure again."""

        def work() -> str:
            words = retention.in_words(action(self.settings))
            self.surveys.count()
            return f"Deleted {words}." if words else nothing

        self.chore.start(what, work)
        return self.chore.words

    def count(self) -> Any:
        """Measure again; the poll shows the result."""
        self.surveys.count()
        return tag("p", MEASURING, class_="sp-lead")

    def ask(self, row_id: str) -> tuple[Any, str]:
        """The confirmation question: what depends on the row."""

        def words() -> str:
            with reading(self.settings) as session:
                kind, row = find(session, row_id)
            return question(self.settings, type(row), storage_view.KINDS[kind], row_id)

        return gr.Column(visible=True), outcome_notice(words, "warn")

    def remove(self, row_id: str) -> tuple[str, str, Any]:
        """Delete the row, its files, and what depends on it. The user has confirmed this."""
        try:
            with reading(self.settings) as session:
                kind, row = find(session, row_id)
            words = delete(self.settings, type(row), storage_view.KINDS[kind], row_id)
        except SpeculoosError as error:
            return row_id, notice(error_text(error), "bad"), gr.Column(visible=False)
        self.surveys.count().join(timeout=5)
        return "", notice(words, "good"), gr.Column(visible=False)

    def after_removal(self, row_id: str, words: str) -> list[Any]:
        """The list with the message on top; no change if the deletion failed."""
        if row_id:
            return [gr.skip()] * (7 + len(self.drawn))
        frame = self.open("")
        return [*frame[:3], words, *frame[4:], *self.draw()]


def find(session: Session, row_id: str) -> tuple[str, Any]:
    """(kind, row) of a model, data set or checkpoint. Raises NotFound."""
    for table, kind in stored.KINDS.items():
        if row := session.get(table, row_id):
            return kind, row
    raise NotFound("This is gone: it was deleted, or the URL is wrong.")

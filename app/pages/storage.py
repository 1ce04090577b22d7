"""The Storage page: disk usage and cleanup. Sizes are measured in the background."""

import threading
from collections.abc import Callable
from typing import Any

import gradio as gr

from app.views import storage_view
from app.views.manage import SMALL, confirmation_dialog
from app.widgets.elements import QUIET, block, hidden, notice, on_load, page_header, section
from app.widgets.picker import live
from app.widgets.problems import error_text, show_errors
from app.widgets.text import safe, tag
from ops import retention, storage
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import rules
from tracking.db import reading
from tracking.tables import Preference

LEAD = "Disk usage and cleanup."
MEASURING = "Measuring the files of the home folder …"
POLL_SECONDS = 2.0


def build(settings: Settings) -> None:
    page_header("Storage", LEAD)
    StoragePage(settings).build()


class BackgroundTask:
    """Runs one long task at a time in a thread; `words` is a notice about its state or result."""

    def __init__(self) -> None:
        self.words = ""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, what: str, work: Callable[[], str]) -> None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
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
    def __init__(self, settings: Settings):
        self.settings = settings
        self.surveys = storage.surveys_of(settings)
        self.chore = BackgroundTask()

    def build(self) -> None:
        """Components and events, inside the current Blocks."""
        seen, overview = hidden("storage-seen"), block(elem_id="storage-overview")
        parts = block(elem_id="storage-parts")
        section(
            "Cleanup",
            "The reconciler cleans up every hour by the retention rules above. Change them on the Settings page.",
        )
        last_round = block(elem_id="storage-round")
        said = block(elem_id="storage-chore")
        with gr.Row(elem_classes="sp-buttons"):
            preview = gr.Button("Preview cleanup", elem_id="storage-look", **SMALL)
            cleanup = gr.Button("Clean up now", elem_id="storage-clean", **SMALL)
            measure = gr.Button("Measure again", elem_id="storage-count", **SMALL)
        section("Largest things", "Each opens on its own page, which shows what depends on it and can delete it.")
        things = live("storage-things")
        section("Leftovers", "Files and folders of the home folder that are not in use and unchanged for a day.")
        left = block(elem_id="storage-leftovers")
        with gr.Row(elem_classes="sp-buttons"):
            sweep = gr.Button("Delete leftovers …", elem_id="storage-sweep", **SMALL)
        warning = notice("They are deleted for good. Nothing on these pages uses them.", "warn")
        dialog, _, confirm = confirmation_dialog("storage-sweep", "Delete for good", "Keep them", warning)
        preview.click(self.look, None, said, **QUIET)
        cleanup.click(self.clean, None, said, **QUIET)
        measure.click(self.count, None, overview, **QUIET)
        sweep.click(lambda: gr.Column(visible=True), None, dialog, **QUIET)
        confirm.click(self.sweep, None, [said, dialog], **QUIET)
        drawn = [seen, overview, parts, things, left, said, last_round]
        on_load(self.draw, drawn)
        gr.Timer(POLL_SECONDS).tick(self.poll, seen, drawn, **QUIET)  # sizes and tasks are not in rows

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
        def work() -> str:
            words = retention.in_words(retention.clean(self.settings, dry_run=True))
            return f"Would delete: {words}." if words else "Nothing to delete."

        self.chore.start("Checking …", work)
        return self.chore.words

    def clean(self) -> str:
        return self._remove(retention.clean, "Cleaning up. You can close this page …", "Nothing to delete.")

    def sweep(self) -> tuple[str, Any]:
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

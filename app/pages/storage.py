"""The Storage page: disk usage and cleanup. Sizes are measured in the background."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import gradio as gr

from app.paths import PAGES
from app.views.manage import SMALL, confirmation_dialog
from app.widgets.elements import QUIET, block, empty_state, hidden, notice, on_load, page_header, section, tiles
from app.widgets.formatting import ago, size
from app.widgets.picker import live, table
from app.widgets.problems import error_text, show_errors
from app.widgets.text import safe, tag
from ops import retention, storage
from ops.storage import Leftover, Survey
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Preference

LEAD = "Disk usage and cleanup."
MEASURING = "Measuring the files of the home folder …"
POLL_SECONDS = 2.0
KINDS = {"models": ("model", "models"), "datasets": ("dataset", "data"), "checkpoints": ("draft", "checkpoints")}
"""Folder → name of one row, page."""
SHOWN = 60
"""Maximum number of rows in the list; the pages of each kind show all."""
SHOWN_LEFTOVERS = 20


def build(settings: Settings) -> None:
    page_header("Storage", LEAD)
    StoragePage(settings).build()


class BackgroundTask:
    """Runs one long task at a time in a thread; `message` is a notice about its state or result."""

    def __init__(self) -> None:
        self.message = ""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def start(self, what: str, work: Callable[[], str]) -> None:
        with self._lock:
            if self._thread is not None and self._thread.is_alive():
                return
            self.message = notice(what, "info")
            self._thread = threading.Thread(target=self._run, args=(work,), name="chore", daemon=True)
            self._thread.start()

    def _run(self, work: Callable[[], str]) -> None:
        try:
            self.message = notice(work(), "good")
        except (SpeculoosError, OSError) as error:
            self.message = notice(error_text(error) if isinstance(error, SpeculoosError) else str(error), "bad")


class StoragePage:
    def __init__(self, settings: Settings):
        self.settings = settings
        self.surveys = storage.surveys_of(settings)
        self.chore = BackgroundTask()

    def build(self) -> None:
        seen, overview = hidden("storage-seen"), block(elem_id="storage-overview")
        parts = block(elem_id="storage-parts")
        section("Cleanup", "Runs every hour by the rules under Settings, Retention.")
        last_round = block(elem_id="storage-round")
        message = block(elem_id="storage-chore")
        with gr.Row(elem_classes="sp-buttons"):
            preview = gr.Button("Preview cleanup", elem_id="storage-look", **SMALL)
            cleanup = gr.Button("Clean up now", elem_id="storage-clean", **SMALL)
            measure = gr.Button("Measure again", elem_id="storage-count", **SMALL)
        section("Largest items", "Each opens on its own page, where it can be deleted.")
        things = live("storage-things")
        section("Leftovers", "Files in the home folder that are unused and unchanged for a day.")
        left = block(elem_id="storage-leftovers")
        with gr.Row(elem_classes="sp-buttons"):
            sweep = gr.Button("Delete leftovers …", elem_id="storage-sweep", **SMALL)
        warning = notice("They are deleted permanently. Nothing on these pages uses them.", "warn")
        dialog, _, confirm = confirmation_dialog("storage-sweep", "Delete permanently", "Cancel", warning)
        preview.click(self.look, None, message, **QUIET)
        cleanup.click(self.clean, None, message, **QUIET)
        measure.click(self.count, None, overview, **QUIET)
        sweep.click(lambda: gr.Column(visible=True), None, dialog, **QUIET)
        confirm.click(self.sweep, None, [message, dialog], **QUIET)
        drawn = [seen, overview, parts, things, left, message, last_round]
        on_load(self.draw, drawn)
        gr.Timer(POLL_SECONDS).tick(self.poll, seen, drawn, **QUIET)  # sizes and tasks are not in rows

    def draw(self) -> list[Any]:
        """Values of the outputs of the poll."""
        survey = self.surveys.get()
        tail = [self.chore.message, self.round_html()]
        if survey is None:
            words = self.surveys.problem or MEASURING
            return [self.signature(), tag("p", safe(words), class_="sp-lead"), "", "", "", *tail]
        left = leftovers(survey.leftovers, str(self.settings.home))
        return [self.signature(), overview_tiles(survey), parts_table(survey), rows_table(survey), left, *tail]

    def poll(self, seen: str) -> Any:
        """Values of `drawn` if something changed since `seen`."""
        self.surveys.get()
        return gr.skip() if self.signature() == seen else self.draw()

    def signature(self) -> str:
        """Changes when a measurement ends or the notice of a task changes."""
        last = self.surveys.last
        return f"{last.at if last else ''}|{self.surveys.problem}|{hash(self.chore.message)}"

    @show_errors()
    def round_html(self) -> str:
        with reading(self.settings) as session:
            return last_cleanup(session.get(Preference, retention.NOTE))

    def look(self) -> str:
        def work() -> str:
            words = retention.in_words(retention.clean(self.settings, dry_run=True))
            return f"Would delete: {words}." if words else "Nothing to delete."

        self.chore.start("Checking …", work)
        return self.chore.message

    def clean(self) -> str:
        return self._remove(retention.clean, "Cleaning up. You can close this page …", "Nothing to delete.")

    def sweep(self) -> tuple[str, Any]:
        return self._remove(retention.sweep, "Deleting leftovers …", "There are no leftovers."), gr.Column(
            visible=False
        )

    def _remove(self, action: Callable[[Settings], Any], what: str, nothing: str) -> str:
        """Run `action` in the background, then measure again."""

        def work() -> str:
            words = retention.in_words(action(self.settings))
            self.surveys.count()
            return f"Deleted {words}." if words else nothing

        self.chore.start(what, work)
        return self.chore.message

    def count(self) -> Any:
        """Measure again; the poll shows the result."""
        self.surveys.count()
        return tag("p", MEASURING, class_="sp-lead")


def overview_tiles(survey: Survey) -> str:
    full = " · almost full" if survey.disk_free < 0.05 * survey.disk_total else ""
    return tiles(
        [
            ("Free on the disk", size(survey.disk_free), f"of {size(survey.disk_total)}{full}"),
            ("Used by the home folder", size(survey.used), f"measured {ago(survey.at)}"),
            ("Training states", size(sum(item.states for item in survey.things)), "part of the drafts"),
            ("Leftovers", size(survey.parts["leftovers"]), "files not in use"),
        ]
    )


def parts_table(survey: Survey) -> str:
    """Table of the parts of the home folder, largest first."""
    rows = []
    for name, bytes_ in sorted(survey.parts.items(), key=lambda item: -item[1]):
        title, page = PARTS[name]
        link = tag("a" if page else "span", safe(title), href=page or None, class_="sp-row-name")
        bar = tag("progress", value=bytes_, max=max(survey.used, 1), aria_hidden="true")
        bar += tag("span", safe(size(bytes_)), class_="sp-size")
        rows.append([link, tag("div", bar, class_="sp-progress")])
    return table(["Part", "Size"], rows, "Parts of the home folder")


PARTS = {
    "models": ("Models", PAGES["models"]),
    "datasets": ("Datasets", PAGES["data"]),
    "checkpoints": ("Drafts, with training states", PAGES["checkpoints"]),
    "logs": ("Log files", PAGES["jobs"]),
    "uploads": ("Uploads", PAGES["data"]),
    "exports": ("Downloads, created again on request", PAGES["checkpoints"]),
    "hidden_states": ("Hidden states, kept until you delete them", PAGES["train"]),
    "trackers": ("Trackers: data for TensorBoard and others", PAGES["settings"]),
    "database": ("Database", ""),
    "backups": ("Automatic backups", ""),
    "broker": ("Broker: the job queue", ""),
    "leftovers": ("Leftovers", ""),
}
"""Part of the home folder → title and page."""


def rows_table(survey: Survey) -> str:
    """Table of models, datasets and checkpoints, largest first, with links to their pages."""
    if not survey.things:
        return empty_state("Nothing yet", "This list shows models, datasets and drafts with their sizes.")
    rows = []
    for item in sorted(survey.things, key=lambda item: (item.outside, -item.bytes))[:SHOWN]:
        kind, page = KINDS[item.kind]
        link = tag("a", safe(item.name), href=f"{PAGES[page]}?id={item.id}", class_="sp-row-name")
        weight = "outside the home folder" if item.outside else size(item.bytes)
        rows.append([link, *map(safe, (kind, weight, size(item.states) if item.states else "–"))])
    columns = ["Name", "Kind", "Size", "Training states"]
    count = f"The {SHOWN} largest of {len(survey.things)}" if len(survey.things) > SHOWN else ""
    return table(columns, rows, "Largest items", True, columns[1:], count=count)


def leftovers(items: Sequence[Leftover], home: str) -> str:
    if not items:
        return tag("p", "No leftovers: every file in the home folder is in use.", class_="sp-lead")
    rows = []
    for item in items[:SHOWN_LEFTOVERS]:
        words = (str(item.path).removeprefix(home + "/"), size(item.bytes), ago(item.changed))
        rows.append([*map(safe, words)])
    columns = ["Path", "Size", "Last changed"]
    count = f"The {len(rows)} largest of {len(items)}" if len(items) > len(rows) else ""
    return table(columns, rows, "Leftovers", True, columns[1:], count=count)


def last_cleanup(row: Preference | None) -> str:
    if row is None:
        return notice("No cleanup yet. The reconciler cleans up within an hour after it starts.", "info")
    removed = row.value.get("removed", {})
    words = ", ".join(f"{part['count']:,} {name}" for name, part in removed.items())
    when = ago(datetime.fromisoformat(row.value["removed_at"])) if row.value.get("removed_at") and removed else ""
    removed_words = f" Last removed {when}: {words}." if words else " Nothing removed so far."
    return notice(f"Last cleanup {ago(row.updated_at)}.{removed_words}", "info")

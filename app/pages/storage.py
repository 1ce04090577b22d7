"""The Storage page: disk usage and cleanup. Sizes are measured in the background."""

import threading
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

import gradio as gr

from app.i18n import N_, t
from app.paths import PAGES
from app.views.manage import SMALL, confirmation_dialog
from app.widgets.elements import QUIET, block, empty_state, hidden, notice, on_load, page_header, section, tiles
from app.widgets.formatting import ago, size
from app.widgets.picker import live, table
from app.widgets.problems import error_text, show_errors
from app.widgets.text import safe, tag
from ops import retention, storage
from ops.storage import Leftover, StorageUsage
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Preference

MEASURING = N_("Measuring the files of the home folder …")
POLL_SECONDS = 2.0
KINDS = {
    "models": (N_("model"), "models"),
    "datasets": (N_("dataset"), "data"),
    "checkpoints": (N_("draft"), "checkpoints"),
}
"""Folder → name of one row, page."""
SHOWN = 60
"""Maximum number of rows in the list; the pages of each kind show all."""
SHOWN_LEFTOVERS = 20


def build(settings: Settings) -> None:
    page_header(t("Storage"), t("Disk usage and cleanup."))
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
        self.storage = storage.storage_monitor(settings)
        self.task = BackgroundTask()

    def build(self) -> None:
        seen, overview = hidden("storage-seen"), block(elem_id="storage-overview")
        parts = block(elem_id="storage-parts")
        section(t("Cleanup"), t("Runs every hour by the rules under Settings, Retention."))
        last_round = block(elem_id="storage-round")
        message = block(elem_id="storage-chore")
        with gr.Row(elem_classes="sp-buttons"):
            cleanup = gr.Button(t("Clean up now"), elem_id="storage-clean", **SMALL)
            measure = gr.Button(t("Measure again"), elem_id="storage-count", **SMALL)
        section(t("Largest items"), t("Each opens on its own page, where it can be deleted."))
        items = live("storage-items")
        section(t("Leftovers"), t("Files in the home folder that are unused and unchanged for a day."))
        leftovers_block = block(elem_id="storage-leftovers")
        with gr.Row(elem_classes="sp-buttons"):
            sweep = gr.Button(t("Delete leftovers …"), elem_id="storage-sweep", **SMALL)
        warning = notice(t("They are deleted permanently. Nothing on these pages uses them."), "warn")
        dialog, _, confirm = confirmation_dialog("storage-sweep", t("Delete permanently"), t("Cancel"), warning)
        cleanup.click(self.clean, None, message, **QUIET)
        measure.click(self.count, None, overview, **QUIET)
        sweep.click(lambda: gr.Column(visible=True), None, dialog, **QUIET)
        confirm.click(self.sweep, None, [message, dialog], **QUIET)
        drawn = [seen, overview, parts, items, leftovers_block, message, last_round]
        on_load(self.draw, drawn)
        gr.Timer(POLL_SECONDS).tick(self.poll, seen, drawn, **QUIET)  # sizes and tasks are not in rows

    def draw(self) -> list[Any]:
        """Values of the outputs of the poll."""
        usage = self.storage.get()
        tail = [self.task.message, self.last_removal_html()]
        if usage is None:
            message = self.storage.problem or t(MEASURING)
            return [self.signature(), tag("p", safe(message), class_="sp-lead"), "", "", "", *tail]
        leftover_html = leftovers(usage.leftovers, str(self.settings.home))
        return [self.signature(), overview_tiles(usage), parts_table(usage), rows_table(usage), leftover_html, *tail]

    def poll(self, seen: str) -> Any:
        """Values of `drawn` if something changed since `seen`."""
        self.storage.get()
        return gr.skip() if self.signature() == seen else self.draw()

    def signature(self) -> str:
        """Changes when a measurement ends or the notice of a task changes."""
        last = self.storage.last
        return f"{last.at if last else ''}|{self.storage.problem}|{hash(self.task.message)}"

    @show_errors()
    def last_removal_html(self) -> str:
        with reading(self.settings) as session:
            return last_cleanup(session.get(Preference, retention.NOTE))

    def clean(self) -> str:
        return self._remove(retention.clean, t("Cleaning up. You can close this page …"), t("Nothing to delete."))

    def sweep(self) -> tuple[str, Any]:
        return self._remove(retention.sweep, t("Deleting leftovers …"), t("There are no leftovers.")), gr.Column(
            visible=False
        )

    def _remove(self, action: Callable[[Settings], Any], what: str, nothing: str) -> str:
        """Run `action` in the background, then measure again."""

        def work() -> str:
            deleted_text = retention.describe(action(self.settings))
            self.storage.measure()
            return t("Deleted {words}.", words=deleted_text) if deleted_text else nothing

        self.task.start(what, work)
        return self.task.message

    def count(self) -> Any:
        """Measure again; the poll shows the result."""
        self.storage.measure()
        return tag("p", safe(t(MEASURING)), class_="sp-lead")


def overview_tiles(usage: StorageUsage) -> str:
    of_all = t("of {size}", size=size(usage.disk_total))
    if usage.disk_free < 0.05 * usage.disk_total:
        of_all = t("{share} · almost full", share=of_all)
    return tiles(
        [
            (t("Free on the disk"), size(usage.disk_free), of_all),
            (t("Used by the home folder"), size(usage.used), t("measured {when}", when=ago(usage.at))),
            (t("Training states"), size(sum(item.states for item in usage.items)), t("part of the drafts")),
            (t("Leftovers"), size(usage.parts["leftovers"]), t("files not in use")),
        ]
    )


def parts_table(usage: StorageUsage) -> str:
    """Table of the parts of the home folder, largest first."""
    rows = []
    for name, bytes_ in sorted(usage.parts.items(), key=lambda item: -item[1]):
        title, page = PARTS[name]
        link = tag("a" if page else "span", safe(t(title)), href=page or None, class_="sp-row-name")
        bar = tag("progress", value=bytes_, max=max(usage.used, 1), aria_hidden="true")
        bar += tag("span", safe(size(bytes_)), class_="sp-size")
        rows.append([link, tag("div", bar, class_="sp-progress")])
    return table([t("Part"), t("Size")], rows, t("Parts of the home folder"))


PARTS = {
    "models": (N_("Models"), PAGES["models"]),
    "datasets": (N_("Datasets"), PAGES["data"]),
    "checkpoints": (N_("Drafts, with training states"), PAGES["checkpoints"]),
    "logs": (N_("Log files"), PAGES["jobs"]),
    "uploads": (N_("Uploads"), PAGES["data"]),
    "exports": (N_("Downloads, created again on request"), PAGES["checkpoints"]),
    "hidden_states": (N_("Hidden states, kept until you delete them"), PAGES["train"]),
    "engines": (N_("Installed servers"), PAGES["servers"]),
    "trackers": (N_("Trackers: data for TensorBoard and others"), PAGES["settings"]),
    "database": (N_("Database"), ""),
    "backups": (N_("Automatic backups"), ""),
    "broker": (N_("Broker: the job queue"), ""),
    "leftovers": (N_("Leftovers"), ""),
}
"""Part of the home folder → title and page."""


def rows_table(usage: StorageUsage) -> str:
    """Table of models, datasets and checkpoints, largest first, with links to their pages."""
    if not usage.items:
        return empty_state(t("Nothing yet"), t("This list shows models, datasets and drafts with their sizes."))
    rows = []
    for item in sorted(usage.items, key=lambda item: (item.outside, -item.bytes))[:SHOWN]:
        kind, page = KINDS[item.kind]
        link = tag("a", safe(item.name), href=f"{PAGES[page]}?id={item.id}", class_="sp-row-name")
        weight = t("outside the home folder") if item.outside else size(item.bytes)
        rows.append([link, *map(safe, (t(kind), weight, size(item.states) if item.states else "–"))])
    columns = [t("Name"), t("Kind"), t("Size"), t("Training states")]
    count = largest(SHOWN, len(usage.items))
    return table(columns, rows, t("Largest items"), True, columns[1:], count=count)


def largest(shown: int, total: int) -> str:
    """How many of a list are shown; "" if all are."""
    return t("The {shown} largest of {total}", shown=shown, total=total) if total > shown else ""


def leftovers(items: Sequence[Leftover], home: str) -> str:
    if not items:
        return tag("p", t("No leftovers: every file in the home folder is in use."), class_="sp-lead")
    rows = []
    for item in items[:SHOWN_LEFTOVERS]:
        texts = (str(item.path).removeprefix(home + "/"), size(item.bytes), ago(item.changed))
        rows.append([*map(safe, texts)])
    columns = [t("Path"), t("Size"), t("Last changed")]
    count = largest(len(rows), len(items))
    return table(columns, rows, t("Leftovers"), True, columns[1:], count=count)


def last_cleanup(row: Preference | None) -> str:
    if row is None:
        return notice(t("No cleanup yet. The reconciler cleans up within an hour after it starts."), "info")
    removed = row.value.get("removed", {})
    removed_text = ", ".join(f"{part['count']:,} {name}" for name, part in removed.items())
    when = ago(datetime.fromisoformat(row.value["removed_at"])) if row.value.get("removed_at") and removed else ""
    last = t("Last cleanup {when}.", when=ago(row.updated_at))
    more = (
        t("Last removed {when}: {words}.", when=when, words=removed_text)
        if removed_text
        else t("Nothing removed so far.")
    )
    return notice(f"{last} {more}", "info")

"""The Storage page: what each thing costs, what depends on it, and cleaning up. Counting happens beside it."""

import threading
from collections.abc import Callable
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.views import storage_view
from app.views.manage import LEAVE_IF_EMPTY, SMALL, delete, last_question, outcome_notice, question
from app.widgets.elements import QUIET, block, hidden, notice, on_load, page_header, section
from app.widgets.picker import on_pick, pick, picker
from app.widgets.problems import saying_errors, sentence
from app.widgets.text import safe, tag
from ops import retention, storage
from speculoos.errors import NotFound, SpeculoosError
from speculoos.settings import Settings
from tracking import changes, rules, stored
from tracking.db import reading
from tracking.tables import Preference

LEAD = "What each thing costs, what depends on it, and what can go."
COUNTING = "Counting the files of this home …"

POLL_SECONDS = 2.0


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Storage", LEAD)
    page = StoragePage(settings)
    page.build()


class Chore:
    """Something that may take long, done in a thread, one at a time; `words` says how it went."""

    def __init__(self) -> None:
        self.words = ""
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    @property
    def busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def start(self, what: str, work: Callable[[], str]) -> None:
        """Begin, unless another one goes on."""
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
            self.words = notice(sentence(error) if isinstance(error, SpeculoosError) else str(error), "bad")


class StoragePage:
    """The components, and what they show."""

    def __init__(self, settings: Settings):
        self.settings = settings
        self.surveys = storage.surveys_of(settings)
        self.chore = Chore()

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
        gr.Timer(POLL_SECONDS).tick(self.poll, self.seen, self.drawn, **QUIET)  # counts and chores are not rows
        self._wire_delete(frame)

    def _build_list(self) -> None:
        self.overview = block(elem_id="storage-overview")
        self.parts = block(elem_id="storage-parts")
        section(
            "Put in order", "The reconciler does this every hour, by the rules above; the Settings page changes them."
        )
        self.round = block(elem_id="storage-round")
        self.chore_said = block(elem_id="storage-chore")
        with gr.Row(elem_classes="sp-buttons"):
            look = gr.Button("What would go now?", elem_id="storage-look", **SMALL)
            clean = gr.Button("Clean up now", elem_id="storage-clean", **SMALL)
            again = gr.Button("Count again", elem_id="storage-count", **SMALL)
        section("Largest things", "Open one to see what depends on it, and to delete it.")
        self.things = picker("storage-things", main=True)
        section("Leftovers", "Files and folders of the home that no row names, unchanged for a day.")
        self.left = block(elem_id="storage-leftovers")
        with gr.Row(elem_classes="sp-buttons"):
            sweep = gr.Button("Remove leftovers …", elem_id="storage-sweep", **SMALL)
        asked = notice("They are removed for good. Nothing in the lists of the workbench uses them.", "warn")
        sure, _, really = last_question("storage-sweep", "Remove for good", "Keep them", asked)
        look.click(self.look, None, self.chore_said, **QUIET)
        clean.click(self.clean, None, self.chore_said, **QUIET)
        again.click(self.count, None, self.overview, **QUIET)
        sweep.click(lambda: gr.Column(visible=True), None, sure, **QUIET)
        really.click(self.sweep, None, [self.chore_said, sure], **QUIET)

    def _build_detail(self) -> None:
        self.back = picker("storage-back")
        self.one = block(elem_id="storage-one")
        self.said = block(elem_id="storage-said")
        self.delete = gr.Button("Delete", variant="stop", elem_id="storage-delete", **SMALL)
        self.confirm, self.question, self.really = last_question("storage")

    def _wire_delete(self, frame: list[Any]) -> None:
        self.delete.click(self.ask, self.chosen, [self.confirm, self.question], **QUIET)
        gone = self.really.click(self.remove, self.chosen, [self.chosen, self.said, self.confirm], **QUIET)
        gone.then(None, self.chosen, None, js=LEAVE_IF_EMPTY, api_visibility="private").then(
            self.after_removal, [self.chosen, self.said], [*frame, *self.drawn], **QUIET
        )

    def open_address(self, request: gr.Request) -> list[Any]:
        """What the address asks for, and everything that is drawn."""
        return [*self.open(str(request.query_params.get("id", ""))[:64]), *self.draw()]

    def open(self, row_id: str) -> list[Any]:
        """One thing, or the list."""
        try:
            html, problem = (self.thing_html(row_id), "") if row_id else ("", "")
        except SpeculoosError as error:
            row_id, html, problem = "", "", notice(sentence(error), "warn")
        back = pick("storage", "", "← All of the storage", class_="sp-back") if row_id else ""
        shown = (gr.Column(visible=not row_id), gr.Column(visible=bool(row_id)))
        return [row_id, *shown, problem, back, html, gr.Column(visible=False)]

    def thing_html(self, row_id: str) -> str:
        """One thing with what depends on it. Raises NotFound."""
        with reading(self.settings) as session:
            kind, row = find(session, row_id)
            used = changes.dependents(session, row)
            path = str(self.settings.home / row.path) if row.path else ""
        return storage_view.one(storage.thing(self.settings, kind, row), path, used)

    def draw(self) -> list[Any]:
        """Values of everything that the poll keeps fresh."""
        survey = self.surveys.get()
        tail = [self.chore.words, self.round_html()]
        if survey is None:
            words = self.surveys.problem or COUNTING
            return [self.signature(), tag("p", safe(words), class_="sp-lead"), "", "", "", *tail]
        shown = [
            storage_view.overview(survey),
            storage_view.parts(survey, rules.applied(self.settings)),
            storage_view.things(survey),
        ]
        return [self.signature(), *shown, storage_view.leftovers(survey.leftovers, str(self.settings.home)), *tail]

    def poll(self, seen: str) -> Any:
        """What changed since `seen`."""
        self.surveys.get()
        return gr.skip() if self.signature() == seen else self.draw()

    def signature(self) -> str:
        """Changes when another count has ended, or a chore has something to say."""
        last = self.surveys.last
        return f"{last.at.isoformat() if last else ''}|{self.surveys.problem}|{hash(self.chore.words)}"

    @saying_errors()
    def round_html(self) -> str:
        with reading(self.settings) as session:
            return storage_view.last_round(session.get(Preference, retention.NOTE))

    def look(self) -> str:
        """Say what cleaning up would remove."""

        def work() -> str:
            words = retention.in_words(retention.clean(self.settings, dry_run=True))
            return f"These would go: {words}." if words else "Nothing would go: all of it is to be kept."

        self.chore.start("Looking …", work)
        return self.chore.words

    def clean(self) -> str:
        """Apply the rules now."""
        return self._remove(retention.clean, "Cleaning up; the page may be closed …", "Nothing had to go.")

    def sweep(self) -> tuple[str, Any]:
        """Remove the leftovers."""
        words = self._remove(retention.sweep, "Removing leftovers …", "Nothing was left over.")
        return words, gr.Column(visible=False)

    def _remove(self, act: Callable[[Settings], Any], what: str, nothing: str) -> str:
        """Have `act` done beside the page, and count again."""

        def work() -> str:
            words = retention.in_words(act(self.settings))
            self.surveys.count()
            return f"Removed {words}." if words else nothing

        self.chore.start(what, work)
        return self.chore.words

    def count(self) -> Any:
        """Count anew; the poll shows the result."""
        self.surveys.count()
        return tag("p", COUNTING, class_="sp-lead")

    def ask(self, row_id: str) -> tuple[Any, str]:
        """Before something goes: what depends on it."""

        def words() -> str:
            with reading(self.settings) as session:
                kind, row = find(session, row_id)
            return question(self.settings, type(row), storage_view.KINDS[kind], row_id)

        return gr.Column(visible=True), outcome_notice(words, "warn")

    def remove(self, row_id: str) -> tuple[str, str, Any]:
        """Delete the row, its files, and what depends on it; the reader was asked."""
        try:
            with reading(self.settings) as session:
                kind, row = find(session, row_id)
            words = delete(self.settings, type(row), storage_view.KINDS[kind], row_id)
        except SpeculoosError as error:
            return row_id, notice(sentence(error), "bad"), gr.Column(visible=False)
        self.surveys.count().join(timeout=5)
        return "", notice(words, "good"), gr.Column(visible=False)

    def after_removal(self, row_id: str, words: str) -> list[Any]:
        """The list again, with the sentence on top; the thing when it could not go."""
        if row_id:
            return [gr.skip()] * (7 + len(self.drawn))
        frame = self.open("")
        return [*frame[:3], words, *frame[4:], *self.draw()]


def find(session: Session, row_id: str) -> tuple[str, Any]:
    """(kind, row) of a model, data set or checkpoint. Raises NotFound."""
    for table, kind in stored.KINDS.items():
        if row := session.get(table, row_id):
            return kind, row
    raise NotFound("This is gone; it was deleted, or the address is wrong.")

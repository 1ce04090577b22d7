"""Form that imports a published draft: base model, source, equivalent command, start."""

import shutil
from pathlib import Path
from typing import Any

import gradio as gr

from app import visitor
from app.draft_source import LAYOUTS, SOURCES, DraftForm, files_of, link_uploads, request_of
from app.links import on_event_open
from app.views import choices
from app.views.manage import SMALL
from app.widgets.elements import QUIET, block, closed_accordion, hidden, on_changes, on_load
from app.widgets.fields import dropdown, one_line, uploads
from app.widgets.problems import show_errors
from app.widgets.review import command_box
from app.widgets.text import safe, tag
from models.published import published_for
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import queries
from tracking.db import reading
from tracking.tables import Base, Job
from workers.jobs.command_line import command_for
from workers.jobs.requests import ImportDraft
from workers.jobs.submit import submit

LEAD = (
    "Published Medusa, EAGLE and EAGLE-3 heads, or a small model with the vocabulary of the base model, used without "
    "training. A draft that does not fit the base model is rejected with the reason."
)
HINTS = {
    "Hub id": ("owner/name or owner/name@revision", "Downloaded from the Hub; gated repositories need HF_TOKEN."),
    "Upload": ("", ""),
    "Local folder": ("/path/to/folder", "A folder on this server with config.json and weights."),
}
KNOWN = "Published for this base model"
KNOWN_INFO = "Known drafts for it; choosing one fills in the fields below."
WIDE = 300
"""Minimum width in pixels of a box beside another one."""
READ = (
    "The job reads its config and weights, detects its format, and keeps it only if it fits. Pickle files are read "
    "only if there are no others, and are loaded without executing code."
)


class AddDraft:
    def __init__(self, settings: Settings):
        self.settings = settings
        with closed_accordion("Add a published draft", elem_id="drafts-add") as self.box:
            block(tag("p", safe(LEAD), class_="sp-lead"))
            self._build_fields()
            self.review = block(elem_id="drafts-review")
            self.said = block(elem_id="drafts-said")
            with gr.Row(elem_classes="sp-buttons"):
                self.start = gr.Button("Add draft", variant="primary", elem_id="drafts-submit", **SMALL)
            self.target = hidden("drafts-target")
        self.fields = [self.source, self.base, self.location, self.files, self.layout, self.name]
        self._wire()

    def _build_fields(self) -> None:
        with gr.Row(equal_height=True):
            self.base = dropdown(
                [], label="Base model", info="The base model of the draft.", elem_id="drafts-base", min_width=WIDE
            )
            self.source = gr.Radio([*SOURCES], value="Hub id", label="Source", elem_id="drafts-source", min_width=WIDE)
        self.known = dropdown(
            [], label=KNOWN, info=KNOWN_INFO, elem_id="drafts-known", visible=False, value=None, min_width=WIDE
        )
        placeholder, info = HINTS["Hub id"]
        self.location = one_line("Location", "drafts-location", placeholder=placeholder, info=info)
        label = f"config.json and the weights, at most {self.settings.max_upload_mb} MB in total"
        self.files = uploads(label=label, elem_id="drafts-files", height=150, visible=False)
        with gr.Row():
            self.name = one_line(
                "Name (optional)", "drafts-name", info="Name of the checkpoint.", max_length=200, min_width=WIDE
            )
            self.layout = dropdown(
                LAYOUTS,
                value="",
                label="Format",
                info="Choose one only if it is detected incorrectly.",
                elem_id="drafts-layout",
                min_width=WIDE,
            )

    def _wire(self) -> None:
        on_load(self.opened, [self.box, self.base, self.known])
        self.base.change(self.offer, self.base, self.known, **QUIET)
        self.known.input(take, self.known, [self.source, self.location], **QUIET)
        self.source.change(hint, self.source, [self.location, self.files], **QUIET)
        on_changes(self.fields, self.look, self.review)
        for event in (self.start.click, self.location.submit):
            on_event_open(event, self.add, self.fields, self.said, self.target)

    def opened(self, request: gr.Request) -> list[Any]:
        """Choices of bases; opened for `?base=`."""
        try:
            with reading(self.settings) as session:
                bases = choices.bases(session)
        except SpeculoosError:
            return [gr.skip()] * 3
        wanted = request.query_params.get("base")
        base = choices.valid_choice(bases, wanted or "")
        box = gr.skip() if wanted is None else gr.Accordion(open=True)
        return [box, gr.Dropdown(bases, value=base), self.offer(base)]

    def offer(self, base_id: Any) -> Any:
        """Dropdown of drafts published for a base; hidden if none is known."""
        with reading(self.settings) as session:
            base = session.get(Base, base_id) if isinstance(base_id, str) else None
            drafts = published_for(base.location, base.name) if base else []
        options = [(f"{draft.kind} · {draft.location}", draft.location) for draft in drafts]
        return gr.Dropdown(options, value=None, visible=bool(drafts))

    @show_errors(tone="warn")
    def look(self, *values: Any) -> str:
        """What the job will do, and the equivalent command."""
        form = DraftForm.of(*values)
        if form.is_empty:
            return ""
        request, base = request_of(self.settings, form), self._base(form)
        files_of(self.settings, form)  # raises BadInput
        command = command_box(command_for(request, {base.id: base.name}, form.name))
        return tag("div", tag("p", safe(READ), class_="sp-hint") + command, class_="sp-stack")

    @show_errors("")
    def add(self, *values: Any) -> tuple[str, str]:
        form = DraftForm.of(*values)
        request = request_of(self.settings, form)
        self._base(form)  # raises NotFound
        files_of(self.settings, form)  # raises BadInput
        return "", f"/jobs?id={self._submit(form, request).id}"

    def _submit(self, form: DraftForm, request: ImportDraft) -> Job:
        link_uploads(self.settings, form, request)
        try:
            return submit(request, name=form.name, user=visitor.user(), settings=self.settings)
        except BaseException:
            if form.kind == "upload":
                shutil.rmtree(Path(request.location).parent, ignore_errors=True)
            raise

    def _base(self, form: DraftForm) -> Base:
        with reading(self.settings) as session:
            return queries.find_base(session, form.base_id)


def take(location: Any) -> tuple[Any, Any]:
    return ("Hub id", location) if location and isinstance(location, str) else (gr.skip(), gr.skip())


def hint(source: str) -> tuple[Any, Any]:
    placeholder, info = HINTS[source]
    is_upload = source == "Upload"
    return gr.Textbox(placeholder=placeholder, info=info, visible=not is_upload), gr.File(visible=is_upload)

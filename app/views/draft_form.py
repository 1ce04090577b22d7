"""Form that imports a published draft: base model, source, equivalent command, start."""

import shutil
from pathlib import Path
from typing import Any

import gradio as gr

from app import visitor
from app.draft_source import LAYOUTS, SOURCES, draft_request, link_uploads
from app.i18n import N_, t
from app.links import on_event_open
from app.views import choices
from app.views.manage import SMALL
from app.widgets.elements import QUIET, block, closed_accordion, keep_in_address, on_changes, on_load
from app.widgets.fields import dropdown, one_line, upload_box
from app.widgets.problems import show_errors
from app.widgets.review import command_box
from app.widgets.setting_fields import entered
from app.widgets.text import safe, tag
from speculoos.settings import Settings
from tracking import queries
from tracking.db import reading
from workers.jobs.request import command_for
from workers.jobs.submit import submit

LEAD = N_("A Medusa, EAGLE, EAGLE-3, P-EAGLE or DFlash draft, or a small model with the base model's vocabulary.")
HINTS = {
    "hub": (
        "owner/name or owner/name@revision",
        N_("From the Hugging Face Hub; gated ones need a token: see Settings."),
    ),
    "upload": ("", ""),
    "folder": ("/path/to/folder", N_("A folder on this server with config.json and weights.")),
}
WIDE = 300
"""Minimum width in pixels of a box beside another one."""
READ = N_("Rejected if it does not fit the base model. Pickle files are loaded without executing code.")


class AddDraft:
    def __init__(self, settings: Settings):
        self.settings = settings
        with closed_accordion(t("Add a published draft"), elem_id="drafts-add", elem_classes="sp-action") as box:
            block(tag("p", safe(t(LEAD)), class_="sp-lead"))
            with gr.Row(equal_height=True):
                self.base = dropdown(
                    [],
                    label=t("Base model"),
                    info=t("The model that the draft was trained for."),
                    elem_id="drafts-base",
                    min_width=WIDE,
                )
                sources = [(t(title), kind) for kind, title in SOURCES.items()]
                self.source = gr.Radio(sources, value="hub", label=t("Source"), elem_id="drafts-source", min_width=WIDE)
            placeholder, info = next(iter(HINTS.values()))
            self.location = one_line(t("Location"), "drafts-location", placeholder=placeholder, info=t(info))
            label = t("config.json and weights, max {max_upload_mb} MB in total", max_upload_mb=settings.max_upload_mb)
            files = upload_box(label=label, file_count="multiple", elem_id="drafts-files", height=150, visible=False)
            with gr.Row():
                name_options = {"max_length": 200, "min_width": WIDE}
                name = one_line(t("Name (optional)"), "drafts-name", **name_options)
                info = t("Overrides detection.")
                layout = dropdown(
                    [(t(name), value) for name, value in LAYOUTS],
                    value="",
                    label=t("Format"),
                    info=info,
                    elem_id="drafts-layout",
                    min_width=WIDE,
                )
            review, message = block(elem_id="drafts-review"), block(elem_id="drafts-message")
            with gr.Row(elem_classes="sp-buttons"):
                start = gr.Button(t("Add draft"), variant="primary", elem_id="drafts-submit", **SMALL)
        fields = [self.source, self.base, self.location, files, layout, name]
        self.url_fields = {field.elem_id: field for field in (self.source, self.base, self.location, layout, name)}
        keep_in_address(self.url_fields)
        on_load(self.opened, [box, files, *self.url_fields.values()])
        self.source.change(hint, self.source, [self.location, files], **QUIET)
        on_changes(fields, self.look, review)
        on_event_open([start.click, self.location.submit], self.add, fields, message)

    def opened(self, request: gr.Request) -> list[Any]:
        """The form as the URL holds it, then opened; `?base=` chooses a base model."""
        query = request.query_params
        entered_values = entered(self.url_fields, query)
        with reading(self.settings) as session:
            bases = choices.bases(session)
        box = gr.Accordion(open=True) if entered_values or "base" in query else gr.skip()
        base = choices.valid_choice(bases, entered_values.get("drafts-base") or query.get("base"))
        files = gr.File(visible=entered_values.get("drafts-source") == "upload")
        values = {name: entered_values.get(name, gr.skip()) for name in self.url_fields}
        return [box, files, *(values | {"drafts-base": gr.Dropdown(bases, value=base)}).values()]

    @show_errors(tone="warn")
    def look(self, kind: str, base_id: str | None, location: str, uploads: list[str] | None, *more: Any) -> str:
        """What the job will do, and the equivalent command; "" if no draft is specified yet."""
        if not (uploads if kind == "upload" else location.strip()):
            return ""
        request = draft_request(self.settings, kind, base_id, location, uploads, *more)
        with reading(self.settings) as session:
            base = queries.find_base(session, request.base_id)
        command = command_box(command_for(request, {base.id: base.name}, (more[-1] or "").strip()))
        return tag("div", tag("p", safe(t(READ)), class_="sp-hint") + command, class_="sp-stack")

    @show_errors("")
    def add(self, *values: Any) -> tuple[str, str]:
        *_, uploads, _, name = values
        request = draft_request(self.settings, *values)
        try:
            if request.source == "upload":
                link_uploads(uploads, request)
            job = submit(request, name=(name or "").strip(), user=visitor.user(), settings=self.settings)
        except BaseException:
            if request.source == "upload":
                shutil.rmtree(Path(request.location).parent, ignore_errors=True)
            raise
        return "", f"/runs?id={job.id}"


def hint(source: str) -> tuple[Any, Any]:
    placeholder, info = HINTS[source]
    is_upload = source == "upload"
    return gr.Textbox(placeholder=placeholder, info=t(info), visible=not is_upload), gr.File(visible=is_upload)

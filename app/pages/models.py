"""The Models page: base models, their details, and a form to add one; `?id=` opens one."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import visitor
from app.forms import SOURCES, fetch_request
from app.links import on_event_open
from app.views import model_view
from app.views.manage import SMALL, Manage, note_line
from app.views.plan_form import PlanForm
from app.widgets.elements import QUIET, block, closed_accordion, hidden, page_header, section
from app.widgets.fields import one_line
from app.widgets.list_page import Listing, ListPage, signature_of
from app.widgets.list_query import ListQuery, empty_list_html, filtered_query
from app.widgets.picker import live, pager
from app.widgets.problems import show_errors
from app.widgets.text import tag
from ops.starter import ensure_starter
from speculoos.settings import Settings
from tracking import listing, queries
from tracking.db import writing
from tracking.paging import page as page_of
from tracking.tables import Base, Job
from workers.jobs.submit import submit

HINTS = {
    "Hub id": ("owner/name", "Downloaded from the Hugging Face Hub; gated models need HF_TOKEN in the environment."),
    "Local folder": (
        "/path/to/folder",
        "A Hugging Face model folder on this machine: config.json, weights, tokenizer.",
    ),
    "GGUF file": (
        "/path/to/model.gguf",
        "Converted once to safetensors. A GGUF file and its original count as two models.",
    ),
    "Starter model": ("", "SmolLM2-135M-Instruct, included in the installation."),
}


def table(session: Session, which: ListQuery, place: str = "") -> str:
    """A page of the list of models."""
    shown = page_of(session, filtered_query(queries.base_query(), which), place)
    if not shown.rows:
        return empty_list_html(which, "model", "Add one above: a Hub id, a folder, a GGUF file or the starter model.")
    cards = tag("div", "".join(map(model_view.card, shown.rows)), class_="sp-cards")
    return cards + pager("models", shown, which)


MODELS = Listing("models", Base, "model", table, signature_of(Base))


def build(settings: Settings) -> None:
    page_header("Models", "Base models to speed up. A model is identified by the hash of its weights.")
    page = ListPage(settings, MODELS)
    with page.listing():
        build_add(settings)
    with page.opened():
        panel = ModelPanel(settings, page.chosen)
    page.wire(panel)
    panel.manage.wire(*page.again)


def build_add(settings: Settings) -> None:
    with closed_accordion("Add a model", elem_id="models-add"):
        source = gr.Radio(list(SOURCES), value="Hub id", label="Source", elem_id="models-source")
        with gr.Row():
            placeholder, info = HINTS["Hub id"]
            location = one_line("Location", "models-location", placeholder=placeholder, info=info, scale=3)
            name = one_line("Name (optional)", "models-new-name", info="Name on these pages.", scale=2)
        message = block(elem_id="models-said")
        add = gr.Button("Add model", variant="primary", elem_id="models-submit", **SMALL)
        target = hidden("models-target")
    source.change(hint, source, location, **QUIET)
    values = [source, location, name]
    for event in (add.click, location.submit):
        on_event_open(event, partial(add_model, settings), values, message, target)


def hint(source: str) -> Any:
    """The location field for a source."""
    placeholder, info = HINTS[source]
    return gr.Textbox(placeholder=placeholder, info=info, visible=source != "Starter model")


@show_errors("")
def add_model(settings: Settings, source: str, location: str, name: str) -> tuple[str, str]:
    """Submit the download job, or add the installed starter: (error notice, URL)."""
    request = fetch_request(settings, source, location)
    if request.source == "starter":
        with writing(settings) as session:
            if installed := ensure_starter(session, settings):
                return "", f"/models?id={installed.id}"
    job = submit(request, name=name.strip(), user=visitor.user(), settings=settings)
    return "", f"/models?id={job.request['base_id']}"


class ModelPanel:
    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.head = live("model-head")
        self.facts = block(elem_id="model-facts")
        section("Supported draft methods")
        self.methods = block(elem_id="model-methods")
        self.plan = PlanForm(settings, chosen)
        self.manage = Manage(settings, Base, "model", "model", chosen)
        self.live = [self.head, self.facts, self.methods]
        self.outputs = [*self.live, *self.plan.outputs, *self.manage.outputs]

    def live_view(self, session: Session, base: Base) -> list[Any]:
        job = session.get(Job, base.job_id) if base.job_id else None
        waits = listing.Queues(session).waits_for(job) if job else ""
        parts = [model_view.title(base), note_line(base), model_view.state(base, job, waits), model_view.uses(base)]
        head = tag("div", "".join(parts), class_="sp-stack", data_state=base.state)
        methods = model_view.methods(base) or tag("p", "Known after the download.", class_="sp-lead")
        return [head, model_view.details(base), methods]

    def view(self, session: Session, base: Base | None, query: Mapping[str, str]) -> list[Any]:
        live = self.live_view(session, base) if base else [gr.skip()] * len(self.live)
        return [*live, *self.plan.view(session, base, query), *self.manage.view(base)]

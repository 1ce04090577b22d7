"""The Guided run page: a model, prompts and a time budget → a draft, measured and exported. `?experiment=` opens a
run."""

from pathlib import Path
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import visitor
from app.forms import import_request
from app.i18n import N_, t
from app.links import on_event_open
from app.pages.home import now
from app.paths import PAGES
from app.views import choices, guided_view
from app.views.import_form import PROMPTS_ONLY, require_rows
from app.views.manage import SMALL
from app.widgets.elements import block, keep_in_address, notice, on_load, on_typing, page_header
from app.widgets.fields import dropdown, upload_box
from app.widgets.list_page import live_page
from app.widgets.picker import live
from app.widgets.problems import show_errors
from app.widgets.text import safe, safe_with_code, tag
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Base, Experiment
from workers.jobs.builtin import BUILT_IN, PROMPTS
from workers.jobs.guided import (
    BUDGETS,
    EXPORTED_LAYERS,
    SHORT,
    SHORT_ANSWERS,
    SHORT_QUESTIONS,
    can_export,
    submit_guided,
)

LEAD = N_("From your model, prompts and a time budget to a draft, measured and exported.")
STEPS = N_(
    "Generates responses, trains an EAGLE-3 draft, evaluates it and exports it for vLLM. "
    "The run continues if this page is closed."
)


def build(settings: Settings) -> None:
    page_header(t("Guided run"), t(LEAD))
    GuidedPage(settings)


def draw(session: Session, experiment_id: str) -> list[Any]:
    """The run, or a link to the last one; whether the form is shown."""
    experiment = session.get(Experiment, experiment_id)
    if experiment:
        again = tag("a", t("← Another guided run"), href=PAGES["guided"], class_="sp-back")
        html = again + guided_view.run_view(session, experiment)
    else:
        last = guided_view.latest(session)
        link = f"{PAGES['guided']}?experiment={last.id}" if last else ""
        html = notice(t("Last run: {name}.", name=last.name), "info", link, t("Open")) if last else ""
    return [html, gr.Column(visible=experiment is None)]


class GuidedPage:
    def __init__(self, settings: Settings):
        self.settings = settings
        with gr.Column(elem_id="guided-form") as self.form:
            with gr.Row(equal_height=True):
                self.base = dropdown([], label=t("Base model"), elem_id="guided-base")
                self.prompts = dropdown([], label=t("Prompts"), elem_id="guided-prompts")
            block(tag("a", t("Add a model"), href=PAGES["models"], class_="sp-back"))
            self.upload = upload_box(label=t("Or your own file"), elem_id="guided-upload", height=140)
            kinds = t(
                "Used in place of the prompts above: JSONL with one {row} per line, JSON, CSV or parquet.",
                row='`{"prompt": "…"}`',
            )
            block(tag("p", safe_with_code(kinds), class_="sp-hint"))
            self.budget = gr.Radio(
                [(t(name), name) for name in BUDGETS],
                value=[*BUDGETS][0],
                label=t("Time budget"),
                elem_id="guided-budget",
            )
            block(tag("p", safe(t(STEPS)), class_="sp-lead"))
            self.note = block(elem_id="guided-note")
            message = block(elem_id="guided-message")
            start = gr.Button(t("Start"), variant="primary", elem_id="guided-start", **SMALL)
        run = [live("guided-run"), self.form]
        live_page(settings, "guided", now, draw, run, lambda query: (query.get("experiment") or "")[:64])
        on_load(self.open_address, [message, self.base, self.prompts, self.budget, self.note])
        on_typing([self.base, self.budget], self.limits, [self.base, self.budget], self.note)
        inputs = [self.base, self.prompts, self.upload, self.budget]
        on_event_open(start.click, self.submit, inputs, message)
        keep_in_address({"base": self.base, "prompts": self.prompts, "budget": self.budget})

    @show_errors(gr.skip(), gr.skip(), gr.skip(), gr.skip())
    def open_address(self, request: gr.Request) -> list[Any]:
        query = request.query_params
        with reading(self.settings) as session:
            bases, sets = choices.bases(session), choices.datasets(session, "prompts")
        sets = [(t("Built-in prompts · {rows:,} rows", rows=BUILT_IN[PROMPTS].rows), PROMPTS), *sets]
        base = choices.valid_choice(bases, query.get("base"))
        budget = query.get("budget") if query.get("budget") in BUDGETS else next(iter(BUDGETS))
        prompts = gr.Dropdown(sets, value=choices.valid_choice(sets, query.get("prompts")))
        return ["", gr.Dropdown(bases, value=base), prompts, budget, self.limits(base, budget)]

    @show_errors()
    def limits(self, base_id: str | None, budget: str) -> str:
        """What a run of this budget measures, and whether its draft can be exported."""
        with reading(self.settings) as session:
            base = session.get(Base, base_id or "")
        sentences = ""
        if BUDGETS.get(budget, 0) <= SHORT:
            sentences = t("Short responses of up to {max_tokens} tokens.", max_tokens=SHORT_ANSWERS["max_tokens"]) + " "
            sentences += t("Evaluation: {limit} questions of up to {max_tokens} tokens.", **SHORT_QUESTIONS)
        html = tag("p", safe(sentences), class_="sp-hint")
        if base and not can_export(base):
            text = t(
                "No export: servers load EAGLE-3 drafts of base models with {n} or more layers.", n=EXPORTED_LAYERS
            )
            html += notice(text, "warn")
        return tag("div", html, class_="sp-stack")

    @show_errors("")
    def submit(self, base: str, prompts: str, upload: str | None, budget: str) -> tuple[str, str]:
        """Submit the jobs: (error notice, URL of the run)."""
        source: Any = prompts or PROMPTS
        if upload:
            require_rows(Path(upload), PROMPTS_ONLY)
            source = import_request(self.settings, upload, "", None)
        minutes = BUDGETS.get(budget, next(iter(BUDGETS.values())))
        chain = submit_guided(self.settings, base, source, minutes, user=visitor.user())
        return "", f"{PAGES['guided']}?experiment={chain.experiment_id}"

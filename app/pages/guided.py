"""The Guided run page: a model, prompts and a time budget → a draft, measured and exported. `?experiment=` opens a
run."""

from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import visitor
from app.forms import import_request
from app.links import on_event_open
from app.paths import PAGES
from app.views import choices, guided_view
from app.views.import_form import TYPES
from app.views.manage import SMALL
from app.widgets.elements import block, hidden, keep_in_address, notice, on_change, on_load, page_header
from app.widgets.fields import dropdown, upload_box
from app.widgets.picker import live
from app.widgets.problems import error_text, show_errors
from app.widgets.text import safe, tag
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking import listing
from tracking.db import reading
from tracking.tables import Experiment
from workers.jobs.builtin import BUILT_IN, PROMPTS
from workers.jobs.guided import BUDGETS, submit_guided

LEAD = "From your model, prompts and a time budget to a draft, measured and exported."
STEPS = "Generates responses, trains an EAGLE-3 draft, evaluates and exports it for vLLM, also if you close this page."


def build(settings: Settings) -> None:
    page_header("Guided run", LEAD)
    GuidedPage(settings)


class GuidedPage:
    def __init__(self, settings: Settings):
        self.settings = settings
        self.experiment, self.seen = hidden("guided-experiment"), hidden("guided-seen")
        with gr.Column(elem_id="guided-form") as self.form:
            with gr.Row(equal_height=True):
                self.base = dropdown([], label="Base model", elem_id="guided-base")
                self.prompts = dropdown([], label="Prompts", elem_id="guided-prompts")
            label = "Or your own file (JSONL, CSV, parquet)"
            self.upload = upload_box(label=label, file_types=TYPES, elem_id="guided-upload", height=140)
            self.budget = gr.Radio([*BUDGETS], value=[*BUDGETS][0], label="Time budget", elem_id="guided-budget")
            block(tag("p", safe(STEPS), class_="sp-lead"))
            message = block(elem_id="guided-said")
            start = gr.Button("Start", variant="primary", elem_id="guided-start", **SMALL)
        self.run = live("guided-run")
        shown = [self.experiment, self.seen, self.form, self.base, self.prompts, self.budget, self.run]
        on_load(self.open_address, shown)
        inputs = [self.base, self.prompts, self.upload, self.budget]
        on_event_open(start.click, self.submit, inputs, message)
        keep_in_address({"base": self.base, "prompts": self.prompts, "budget": self.budget})
        names = {"chosen": "guided-experiment", "seen": "guided-seen"}
        on_change("guided", self.poll, [self.experiment, self.seen], [self.seen, self.run], **names)

    def open_address(self, request: gr.Request) -> list[Any]:
        query = request.query_params
        try:
            with reading(self.settings) as session:
                experiment = session.get(Experiment, str(query.get("experiment") or "")[:64])
                bases = choices.bases(session)
                built_in = BUILT_IN[PROMPTS]
                sets = [(f"Built-in prompts · {built_in.rows:,} rows", PROMPTS), *choices.datasets(session, "prompts")]
                return [
                    experiment.id if experiment else "",
                    listing.signature(session),
                    gr.Column(visible=experiment is None),
                    gr.Dropdown(bases, value=choices.valid_choice(bases, query.get("base"))),
                    gr.Dropdown(sets, value=choices.valid_choice(sets, query.get("prompts"))),
                    query.get("budget") if query.get("budget") in BUDGETS else gr.skip(),
                    self._run(session, experiment),
                ]
        except SpeculoosError as error:
            return [*[gr.skip()] * 6, notice(error_text(error), "bad")]

    def _run(self, session: Session, experiment: Experiment | None) -> str:
        if experiment:
            again = tag("a", "← Another guided run", href=PAGES["guided"], class_="sp-back")
            return again + guided_view.run_view(session, experiment)
        last = guided_view.latest(session)
        link = f"{PAGES['guided']}?experiment={last.id}" if last else ""
        return notice(f"Last run: {last.name}.", "info", link, "Open") if last else ""

    def poll(self, experiment_id: str, seen: str) -> Any:
        try:
            with reading(self.settings) as session:
                now = listing.signature(session)
                return gr.skip() if now == seen else [now, self._run(session, session.get(Experiment, experiment_id))]
        except SpeculoosError:
            return gr.skip()

    @show_errors("")
    def submit(self, base: str, prompts: str, upload: str | None, budget: str) -> tuple[str, str]:
        """Submit the jobs: (error notice, URL of the run)."""
        source = import_request(self.settings, upload, "", None) if upload else prompts or PROMPTS
        minutes = BUDGETS.get(budget, next(iter(BUDGETS.values())))
        chain = submit_guided(self.settings, base, source, minutes, user=visitor.user())
        return "", f"{PAGES['guided']}?experiment={chain.experiment_id}"

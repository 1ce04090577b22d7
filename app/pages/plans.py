"""The Plans page: predicted speedups of drafts on this or another machine before training; `?id=` opens a plan."""

import json
from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.forms import whole
from app.links import on_event_open
from app.views import choices, plan_view
from app.views.job_start import command_of, started
from app.views.manage import SMALL
from app.widgets.elements import QUIET, block, closed_accordion, hidden, notice, on_load, on_typing, page_header
from app.widgets.fields import dropdown, one_line
from app.widgets.list_page import Listing, ListPage
from app.widgets.picker import live
from app.widgets.problems import error_text
from app.widgets.setting_fields import setting_control
from speculoos.errors import BadInput, SpeculoosError
from speculoos.settings import Settings
from tracking import queries
from tracking.db import reading
from tracking.tables import Base, Job
from workers.jobs.requests import PlanRequest

LEAD = "Predicts the speedup of draft shapes and batch sizes from measured step times and acceptance rates."
NO_DRAFT = ("None: standalone drafts with layers of the base model", "")
FIGURES = "JSON written by `speculoos plan --keep FILE` on the other machine. Empty: measure on this machine."
WIDTH = "Hidden size of standalone drafts"
LONGEST = 200_000
PLANS = Listing("plans", Job, "plan", plan_view.plans_table, plan_view.signature)


class PlanForm:
    """The form of a plan, inside the current Blocks."""

    def __init__(self, settings: Settings):
        self.settings = settings
        with gr.Row(equal_height=True):
            self.base = dropdown([], label="Base model", elem_id="plans-base", min_width=240)
            self.draft = dropdown([NO_DRAFT], value="", label="Draft", elem_id="plans-draft", min_width=240)
        with closed_accordion("Batch sizes, layers, another machine", elem_id="plans-more"):
            with gr.Row():
                self.batches = setting_control(PlanRequest.options()["batches"], "plans-batches")
                self.layers = setting_control(PlanRequest.options()["layers"], "plans-layers")
                self.width = one_line(WIDTH, "plans-width", placeholder="as the base model")
            self.figures = gr.Textbox(
                label="Measurements of another machine", info=FIGURES, lines=3, max_lines=8, elem_id="plans-figures"
            )
        self.review = block(elem_id="plans-review")
        self.said = block(elem_id="plans-said")
        with gr.Row(elem_classes="sp-buttons"):
            self.start = gr.Button("Plan", variant="primary", elem_id="plans-submit", **SMALL)
        self.target = hidden("plans-target")
        self.values = [self.base, self.draft, self.batches, self.layers, self.figures, self.width]
        self._wire()

    def _wire(self) -> None:
        on_load(self.open_address, [self.base, self.draft, self.review])
        again = (self.review_now, self.values, self.review)
        self.base.input(self.choose_base, self.base, self.draft, **QUIET).then(*again, **QUIET)
        on_typing((self.draft, self.batches, self.layers, self.figures, self.width), *again)
        on_event_open(self.start.click, self.submit, self.values, self.said, self.target)

    def open_address(self, request: gr.Request) -> list[Any]:
        """The choices, with the base model and the draft of `?base=` and `?checkpoint=` selected."""
        try:
            with reading(self.settings) as session:
                bases = choices.bases(session)
                base = choices.valid_choice(bases, str(request.query_params.get("base", ""))[:64])
                requested = str(request.query_params.get("checkpoint", ""))[:64]
                drafts = draft_choices(session, base or "")
                draft = choices.valid_choice(drafts, requested) or ""
        except SpeculoosError as error:
            return [gr.skip(), gr.skip(), notice(error_text(error), "bad")]
        return [
            gr.Dropdown(bases, value=base),
            gr.Dropdown(drafts, value=draft),
            self.review_now(base or "", draft, "1,2,4,8,16", "2,4,8", ""),
        ]

    def choose_base(self, base: str) -> Any:
        """The drafts of a newly selected base model."""
        with reading(self.settings) as session:
            drafts = draft_choices(session, base or "")
        return gr.Dropdown(drafts, value=drafts[0][1])

    def review_now(self, *values: Any) -> str:
        """The equivalent command, or an error."""
        return command_of(self.settings, lambda: plan_request(*values))

    def submit(self, *values: Any) -> tuple[str, str]:
        """Queue the job: (error notice, URL)."""
        return started(self.settings, lambda: plan_request(*values), "plans")


def draft_choices(session: Session, base_id: str) -> list[tuple[str, str]]:
    """Checkpoints of a base model, newest first, then NO_DRAFT."""
    base = session.get(Base, base_id)
    rows = queries.checkpoints(session, base.id, ready_only=True) if base else []
    return [*((row.name, row.id) for row in rows), NO_DRAFT]


def plan_request(base: str, draft: str, batches: str, layers: str, figures: str, width: str = "") -> PlanRequest:
    """The request of the form's values. Raises BadInput with the field's name."""
    if not base:
        raise BadInput("Base model: there is none yet; add one on the Models page.")
    return PlanRequest(
        base_id=base,
        checkpoint_id=draft or "",
        batches=batches or "",
        layers=layers or "",
        costs=figures_of(figures),
        draft_hidden_size=whole(WIDTH, width, low=1, high=10**6, default=0),
    )


def figures_of(text: str) -> dict[str, Any]:
    """Measurements of another machine; {} for an empty field. The job checks the keys."""
    if not (text or "").strip():
        return {}
    if len(text) > LONGEST:
        raise BadInput(f"Measurements of another machine: more than {LONGEST:,} characters; shorten it.")
    try:
        costs = json.loads(text)
    except (ValueError, RecursionError):
        costs = None
    if not isinstance(costs, dict) or "target_ms" not in costs:
        raise BadInput(
            "Measurements of another machine: enter the JSON object that `speculoos plan --keep FILE` wrote."
        )
    return costs


class PlanPanel:
    """The components of one plan and their values."""

    def __init__(self) -> None:
        self.head = live("plan-head")
        self.pictures = block(elem_id="plans-pictures")
        self.shapes = block(elem_id="plans-shapes")
        self.standalone = block(elem_id="plans-standalone")
        self.conditions = block(elem_id="plans-conditions")
        self.live = self.outputs = [self.head, self.pictures, self.shapes, self.standalone, self.conditions]

    def live_view(self, session: Session, job: Job) -> list[Any]:
        """Values of `live`."""
        drawn = (plan_view.pictures, plan_view.shapes_table, plan_view.standalone_table, plan_view.conditions)
        return [plan_view.head(session, job), *(draw(job) for draw in drawn)]

    def view(self, session: Session, job: Job | None, query: Mapping[str, str]) -> list[Any]:
        """Values of `outputs` for a newly opened plan."""
        return self.live_view(session, job) if job else [""] * len(self.live)


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Plans", LEAD)
    page = ListPage(settings, PLANS)
    with page.listing():
        PlanForm(settings)
    with page.opened():
        panel = PlanPanel()
    page.wire(panel)

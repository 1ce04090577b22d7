"""Form on a model's page: predict the speedup of drafts on this or another machine before training."""

import json
from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.forms import whole
from app.views import choices
from app.views.job_forms import JobForm
from app.widgets.elements import block, closed_accordion
from app.widgets.fields import dropdown, one_line
from app.widgets.setting_fields import setting_control
from app.widgets.text import safe, tag
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import queries
from tracking.tables import Base
from workers.jobs.requests import PlanRequest

LEAD = "Predicts the speedup of draft shapes and batch sizes from measured step times and acceptance rates."
NO_DRAFT = ("None: standalone drafts with layers of the base model", "")
FIGURES = "JSON written by `speculoos plan --keep FILE` on the other machine. Empty: measure on this machine."
WIDTH = "Hidden size of standalone drafts"
LONGEST = 200_000


class PlanForm:
    """The form, inside the current Blocks. `chosen` holds the id of the base model."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        with closed_accordion("Plan a draft", elem_id="plans", visible=False) as self.box:
            block(tag("p", safe(LEAD), class_="sp-lead"))
            with gr.Row():
                self.draft = dropdown([NO_DRAFT], value="", label="Draft", elem_id="plans-draft", min_width=240)
                batches = setting_control(PlanRequest.options()["batches"], "plans-batches")
                layers = setting_control(PlanRequest.options()["layers"], "plans-layers")
                width = one_line(WIDTH, "plans-width", placeholder="as the base model")
            figures = gr.Textbox(
                label="Measurements of another machine", info=FIGURES, lines=2, max_lines=8, elem_id="plans-figures"
            )
            fields = {"base": chosen, "draft": self.draft, "batches": batches, "layers": layers}
            form = JobForm(settings, "plans", "Plan", {**fields, "figures": figures, "width": width}, plan_request)
        self.outputs = [self.box, self.draft, form.review]

    def view(self, session: Session, base: Base | None, query: Mapping[str, str]) -> list[Any]:
        """Values of `outputs`; `?checkpoint=` selects a draft and opens the form."""
        if base is None or base.state != "ready":
            return [gr.Accordion(visible=False), gr.skip(), ""]
        drafts = [(row.name, row.id) for row in queries.checkpoints(session, base.id, ready_only=True)] + [NO_DRAFT]
        requested = query.get("checkpoint", "")
        box = gr.Accordion(visible=True, open=True) if requested else gr.Accordion(visible=True)
        return [box, gr.Dropdown(drafts, value=choices.valid_choice(drafts, requested or None)), ""]


def plan_request(base: str, draft: str, batches: str, layers: str, figures: str, width: str = "") -> PlanRequest:
    """The request of the form's values. Raises BadInput with the field's name."""
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
    try:
        costs = json.loads(text) if len(text) <= LONGEST else None
    except (ValueError, RecursionError):
        costs = None
    if not isinstance(costs, dict) or "target_ms" not in costs:
        raise BadInput(
            f"Measurements of another machine: enter the JSON object that `speculoos plan --keep FILE` wrote, at most "
            f"{LONGEST:,} characters."
        )
    return costs

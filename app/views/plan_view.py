"""Plans: the form on a model's page that predicts the speedup of drafts before training, and
the result on its job's page."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.i18n import N_, t
from app.views import choices
from app.views.job_forms import JobForm
from app.widgets.elements import block, closed_accordion, facts, notice, row_note
from app.widgets.fields import dropdown
from app.widgets.formatting import interval
from app.widgets.picker import table
from app.widgets.setting_fields import setting_control
from app.widgets.text import safe, tag
from speculoos.settings import Settings
from tracking import queries
from tracking.tables import Base, Job
from workers.jobs.requests import PlanRequest

PLAIN = "plain"
Result = Mapping[str, Any]
LEAD = N_("Predicts the speedup of draft shapes and batch sizes from measured step times and acceptance rates.")


class PlanForm:
    """The form, inside the current Blocks. `chosen` holds the id of the base model."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        with closed_accordion(t("Plan a draft"), elem_id="plans", visible=False) as self.box:
            block(tag("p", safe(t(LEAD)), class_="sp-lead"))
            with gr.Row():
                self.draft = dropdown([no_draft()], value="", label=t("Draft"), elem_id="plans-draft", min_width=240)
                batches = setting_control(PlanRequest.options()["batches"], "plans-batches")
                layers = setting_control(PlanRequest.options()["layers"], "plans-layers")
            fields = {"base": chosen, "draft": self.draft, "batches": batches, "layers": layers}
            form = JobForm(settings, "plans", t("Find the fastest settings"), fields, plan_request)
        self.outputs = [self.box, self.draft, form.review]

    def view(self, session: Session, base: Base | None, query: Mapping[str, str]) -> list[Any]:
        """Values of `outputs`; `?checkpoint=` selects a draft and opens the form."""
        if base is None or base.state != "ready":
            return [gr.Accordion(visible=False), gr.skip(), ""]
        drafts = [(row.name, row.id) for row in queries.checkpoints(session, base.id, ready_only=True)] + [no_draft()]
        requested = query.get("checkpoint", "")
        box = gr.Accordion(visible=True, open=True) if requested else gr.Accordion(visible=True)
        return [box, gr.Dropdown(drafts, value=choices.valid_choice(drafts, requested or None)), ""]


def no_draft() -> tuple[str, str]:
    """The choice of a plan without a draft."""
    return t("None: standalone drafts with layers of the base model"), ""


def plan_request(base: str, draft: str, batches: str, layers: str) -> PlanRequest:
    """The request of the form's values. Raises BadInput with the field's name."""
    return PlanRequest(base_id=base, checkpoint_id=draft or "", batches=batches or "", layers=layers or "")


def report(job: Job) -> str:
    """The result of a finished plan for its job's page; "" for other jobs."""
    result = job.result or {}
    if job.kind != "plan" or "plain" not in result:
        return ""
    tone = "info" if result.get("best", {}).get("1", PLAIN) != PLAIN or not result.get("shapes") else "warn"
    sentence = f"{result.get('busy') or ''} {result.get('verdict') or t('The plan has no result.')}".strip()
    verdict = notice(sentence, "warn" if result.get("busy") else tone)
    figures = speedup_table(result) + shapes_table(result)
    drawn = verdict + figures + standalone_table(result) + conditions(result)
    return tag("section", drawn, class_="sp-stack", id="job-report", aria_label=t("Plan"))


def speedup_table(result: Result) -> str:
    """Speedups by draft shape and batch size, the fastest of each batch size in bold."""
    batches = list(result["plain"]["by_batch"])
    speedups = {shape["name"]: [shape["by_batch"][b]["speedup"] for b in batches] for shape in result["shapes"]}
    if not speedups:
        return ""
    best = [max(column) for column in zip(*speedups.values(), strict=True)]
    rows = [[safe(name), *map(_speedup, values, best)] for name, values in speedups.items()]
    hint = t("Predicted speedup, local engine, over the baseline at the same batch size; bold: the fastest.") + " "
    hint += t("The size of a tree is the number of verified tokens, its root included.")
    heads = [t("Batch size {batch}", batch=batch) for batch in batches]
    label = t("Predicted speedup by draft shape and batch size")
    return tag("p", safe(hint), class_="sp-hint") + table(
        [t("Draft shape"), *heads], rows, label, named=heads, matrix=True
    )


def _speedup(value: float, best: float) -> str:
    return tag("b" if value == best else "span", f"{value:.2f}×", class_="sp-off" if value < 1 else None)


def shapes_table(result: Result) -> str:
    columns = [t("Drafting"), "τ", t("Step (ms)"), t("Draft (ms)"), t("Tokens per second"), t("Predicted speedup")]
    rows = []
    for shape in (result["plain"], *result["shapes"]):
        one = shape["by_batch"]["1"]
        times = (f"{one[key]:.1f}" for key in ("step_ms", "draft_ms", "tokens_per_second"))
        cells = [safe(value) for value in (shape["name"], f"{shape['tau']:.2f}", *times, f"{one['speedup']:.2f}×")]
        between = interval(one, "speedup", "×")
        rows.append([*cells[:-1], cells[-1] + (row_note(between) if between else "")])
    return table(columns, rows, t("Shapes"), named=columns[1:])


def standalone_table(result: Result) -> str:
    rows = result.get("standalone") or []
    if not rows:
        return ""
    columns = [
        t("Layers"),
        t("Time per token"),
        t("Break-even acceptance"),
        *(t("at {share}", share=share) for share in rows[0]["speedups"]),
    ]
    size = rows[0].get("hidden_size")
    width = t("hidden size {n}", n=size) if size else t("layers of this base model, same hidden size")
    hint = t(
        "Standalone drafts ({width}): the acceptance rate to break even, and the speedup at some rates.", width=width
    )
    cells = []
    for row in rows:
        needed = row["needed_acceptance"]
        share = t("not worthwhile") if needed is None else f"{needed:.0%}"
        speeds = (f"{at['speedup']:.2f}×" for at in row["speedups"].values())
        cells.append([safe(value) for value in (row["layers"], f"{row['token_ms']:.2f} ms", share, *speeds)])
    lead = tag("p", safe(hint), class_="sp-hint")
    return lead + table(columns, cells, t("Standalone drafts"), named=columns[1:])


def conditions(result: Result) -> str:
    """Where the costs were measured, and the number of verifications behind the acceptance rates."""
    acceptance = result.get("acceptance") or {}
    count = acceptance.get("verifications")
    rests = t("{n} verifications", n=count) if count else ""
    machine = [(key.replace("_", " ").capitalize(), value) for key, value in (result.get("machine") or {}).items()]
    load = result.get("other_load")
    others = t("{load:.0%} of the CPU time", load=load) if isinstance(load, int | float) else ""
    items = [(t("Costs"), result.get("basis", "")), (t("Acceptance from"), rests), (t("Other programs used"), others)]
    return facts([*items, *machine])

"""A checkpoint's tree: the result of its last tuning, and the form that starts one."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.i18n import N_, t
from app.views import manage
from app.views.job_forms import JobForm
from app.widgets.charts import ChartStyle, line_chart
from app.widgets.elements import Tone, block, facts, notice
from app.widgets.fields import dropdown
from app.widgets.formatting import figure, interval
from app.widgets.text import tag
from models.methods import trees
from speculoos.settings import DTYPES, Settings
from tracking.db import reading
from tracking.evaluations import machine_name
from tracking.states import FINISHED
from tracking.tables import Checkpoint, Job
from workers.jobs.requests import Tune

FASTER = N_("Plain decoding is faster on this machine: no tree makes this draft worthwhile.")


class TreeForm:
    """The result and the form, built inside the current Blocks; the poll updates `live`; opening a checkpoint,
    `outputs`."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.live = [block(elem_id="checkpoint-tuned")]
        with gr.Column(visible=False) as box:
            with gr.Row(equal_height=True):
                choices = [(t("Default of the settings"), ""), *((name, name) for name in DTYPES if name != "auto")]
                dtype = dropdown(choices, value="", label=t("Precision"), elem_id="checkpoint-tune-dtype")
                label = t("Save the tree in the draft if it is faster")
                keep = gr.Checkbox(True, label=label, elem_id="checkpoint-tune-keep")
            fields = {"checkpoint_id": chosen, "dtype": dtype, "keep": keep}
            request = partial(tune_request, settings)
            self.form = JobForm(settings, "checkpoint-tune", t("Tune on this machine"), fields, request)
        self.outputs = [box, *self.form.outputs]

    def view(self, row: Checkpoint | None) -> list[Any]:
        """Values of `outputs`."""
        if row is None or row.state != "ready":
            return [gr.Column(visible=False), *[gr.skip()] * len(self.form.outputs)]
        return [gr.Column(visible=True), *self.form.fill({}, {"checkpoint_id": row.id}, {}, review=True)]


def base_of(settings: Settings, checkpoint_id: str) -> str:
    """Id of a draft's base model. Raises NotFound."""
    with reading(settings) as session:
        return manage.row(session, Checkpoint, "draft", checkpoint_id).base_id


def tune_request(settings: Settings, checkpoint_id: str, dtype: str | None, keep: bool) -> Tune:
    """Request to tune the tree of a draft. Raises BadInput or NotFound."""
    base_id = base_of(settings, checkpoint_id)
    return Tune(base_id=base_id, checkpoint_id=checkpoint_id, dtype=dtype or "", keep=bool(keep))


def tuning_part(session: Session, row: Checkpoint) -> str:
    """The result of the last tuning, below a notice of one that has not ended."""
    query = select(Job).where(Job.kind == "tune", Job.state.not_in(FINISHED)).order_by(Job.created_at.desc())
    job = next((job for job in session.scalars(query) if job.request.get("checkpoint_id") == row.id), None)
    if job is None:
        return tuning_result(row)
    sentence = t("“{name}” is {state}.", name=job.name, state=t(job.state.lower()))
    return notice(sentence, "info", f"/runs?id={job.id}", t("Open the job")) + tuning_result(row)


def tuning_result(checkpoint: Checkpoint) -> str:
    """The verdict, its basis, and the curve of expected speed by nodes."""
    result = (checkpoint.figures or {}).get("tuned")
    if not isinstance(result, Mapping) or not result:  # older versions stored text only
        return _verdict(checkpoint, {}) or tag("p", t("Not tuned yet."), class_="sp-hint")
    rows = [
        (t("Tree"), _found_tree(result)),
        (t("Expected τ"), _with_interval(result, "expected_tau")),
        (t("Expected speedup"), _with_interval(result, "expected_speedup", "×")),
        (t("Machine"), machine_name(result)),
        (t("Precision"), result.get("dtype")),
        (t("Questions"), result.get("questions")),
        (t("Verifications"), result.get("verifications")),
    ]
    sizes = [(float(nodes), speedup) for nodes, _, speedup in result.get("sizes") or ()]
    chart = line_chart(
        t("Expected speedup by nodes"),
        {t("best tree per size"): sizes},
        unit=t("× baseline"),
        across=t("nodes, with the root"),
        look=ChartStyle(best="max"),
    )
    drawn = tag("div", chart, class_="sp-charts") if len(sizes) > 1 else ""
    return tag("div", _verdict(checkpoint, result) + facts(rows) + drawn, class_="sp-stack")


def _verdict(checkpoint: Checkpoint, result: Mapping[str, Any]) -> str:
    """A notice of the tuning's result with its machine, precision and date; "" without one."""
    text = (checkpoint.figures or {}).get("tuning")
    text = t(FASTER) if result.get("plain_is_faster") else t("Tuned: {words}", words=text) if text else ""
    if not text:
        return ""
    parts = [machine_name(result), str(result.get("dtype") or ""), str(result.get("at") or "")[:10]]
    where = ", ".join(filter(None, parts))
    message = " ".join(filter(None, (text, kept_tree_note(result), f"({where})" if where else "")))
    busy = str(result.get("busy") or "")
    return (notice(busy, "warn") if busy else "") + notice(message, verdict_tone(result))


def verdict_tone(result: Mapping[str, Any]) -> Tone:
    """Tone of a tuning's result: "good" only if drafting is faster and the machine was not busy."""
    return "warn" if result.get("plain_is_faster") or result.get("busy") else "good"


def kept_tree_note(result: Mapping[str, Any]) -> str:
    """What a tuning changed in the checkpoint; "" if unknown."""
    if "kept" not in result:
        return ""
    return t("The draft now uses this tree.") if result["kept"] and result.get("drafting") else t(trees.NOT_SAVED)


def _found_tree(result: Mapping[str, Any]) -> str:
    """The tuned tree. The depth is counted as in the verdict: a dynamic tree's option `depth` does not count the first
    level."""
    drafting = result.get("drafting") or {}
    if drafting and "tree" not in drafting and result.get("depth"):
        values = {"nodes": result.get("nodes"), "depth": result["depth"]}
        return t("{nodes} nodes, depth {depth}, selected at each step", **values)
    return trees.drafting_text(drafting) or t("none: plain decoding")


def _with_interval(result: Mapping[str, Any], key: str, unit: str = "") -> str:
    between = interval(result, key)
    return figure(result.get(key), unit=unit) + (f", {between}" if between else "")

"""A checkpoint's tree: the result of its last tuning, and the form that starts one."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.views import manage
from app.views.job_forms import queued
from app.views.manage import SMALL
from app.widgets.charts import ChartStyle, line_chart
from app.widgets.elements import QUIET, Tone, block, facts, notice, on_typing
from app.widgets.fields import dropdown
from app.widgets.formatting import figure, interval, rounded
from app.widgets.problems import show_errors
from app.widgets.review import command_box
from app.widgets.text import safe, tag
from models.methods import trees
from ops.homes import names
from speculoos.settings import DTYPES, Settings
from tracking.db import reading
from tracking.evaluations import machine_name
from tracking.states import FINISHED
from tracking.tables import Checkpoint, Job
from workers.jobs import estimates
from workers.jobs.request import command_for
from workers.jobs.requests import Tune

PRECISIONS = [("Default of the settings", ""), *((name, name) for name in DTYPES if name != "auto")]
FASTER = "Plain decoding is faster on this machine: no tree makes this draft worthwhile."


class TreeForm:
    """The result and the form, built inside the current Blocks; the poll updates `live`; opening a checkpoint,
    `outputs`."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.live = [block(elem_id="checkpoint-tuned")]
        with gr.Row(equal_height=True):
            dtype = dropdown(PRECISIONS, value="", label="Precision", elem_id="checkpoint-tune-dtype", min_width=180)
            keep = gr.Checkbox(True, label="Save the tree in the draft if it is faster", elem_id="checkpoint-tune-keep")
        review = block(elem_id="checkpoint-tune-review")
        start = gr.Button("Tune on this machine", elem_id="checkpoint-tune", **SMALL)
        message = block(elem_id="checkpoint-tune-said")
        self.outputs = [review, start, message]
        inputs = [chosen, dtype, keep]
        start.click(self.submit, inputs, message, **QUIET)
        on_typing((dtype, keep), self.review_now, inputs, review)

    def view(self, session: Session, row: Checkpoint | None) -> list[Any]:
        """Values of `outputs`."""
        if row is None or row.state != "ready":
            return ["", gr.Button(visible=False), ""]
        review = self._review_html(session, tune_request(row, "", True))
        return [review, gr.Button(visible=True), under_way(session, row)]

    @show_errors()
    def review_now(self, checkpoint_id: str, dtype: str, keep: bool) -> str:
        with reading(self.settings) as session:
            row = manage.row(session, Checkpoint, "draft", checkpoint_id)
            return self._review_html(session, tune_request(row, dtype, keep))

    def _review_html(self, session: Session, request: Tune) -> str:
        estimate = estimates.estimate(session, request, self.settings.home)
        time = f"Takes about {rounded(estimate.seconds)}, from {estimate.basis}." if estimate.seconds else ""
        warnings = "".join(notice(text, "warn") for text in estimate.warnings)
        return tag("p", safe(time), class_="sp-hint") + warnings + command_box(command_for(request, names(session)))

    def submit(self, checkpoint_id: str, dtype: str, keep: bool) -> str:
        return queued(
            self.settings, checkpoint_id, lambda row: tune_request(row, dtype, keep), "the result will appear here"
        )


def under_way(session: Session, row: Checkpoint) -> str:
    """Notice with a link to the unfinished tuning job of the checkpoint; "" without one."""
    query = select(Job).where(Job.kind == "tune", Job.state.not_in(FINISHED)).order_by(Job.created_at.desc())
    job = next((job for job in session.scalars(query) if job.request.get("checkpoint_id") == row.id), None)
    return notice(f"“{job.name}” is {job.state.lower()}.", "info", f"/runs?id={job.id}", "Open the job") if job else ""


def tune_request(row: Checkpoint, dtype: str | None, keep: bool) -> Tune:
    request = Tune(base_id=row.base_id, checkpoint_id=row.id, dtype=dtype or "", keep=bool(keep))
    request.check_options()
    return request


def tuning_result(checkpoint: Checkpoint) -> str:
    """The verdict, its basis, and the curve of expected speed by nodes."""
    result = (checkpoint.figures or {}).get("tuned")
    if not isinstance(result, Mapping) or not result:  # older versions stored text only
        return _verdict(checkpoint, {}) or tag("p", "Not tuned yet.", class_="sp-hint")
    rows = [
        ("Tree", _found_tree(result)),
        ("Expected τ", _with_interval(result, "expected_tau")),
        ("Expected speedup", _with_interval(result, "expected_speedup", "×")),
        ("Machine", machine_name(result)),
        ("Precision", result.get("dtype")),
        ("Questions", result.get("questions")),
        ("Verifications", result.get("verifications")),
    ]
    sizes = [(float(nodes), speedup) for nodes, _, speedup in result.get("sizes") or ()]
    chart = line_chart(
        "Expected speedup by nodes",
        {"best tree per size": sizes},
        unit="× baseline",
        across="nodes, with the root",
        look=ChartStyle(best="max"),
    )
    drawn = tag("div", chart, class_="sp-charts") if len(sizes) > 1 else ""
    return tag("div", _verdict(checkpoint, result) + facts(rows) + drawn, class_="sp-stack")


def _verdict(checkpoint: Checkpoint, result: Mapping[str, Any]) -> str:
    """A notice of the tuning's result with its machine, precision and date; "" without one."""
    words = (checkpoint.figures or {}).get("tuning")
    words = FASTER if result.get("plain_is_faster") else f"Tuned: {words}" if words else ""
    if not words:
        return ""
    parts = [machine_name(result), str(result.get("dtype") or ""), str(result.get("at") or "")[:10]]
    where = ", ".join(filter(None, parts))
    message = " ".join(filter(None, (words, kept_tree_note(result), f"({where})" if where else "")))
    busy = str(result.get("busy") or "")
    return (notice(busy, "warn") if busy else "") + notice(message, verdict_tone(result))


def verdict_tone(result: Mapping[str, Any]) -> Tone:
    """Tone of a tuning's result: "good" only if drafting is faster and the machine was not busy."""
    return "warn" if result.get("plain_is_faster") or result.get("busy") else "good"


def kept_tree_note(result: Mapping[str, Any]) -> str:
    """What a tuning changed in the checkpoint; "" if unknown."""
    if "kept" not in result:
        return ""
    return "The draft now uses this tree." if result["kept"] and result.get("drafting") else trees.NOT_SAVED


def _found_tree(result: Mapping[str, Any]) -> str:
    """The tuned tree. The depth is counted as in the verdict: a dynamic tree's option `depth` does not count the first
    level."""
    drafting = result.get("drafting") or {}
    if drafting and "tree" not in drafting and result.get("depth"):
        return f"{result.get('nodes')} nodes, depth {result['depth']}, selected at each step"
    return trees.drafting_text(drafting) or "none: plain decoding"


def _with_interval(result: Mapping[str, Any], key: str, unit: str = "") -> str:
    between = interval(result, key)
    return figure(result.get(key), unit=unit) + (f", {between}" if between else "")

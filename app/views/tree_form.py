"""Forms on a checkpoint's page: tune its tree on this machine, and predict the accepted length of a tree."""

from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.views import manage, tree_view
from app.views.job_forms import queued
from app.views.manage import SMALL
from app.widgets.elements import QUIET, block, notice, on_typing, section
from app.widgets.fields import dropdown
from app.widgets.formatting import rounded
from app.widgets.problems import show_errors
from app.widgets.review import command_box
from app.widgets.text import safe, tag
from ops.homes import names
from speculoos.settings import DTYPES, Settings
from tracking.db import reading
from tracking.states import FINISHED
from tracking.tables import Checkpoint, Job
from workers.jobs import estimates
from workers.jobs.command_line import command_for
from workers.jobs.requests import Tune

PRECISIONS = [("Default of the settings", ""), *((name, name) for name in DTYPES if name != "auto")]
EDITOR = (
    "Predicted from the acceptance rates by position and the cost of steps. Enter chain 4, tree 4x2x1, or paths in the "
    "format of Medusa and TensorRT-LLM."
)


class TreeForm:
    """The forms, built inside the current Blocks; the poll updates `live`; opening a checkpoint, `outputs`."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.found = block(elem_id="checkpoint-tuned")
        with gr.Row(equal_height=True):
            self.dtype = dropdown(
                PRECISIONS, value="", label="Precision", elem_id="checkpoint-tune-dtype", min_width=180
            )
            self.keep = gr.Checkbox(
                True, label="Save the tree in the checkpoint if it is faster", elem_id="checkpoint-tune-keep"
            )
        self.review = block(elem_id="checkpoint-tune-review")
        self.start = gr.Button("Tune on this machine", elem_id="checkpoint-tune", **SMALL)
        self.said = block(elem_id="checkpoint-tune-said")
        section("Predict a tree", EDITOR)
        self.tree = gr.Textbox(label="Tree", lines=1, max_lines=6, elem_id="checkpoint-tree")
        self.reckoned = block(elem_id="checkpoint-reckoned")
        self.live = [self.found]
        self.outputs = [self.review, self.start, self.said, self.tree, self.reckoned]
        inputs = [chosen, self.dtype, self.keep]
        self.start.click(self.submit, inputs, self.said, **QUIET)
        on_typing((self.dtype, self.keep), self.review_now, inputs, self.review)
        on_typing((self.tree,), self.reckon, [chosen, self.tree], self.reckoned)

    def live_view(self, row: Checkpoint) -> list[Any]:
        return [tree_view.tuning_result(row)]

    def view(self, session: Session, row: Checkpoint | None) -> list[Any]:
        if row is None or row.state != "ready":
            return ["", gr.Button(visible=False), "", "", ""]
        tree = tree_view.first_tree(session, row)
        prediction = tree_view.predicted_tree(session, row, tree or "chain 1")
        review = self._review_html(session, tune_request(row, "", True))
        return [review, gr.Button(visible=True), under_way(session, row), tree, prediction]

    @show_errors()
    def review_now(self, checkpoint_id: str, dtype: str, keep: bool) -> str:
        with reading(self.settings) as session:
            row = manage.row(session, Checkpoint, "checkpoint", checkpoint_id)
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

    @show_errors()
    def reckon(self, checkpoint_id: str, text: str) -> str:
        with reading(self.settings) as session:
            row = manage.row(session, Checkpoint, "checkpoint", checkpoint_id)
            return tree_view.predicted_tree(session, row, text or "")


def under_way(session: Session, row: Checkpoint) -> str:
    """Notice with a link to the unfinished tuning job of the checkpoint; "" without one."""
    query = select(Job).where(Job.kind == "tune", Job.state.not_in(FINISHED)).order_by(Job.created_at.desc())
    job = next((job for job in session.scalars(query) if job.request.get("checkpoint_id") == row.id), None)
    return notice(f"“{job.name}” is {job.state.lower()}.", "info", f"/jobs?id={job.id}", "Open the job") if job else ""


def tune_request(row: Checkpoint, dtype: str | None, keep: bool) -> Tune:
    request = Tune(base_id=row.base_id, checkpoint_id=row.id, dtype=dtype or "", keep=bool(keep))
    request.check_options()
    return request

"""The Checkpoints page: all drafts with lineage and figures, import of published drafts; `?id=` opens one to download,
evaluate, tune or delete it."""

from typing import Any

import gradio as gr
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app import visitor
from app.views import checkpoint_rows, export_rows, manage
from app.views.draft_form import AddDraft
from app.views.job_forms import queued
from app.views.manage import SMALL, Manage
from app.views.replay_form import ReplayForm
from app.views.tree_form import TreeForm
from app.widgets.bulk import Action, on_bulk
from app.widgets.downloads import export_list, on_export
from app.widgets.elements import QUIET, block, page_header
from app.widgets.list_page import Listing, ListPage, signature_of
from app.widgets.problems import show_errors
from speculoos.settings import Settings
from tracking.db import reading
from tracking.states import JobState
from tracking.tables import Checkpoint, Evaluation, Job
from workers.jobs.requests import Evaluate, Export, Tune
from workers.jobs.submit import submit

LEAD = "Draft models, trained here or imported: their origin, quality and downloads."


def signature(session: Session) -> str:
    """A text that changes when a checkpoint, an evaluation or the number of finished tunings changes."""
    counted = select(Evaluation.state, func.count(), func.max(Evaluation.created_at)).group_by(Evaluation.state)
    measured = sorted(map(str, session.execute(counted)))
    tunings = select(func.count()).select_from(Job).where(Job.kind == Tune.kind, Job.state == JobState.SUCCEEDED)
    measured.append(str(session.scalar(tunings)))
    return f"{signature_of(Checkpoint)(session)}.{hash(tuple(measured))}"


def row_signature(session: Session, _checkpoint_id: str) -> str:
    """A text that also changes when an export starts or ends."""
    return f"{signature(session)}.{export_rows.signature(session)}"


CHECKPOINTS = Listing(
    "checkpoints",
    Checkpoint,
    "checkpoint",
    checkpoint_rows.checkpoints_table,
    signature,
    row_signature=row_signature,
    bulk=True,
)


class CheckpointPanel:
    """The components of one checkpoint and their values. `chosen` is the hidden text with its id."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.head = block(elem_id="checkpoint-head")
        self.links = block(elem_id="checkpoint-links")
        with gr.Tabs(elem_id="checkpoint-tabs"):
            with gr.Tab("Downloads", elem_id="checkpoint-tab-downloads"):
                self.exports = export_list("checkpoint-exports")
                self.export_said = block(elem_id="checkpoint-export-said")
            with gr.Tab("Evaluations", elem_id="checkpoint-tab-evaluations"):
                self.evaluations = block(elem_id="checkpoint-evaluations")
                self.measure = gr.Button("Evaluate on the built-in questions", elem_id="checkpoint-evaluate", **SMALL)
                self.said = block(elem_id="checkpoint-evaluate-said")
                self.replay = ReplayForm(settings, chosen)
            with gr.Tab("Tree", elem_id="checkpoint-tab-tree"):
                self.tree = TreeForm(settings, chosen)
            with gr.Tab("Settings", elem_id="checkpoint-tab-settings"):
                self.config = block(elem_id="checkpoint-settings")
        self.manage = Manage(settings, Checkpoint, "checkpoint", "checkpoint", chosen)
        self.live = [self.head, self.links, self.exports, self.evaluations, self.config, self.measure]
        self.live += self.tree.live
        static = [*self.replay.outputs, *self.tree.outputs, *self.manage.outputs]
        self.outputs = [*self.live, self.export_said, self.said, *static]
        on_export(self.exports, chosen, self._make, [self.export_said, self.exports])
        self.measure.click(lambda row_id: measure(settings, row_id), chosen, self.said, **QUIET)

    def live_view(self, session: Session, row: Checkpoint) -> list[Any]:
        return [
            checkpoint_rows.head(session, row),
            checkpoint_rows.actions(session, row),
            export_rows.exports_table(session, self.settings, row),
            checkpoint_rows.evaluations_table(session, row),
            checkpoint_rows.settings_table(row),
            gr.Button(visible=row.state == "ready"),
            *self.tree.live_view(row),
        ]

    def view(self, session: Session, row: Checkpoint | None, query: dict[str, str]) -> list[Any]:
        live = self.live_view(session, row) if row else ["", "", "", "", "", gr.Button(visible=False), ""]
        static = [*self.replay.view(session, row), *self.tree.view(session, row), *self.manage.view(row)]
        return [*live, "", "", *static]

    @show_errors(gr.skip())
    def _make(self, name: str, checkpoint_id: str) -> tuple[str, Any]:
        """Queue an export to the format `name`: (error notice, the current list)."""
        with reading(self.settings) as session:
            is_needed = export_rows.can_be_made(session, self.settings, checkpoint_id, name)
        if is_needed:
            submit(Export(checkpoint_id, name), user=visitor.user(), settings=self.settings)
        with reading(self.settings) as session:
            row = manage.row(session, Checkpoint, "checkpoint", checkpoint_id)
            return "", export_rows.exports_table(session, self.settings, row)


def measure(settings: Settings, checkpoint_id: str) -> str:
    return queued(
        settings,
        checkpoint_id,
        lambda row: Evaluate(base_id=row.base_id, checkpoint_id=row.id),
        "acceptance and speed on 20 questions, beside plain",
    )


def build(settings: Settings) -> None:
    page_header("Checkpoints", LEAD)
    page = ListPage(settings, CHECKPOINTS)
    with page.listing():
        AddDraft(settings)
        message = block(elem_id="checkpoints-bulk-said")
    with page.opened():
        panel = CheckpointPanel(settings, page.chosen)
    page.wire(panel)
    redraw, inputs, outputs = page.again
    panel.manage.wire(redraw, inputs, outputs)
    action = Action("Deleted", lambda row_id: manage.delete(settings, Checkpoint, "checkpoint", row_id))
    on_bulk(page.table, {"delete": action}, message).then(redraw, inputs, outputs, **QUIET)

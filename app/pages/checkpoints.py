"""The Drafts page: all drafts with lineage and figures, import of published drafts; `?id=` opens one to download,
evaluate, tune or delete it."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import visitor
from app.forms import questions_of
from app.i18n import N_, t
from app.paths import PAGES
from app.views import checkpoint_rows, export_rows, manage
from app.views.choices import dataset_label, suite_choices
from app.views.draft_form import AddDraft
from app.views.job_forms import JobForm
from app.views.served import default_engine
from app.views.tree_view import TreeForm, base_of, tuning_part
from app.widgets.bulk import Action
from app.widgets.downloads import export_list, pressed
from app.widgets.elements import QUIET, block, notice, page_header, section
from app.widgets.fields import dropdown
from app.widgets.list_page import Listing
from app.widgets.problems import show_errors
from app.widgets.setting_fields import field_values, setting_control
from formats.engines import ENGINES
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import queries
from tracking.db import reading
from tracking.tables import Base, Checkpoint
from workers.jobs.requests import Evaluate, Export, Prove, ReplayRequest
from workers.jobs.submit import submit

RECORDED = N_("Recorded responses")
INFO = N_("Responses of this base model: generated here, or imported on the Data page.")


def row_signature(session: Session, _checkpoint_id: str) -> str:
    """A text that also changes when an export starts or ends."""
    return f"{checkpoint_rows.signature(session)}.{export_rows.signature(session)}"


def hint(session: Session, query: Mapping[str, str]) -> str:
    """Which base model's drafts are listed (`?of=`)."""
    base = session.get(Base, query.get("of", ""))
    if base is None:
        return ""
    sentence = t("Only drafts of “{name}” are listed.", name=base.name)
    return notice(sentence, "info", PAGES["checkpoints"], t("Show all"))


LISTED = checkpoint_rows.checkpoints_table
CHECKPOINTS = Listing(
    *("checkpoints", Checkpoint, "draft", LISTED, checkpoint_rows.signature),
    hint=hint,
    row_signature=row_signature,
    bulk=True,
)


class CheckpointPanel:
    """The components of one checkpoint and their values. `chosen` is the hidden text with its id."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        head, links = block(elem_id="checkpoint-head"), block(elem_id="checkpoint-links")
        with gr.Tabs(elem_id="checkpoint-tabs"):
            with gr.Tab(t("Downloads"), elem_id="checkpoint-tab-downloads"):
                exports, message = export_list("checkpoint-exports"), block(elem_id="checkpoint-export-message")
            with gr.Tab(t("Evaluations"), elem_id="checkpoint-tab-evaluations"):
                evaluations = block(elem_id="checkpoint-evaluations")
                with gr.Column(visible=False) as measured:
                    fields = {"checkpoint_id": chosen}
                    request = partial(evaluate_request, settings)
                    JobForm(settings, "checkpoint-evaluate", t("Evaluate on the built-in questions"), fields, request)
                    options, engines = Prove.options(), [(each.title, each.name) for each in ENGINES.values()]
                    section(t("Compare with a server"))
                    with gr.Row():
                        self.engine = dropdown(engines, label=t("Server"), elem_id="checkpoint-engine")
                        self.questions = dropdown([], label=t("Questions"), elem_id="checkpoint-questions")
                        limit = setting_control(options["limit"], "checkpoint-prove-limit", info=None)
                        tokens = setting_control(options["max_tokens"], "checkpoint-prove-tokens", info=None)
                    fields = {"checkpoint_id": chosen, "engine": self.engine, "suite": self.questions}
                    fields |= {"limit": limit, "max_tokens": tokens}
                    JobForm(settings, "checkpoint-prove", t("Compare"), fields, partial(prove_request, settings))
                with gr.Column(visible=False) as self.replay:
                    self.data = dropdown([], label=t(RECORDED), info=t(INFO), elem_id="checkpoint-replay-data")
                    fields = {"checkpoint_id": chosen, "dataset_id": self.data}
                    JobForm(settings, "checkpoint-replay", t("Replay"), fields, partial(replay_request, settings))
            with gr.Tab(t("Tree"), elem_id="checkpoint-tab-tree"):
                self.tree = TreeForm(settings, chosen)
            with gr.Tab(t("Settings"), elem_id="checkpoint-tab-settings"):
                config = block(elem_id="checkpoint-settings")
        self.live = [head, links, exports, evaluations, config, measured, *self.tree.live]
        self.outputs = [message, self.engine, self.questions, self.replay, self.data, *self.tree.outputs]
        exports.make(self._make, chosen, [message, exports], **QUIET)

    def live_view(self, session: Session, row: Checkpoint) -> list[Any]:
        return [
            checkpoint_rows.head(session, row),
            checkpoint_rows.actions(session, row),
            export_rows.exports_table(session, self.settings, row),
            checkpoint_rows.evaluations_table(session, row),
            checkpoint_rows.settings_table(row),
            gr.Column(visible=row.state == "ready"),
            tuning_part(session, row),
        ]

    def view(self, session: Session, row: Checkpoint | None, query: dict[str, str]) -> list[Any]:
        sets = recorded(session, row) if row and row.state == "ready" else []
        data = gr.Dropdown(sets, value=sets[0][1] if sets else None)
        suites = suite_choices(session)
        questions = gr.Dropdown(suites, value=suites[0][1])
        return ["", default_engine(self.settings), questions, gr.Column(visible=bool(sets)), data, *self.tree.view(row)]

    @show_errors(gr.skip())
    def _make(self, checkpoint_id: str, event: gr.EventData) -> tuple[str, Any]:
        """Queue an export to the format of the pressed button: (error notice, the current list)."""
        name = pressed(event)
        with reading(self.settings) as session:
            is_needed = export_rows.can_be_made(session, self.settings, checkpoint_id, name)
        if is_needed:
            submit(Export(checkpoint_id=checkpoint_id, format=name), user=visitor.user(), settings=self.settings)
        with reading(self.settings) as session:
            row = manage.row(session, Checkpoint, "draft", checkpoint_id)
            return "", export_rows.exports_table(session, self.settings, row)


def evaluate_request(settings: Settings, checkpoint_id: str) -> Evaluate:
    """Request to evaluate a draft on the built-in questions. Raises NotFound."""
    return Evaluate(base_id=base_of(settings, checkpoint_id), checkpoint_id=checkpoint_id)


def prove_request(settings: Settings, checkpoint_id: str, suite: str | None, **values: Any) -> Prove:
    """Request to compare a draft here and in a server. Raises NotFound."""
    rows = {"base_id": base_of(settings, checkpoint_id), "checkpoint_id": checkpoint_id}
    return Prove(**rows, dataset_id=questions_of(suite), **field_values(Prove, values))


def replay_request(settings: Settings, checkpoint_id: str, dataset_id: str | None) -> ReplayRequest:
    """Request to replay recorded responses with a draft. Raises BadInput or NotFound."""
    if not dataset_id:
        raise BadInput(f"{RECORDED}: choose a dataset.")
    base_id = base_of(settings, checkpoint_id)
    return ReplayRequest(base_id=base_id, checkpoint_id=checkpoint_id, dataset_id=dataset_id)


def recorded(session: Session, row: Checkpoint) -> list[tuple[str, str]]:
    """(label, id) of the datasets with responses of the checkpoint's base."""
    rows = queries.datasets(session, "conversations", ready_only=True)
    return [(dataset_label(data), data.id) for data in rows if data.base_id == row.base_id]


def build(settings: Settings) -> None:
    page_header(t("Drafts"), t("Drafts trained here or imported, with their measurements and downloads."))
    page = manage.build_list(settings, CHECKPOINTS, CheckpointPanel, AddDraft)
    action = Action(t("Deleted"), lambda row_id: manage.delete(settings, Checkpoint, "draft", row_id))
    page.on_bulk({"delete": action})

"""Form on a checkpoint's page: evaluate it on the recorded answers of a data set."""

from functools import partial
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.views.choices import data_words
from app.views.job_forms import queued
from app.views.manage import SMALL
from app.widgets.elements import QUIET, block
from app.widgets.fields import dropdown
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking import queries
from tracking.tables import Checkpoint
from workers.jobs.requests import ReplayRequest

INFO = "Responses of this base model, or recorded responses imported on the Data page as conversations."


class ReplayForm:
    """The form, built inside the current Blocks; `outputs` are set when a checkpoint is opened."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        with gr.Row(equal_height=True):
            self.data = dropdown([], label="Recorded responses", info=INFO, elem_id="checkpoint-replay-data", scale=3)
        self.start = gr.Button("Replay", elem_id="checkpoint-replay", **SMALL)
        self.said = block(elem_id="checkpoint-replay-said")
        self.outputs = [self.data, self.start, self.said]
        self.start.click(self.submit, [chosen, self.data], self.said, **QUIET)

    def view(self, session: Session, row: Checkpoint | None) -> list[Any]:
        sets = recorded(session, row) if row and row.state == "ready" else []
        value = sets[0][1] if sets else None
        visible = bool(sets)
        return [gr.Dropdown(sets, value=value, visible=visible), gr.Button(visible=visible), ""]

    def submit(self, checkpoint_id: str, dataset_id: str) -> str:
        request = partial(replay_request, dataset_id)
        return queued(self.settings, checkpoint_id, request, "the draft on 50 recorded responses")


def replay_request(dataset_id: str, row: Checkpoint) -> ReplayRequest:
    """Request of the form. Raises BadInput."""
    if not dataset_id:
        raise BadInput("Recorded responses: choose a data set.")
    return ReplayRequest(base_id=row.base_id, checkpoint_id=row.id, dataset_id=dataset_id)


def recorded(session: Session, row: Checkpoint) -> list[tuple[str, str]]:
    """(label, id) of the data sets with answers by the checkpoint's base."""
    rows = queries.datasets(session, "conversations", ready_only=True)
    return [(data_words(data), data.id) for data in rows if data.base_id == row.base_id]

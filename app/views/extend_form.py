"""Form that adds answers for further prompts to an existing data set; `?more=` sets their number."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app import visitor
from app.forms import whole
from app.links import on_event_open
from app.views.job_start import form_end
from app.views.manage import row
from app.widgets.elements import block, notice, on_typing
from app.widgets.fields import one_line
from app.widgets.problems import show_errors
from app.widgets.review import review
from speculoos.errors import BadInput
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Dataset
from workers.jobs.command_line import extend_command
from workers.jobs.estimates import estimate
from workers.jobs.extend import answered, extend, made_by, prompts_left

MORE = "More responses"


class ExtendForm:
    """The form, built inside the current Blocks. `chosen` holds the id of the data set."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings, self.chosen = settings, chosen
        with gr.Accordion("Generate more responses", open=True, elem_id="extend", visible=False) as self.box:
            self.lead = block(elem_id="extend-lead")
            self.more = one_line(MORE, "extend-more", info="Empty: all remaining prompts.")
            self.review, self.said, self.start, self.target = form_end("extend", "Generate more")
        self.live = [self.box]
        self.outputs = [self.box, self.lead, self.more, self.review, self.said]
        on_typing([self.more], self._review, [chosen, self.more], self.review)
        on_event_open(self.start.click, self._start, [chosen, self.more], self.said, self.target)

    def live_view(self, session: Session, data: Dataset) -> list[Any]:
        return [gr.Accordion(visible=bool(data.state == "ready" and prompts_left(session, data)))]

    def view(self, session: Session, data: Dataset | None, query: Mapping[str, str]) -> list[Any]:
        left = prompts_left(session, data) if data is not None and data.state == "ready" else None
        if not left:
            return [gr.Accordion(visible=False), "", "", "", ""]
        more = query.get("more", "")
        number = str(min(int(more), left)) if more.isascii() and more.isdigit() and int(more) else ""
        lead = f"{left:,} prompts of its prompt set have no responses yet. Existing rows do not change."
        box = gr.Accordion(visible=True, open=bool(number))
        return [box, notice(lead, "info"), number, self._review_html(session, data, number), ""]

    @show_errors(tone="warn")
    def _review(self, data_id: str, more: str) -> str:
        if not data_id:
            return ""
        with reading(self.settings) as session:
            return self._review_html(session, row(session, Dataset, "data set", data_id), more)

    @show_errors(tone="warn")
    def _review_html(self, session: Session, data: Dataset, more: str) -> str:
        limit = limit_for(session, data, more)
        request = made_by(data).changed(limit=limit - answered(session, data))
        return review(estimate(session, request, self.settings.home), extend_command(data.name, limit))

    @show_errors("")
    def _start(self, data_id: str, more: str) -> tuple[str, str]:
        with reading(self.settings) as session:
            limit = limit_for(session, row(session, Dataset, "data set", data_id), more)
        job = extend(data_id, limit=limit, user=visitor.user(), settings=self.settings)
        return "", f"/jobs?id={job.id}"


def limit_for(session: Session, data: Dataset, more: str) -> int:
    """Total number of answered prompts after `more` are added. Raises BadInput."""
    left = prompts_left(session, data)
    if not left:
        raise BadInput(f"Every prompt of “{data.name}” has its responses; import more prompts on the Data page.")
    return answered(session, data) + min(whole(MORE, more, low=1, default=left) or left, left)

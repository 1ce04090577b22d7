"""Form of a dataset's page that generates responses for a prompt set: model or endpoint, options, estimate, start."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.forms import ENDPOINT, GENERATE_FIELDS, generate_form, generate_request
from app.views import choices
from app.views.job_forms import JobForm
from app.widgets.elements import QUIET, closed_accordion
from app.widgets.fields import dropdown
from app.widgets.setting_fields import setting_control, setting_rows
from speculoos.settings import Settings
from tracking.tables import Dataset, Job
from workers.jobs.requests import GenerateData, from_json

ELEMENTS = {"max_tokens": "tokens", "system_prompt": "system", "batch_size": "batch", "max_minutes": "minutes"}
ELEMENTS |= {"hidden_states_store": "store"}
"""Element ids of controls that differ from the field name."""


def elem_id(name: str) -> str:
    return f"generate-{ELEMENTS.get(name, name.replace('_', '-'))}"


class GenerateForm:
    """`chosen` holds the id of the prompt set. `box` is visible for prompt sets only."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.fields: dict[str, Any] = {}
        with gr.Accordion("Generate responses", open=True, elem_id="generate", visible=False) as self.box:
            self._build_main()
            with closed_accordion("More settings", elem_id="generate-more"):
                self._build_more()
            fields = {"source_id": chosen, **self.fields}
            self.form = JobForm(settings, "generate", "Start generating", fields, generate_request, named=True)
        self.form.keep()
        self.outputs = self.form.outputs
        only_endpoints = [self.fields[name] for name in ("endpoint_model", "served", "api")]
        self.fields["who"].change(_endpoint_controls, self.fields["who"], only_endpoints, **QUIET)

    def _build_main(self) -> None:
        with gr.Row():
            self.fields["who"] = dropdown(
                [],
                label="Model or endpoint",
                info="A base model, or an endpoint of settings.toml.",
                elem_id="generate-who",
            )
            self._control("endpoint_model", visible=False)
            self._control("limit")
            self._control("max_tokens")
        self._control("system_prompt", max_lines=6, max_length=20_000)

    def _build_more(self) -> None:
        with gr.Row():
            self.fields["served"] = dropdown(
                [],
                label="Base model that the endpoint serves",
                info="If set, exact token ids are requested.",
                elem_id="generate-served",
                visible=False,
            )
            self._control("api", visible=False)
        options = GenerateData.options()
        self.fields |= setting_rows((options[name] for name in GENERATE_FIELDS if name not in self.fields), elem_id)

    def _control(self, name: str, **options: Any) -> None:
        self.fields[name] = setting_control(GenerateData.options()[name], elem_id(name), **options)

    def follow(self, shown: gr.HTML) -> None:
        """Update the review when the facts of the dataset change, e.g. when its rows become available."""
        shown.change(self._review_again, self.form.inputs, self.form.review, **QUIET)

    def _review_again(self, name: str, data_id: str, who: str, *values: Any) -> Any:
        """The review; no change before the form is filled in, which updates the review itself."""
        return self.form.review_now(name, data_id, who, *values) if who else gr.skip()

    def is_for(self, data: Dataset) -> bool:
        return data.kind == "prompts" and data.state != "failed"

    def view(self, session: Session, data: Dataset | None, query: Mapping[str, str]) -> list[Any]:
        """Values of `outputs`; those of the job in `?clone=`."""
        if data is None or not self.is_for(data):
            return [gr.skip()] * len(self.outputs)
        values = {"source_id": data.id, "who": query.get("base"), **_cloned(session, query.get("clone", ""))}
        bases = [("–", ""), *choices.bases(session)]
        dropdowns = {"who": choices.response_models(session, self.settings), "served": bases}
        return self.form.fill(query, values, dropdowns, review=True)


def _cloned(session: Session, job_id: str) -> dict[str, Any]:
    job = session.get(Job, job_id) if job_id else None
    return generate_form(from_json(job.kind, job.request)) if job and job.kind == GenerateData.kind else {}


def _endpoint_controls(who: str | None) -> tuple[Any, ...]:
    visible = bool(who) and who.startswith(ENDPOINT)
    return gr.Textbox(visible=visible), gr.Dropdown(visible=visible), gr.Dropdown(visible=visible)

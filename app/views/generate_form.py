"""Form of a dataset's page that generates responses for a prompt set: model or endpoint, options, estimate, start."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.forms import ENDPOINT, GENERATE_FIELDS, generate_form, generate_request
from app.i18n import t
from app.views import choices
from app.views.job_forms import JobForm
from app.widgets.elements import QUIET, closed_accordion
from app.widgets.fields import dropdown
from app.widgets.setting_fields import setting_control, setting_rows
from speculoos.settings import Settings
from tracking.tables import Dataset, Job
from workers.jobs.requests import GenerateData, from_json

MAIN = ("endpoint_model", "limit", "max_tokens", "system_prompt", "api")
"""Fields that do not stand under “More settings” with the others."""


def elem_id(name: str) -> str:
    return f"generate-{name.replace('_', '-')}"


class GenerateForm:
    """`chosen` holds the id of the prompt set. `box` is visible for prompt sets only."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        options = GenerateData.options()
        with gr.Accordion(t("Generate responses"), open=True, elem_id="generate", visible=False) as self.box:
            with gr.Row():
                info = t("A base model, or an endpoint of settings.toml.")
                model = dropdown([], label=t("Model or endpoint"), info=info, elem_id="generate-model")
                endpoint_model = setting_control(options["endpoint_model"], elem_id("endpoint_model"), visible=False)
                limit, tokens = (setting_control(options[name], elem_id(name)) for name in MAIN[1:3])
            system = setting_control(options["system_prompt"], elem_id("system_prompt"), max_lines=6, max_length=20_000)
            with closed_accordion(t("More settings"), elem_id="generate-more"):
                with gr.Row():
                    info = t("If set, exact token ids are requested.")
                    label = t("Base model that the endpoint serves")
                    served = dropdown([], label=label, info=info, elem_id="generate-served", visible=False)
                    api = setting_control(options["api"], elem_id("api"), visible=False)
                more = setting_rows((options[name] for name in GENERATE_FIELDS if name not in MAIN), elem_id)
            fields = {"source_id": chosen, "model": model, "served": served}
            fields |= dict(zip(MAIN, (endpoint_model, limit, tokens, system, api), strict=True)) | more
            self.form = JobForm(settings, "generate", t("Start generating"), fields, generate_request, named=True)
        self.form.keep_in_url()
        self.outputs = self.form.outputs
        model.change(_endpoint_controls, model, [endpoint_model, served, api], **QUIET)

    def follow(self, shown: gr.HTML) -> None:
        """Update the review when the facts of the dataset change, e.g. when its rows become available."""
        shown.change(self._review_again, self.form.inputs, self.form.review, **QUIET)

    def _review_again(self, name: str, data_id: str, model: str, *values: Any) -> Any:
        """The review; no change before the form is filled in, which updates the review itself."""
        return self.form.review_now(name, data_id, model, *values) if model else gr.skip()

    def view(self, session: Session, data: Dataset | None, query: Mapping[str, str]) -> list[Any]:
        """Values of `outputs`; those of the job in `?clone=`."""
        if data is None or not is_for(data):
            return [gr.skip()] * len(self.outputs)
        values = {"source_id": data.id, "model": query.get("base"), **_cloned(session, query.get("clone", ""))}
        bases = [("–", ""), *choices.bases(session)]
        dropdowns = {"model": choices.response_models(session, self.settings), "served": bases}
        return self.form.fill(query, values, dropdowns, review=True)


def is_for(data: Dataset) -> bool:
    """Whether responses to its rows can be generated."""
    return data.kind == "prompts" and data.state != "failed"


def _cloned(session: Session, job_id: str) -> dict[str, Any]:
    job = session.get(Job, job_id) if job_id else None
    return generate_form(from_json(job.kind, job.request)) if job and job.kind == GenerateData.kind else {}


def _endpoint_controls(model: str | None) -> tuple[Any, ...]:
    visible = bool(model) and model.startswith(ENDPOINT)
    return gr.Textbox(visible=visible), gr.Dropdown(visible=visible), gr.Dropdown(visible=visible)

"""Form that generates answers for a prompt set: model or endpoint, options, estimate, start."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.forms import ENDPOINT, GENERATE_FIELDS, generate_form, generate_request
from app.links import on_event_open
from app.views import choices
from app.views.job_start import form_end, started
from app.widgets.elements import QUIET, closed_accordion, on_typing
from app.widgets.fields import dropdown, one_line
from app.widgets.problems import show_errors
from app.widgets.review import review
from app.widgets.setting_fields import setting_control, setting_rows
from ops.homes import names
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Dataset, Job
from workers.jobs.estimates import estimate
from workers.jobs.request import command_for
from workers.jobs.requests import GenerateData, from_json

ELEMENTS = {"max_tokens": "tokens", "system_prompt": "system", "batch_size": "batch", "max_minutes": "minutes"}
ELEMENTS |= {"hidden_states_store": "store"}
"""Element ids of controls that differ from the field name."""


def elem_id(name: str) -> str:
    return f"generate-{ELEMENTS.get(name, name.replace('_', '-'))}"


class GenerateForm:
    """The controls. `chosen` holds the id of the prompt set."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings, self.chosen = settings, chosen
        self.fields: dict[str, Any] = {}
        with gr.Accordion("Generate responses", open=True, elem_id="generate", visible=False) as self.box:
            self._build_main()
            with closed_accordion("More settings", elem_id="generate-more"):
                self._build_more()
            self.review, self.said, self.start, self.target = form_end("generate", "Start generating")
        self.inputs = {"who": self.who, "served": self.served, **self.fields}
        self.live = [self.box]
        self.outputs = [self.box, *self.inputs.values(), self.name, self.review, self.said]
        self._wire()

    def _build_main(self) -> None:
        with gr.Row():
            self.who = dropdown(
                [],
                label="Model or endpoint",
                info="A base model of this home, or an endpoint of settings.toml.",
                elem_id="generate-who",
            )
            self._control("endpoint_model", visible=False)
            self._control("limit")
            self._control("max_tokens")
        self._control("system_prompt", max_lines=6, max_length=20_000)
        self.name = one_line("Name (optional)", "generate-name", max_length=200)

    def _build_more(self) -> None:
        with gr.Row():
            self.served = dropdown(
                [],
                label="Base model that the endpoint serves",
                info="If set, token ids are requested and checked, for exact labels.",
                elem_id="generate-served",
                visible=False,
            )
            self._control("api", visible=False)
        options = GenerateData.options()
        self.fields |= setting_rows((options[name] for name in GENERATE_FIELDS if name not in self.fields), elem_id)

    def _control(self, name: str, **options: Any) -> None:
        self.fields[name] = setting_control(GenerateData.options()[name], elem_id(name), **options)

    def _wire(self) -> None:
        values = [self.chosen, self.name, *self.inputs.values()]
        on_typing((*self.inputs.values(), self.name), self._review, values, self.review)
        self.who.change(
            self._endpoint, self.who, [self.fields["endpoint_model"], self.served, self.fields["api"]], **QUIET
        )
        on_event_open(self.start.click, self._start, values, self.said, self.target)

    def follow(self, shown: gr.HTML) -> None:
        """Update the review when the facts of the data set change, e.g. when its rows become available."""
        shown.change(self._review_again, [self.chosen, self.name, *self.inputs.values()], self.review, **QUIET)

    def _review_again(self, data_id: str, name: str, who: str, *values: Any) -> Any:
        """The review; no change before the form is filled in, which updates the review itself."""
        return self._review(data_id, name, who, *values) if who else gr.skip()

    def live_view(self, data: Dataset) -> list[Any]:
        return [gr.Accordion(visible=data.kind == "prompts" and data.state != "failed")]

    def view(self, session: Session, data: Dataset | None, query: Mapping[str, str]) -> list[Any]:
        if data is None or data.kind != "prompts" or data.state == "failed":
            return [gr.Accordion(visible=False), *[gr.skip()] * (len(self.outputs) - 1)]
        form = self._values(session, query)
        models = choices.response_models(session, self.settings)
        form["who"] = choices.valid_choice(models, form.get("who") or query.get("base"))
        bases = [("–", ""), *choices.bases(session)]
        dropdowns = {
            "who": gr.Dropdown(models, value=form["who"]),
            "served": gr.Dropdown(bases, value=form.get("served") or ""),
        }
        values = [dropdowns.get(name, form[name]) for name in self.inputs]
        review_html = self._review_html(session, data.id, "", form)
        return [gr.Accordion(visible=True), *values, "", review_html, ""]

    def _values(self, session: Session, query: Mapping[str, str]) -> dict[str, Any]:
        job = session.get(Job, query.get("clone", "")) if query.get("clone") else None
        cloned = generate_form(from_json(job.kind, job.request)) if job and job.kind == GenerateData.kind else {}
        return {**{name: box.value for name, box in self.inputs.items()}, **cloned}

    def _endpoint(self, who: str | None) -> tuple[Any, ...]:
        """Visibility of the controls that only endpoints have."""
        visible = bool(who) and who.startswith(ENDPOINT)
        return gr.Textbox(visible=visible), gr.Dropdown(visible=visible), gr.Dropdown(visible=visible)

    def _review(self, data_id: str, name: str, *values: Any) -> str:
        if not data_id:
            return ""
        with reading(self.settings) as session:
            return self._review_html(session, data_id, name, dict(zip(self.inputs, values, strict=True)))

    @show_errors(tone="warn")
    def _review_html(self, session: Session, data_id: str, name: str, form: dict[str, Any]) -> str:
        request = generate_request(data_id, **form)
        result = estimate(session, request, self.settings.home)
        return review(result, command_for(request, names(session), name.strip()))

    def _start(self, data_id: str, name: str, *values: Any) -> tuple[str, str]:
        form = dict(zip(self.inputs, values, strict=True))
        return started(self.settings, lambda: generate_request(data_id, **form), name=name)

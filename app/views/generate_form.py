"""The form that has a model answer a prompt set: who answers, how, what it will take, and the start."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.forms import ENDPOINT, generate_form, generate_request
from app.links import leads
from app.views import choices
from app.views.asking import AS_SETTINGS_SAY, form_end, started
from app.widgets.elements import QUIET, closed_accordion, on_typing
from app.widgets.fields import dropdown, one_line, whole_number
from app.widgets.problems import saying_errors
from app.widgets.review import review
from ops.homes import names
from speculoos.settings import Settings
from tracking.db import reading
from tracking.tables import Dataset, Job
from workers.ask.command_line import command_for
from workers.ask.estimates import estimate
from workers.ask.requests import SHARD_ROWS

FIELDS = ("who", "endpoint_model", "limit", "system_prompt", "max_tokens", "temperature", "top_p", "batch_size")
LATER = ("max_minutes", "seed", "samples", "shard_rows", "served", "api", "temperatures", "hidden_states_store")
FLAGS = ("replace_system", "drop_cut", "unique")


class GenerateForm:
    """The controls. `chosen` holds the prompt set's id."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings, self.chosen = settings, chosen
        with gr.Accordion("Generate answers", open=True, elem_id="generate", visible=False) as self.box:
            self._build_main()
            with closed_accordion("More settings", elem_id="generate-more"):
                self._build_more()
            self.review, self.said, self.start, self.target = form_end("generate", "Start generating")
        self.inputs = {name: getattr(self, name) for name in FIELDS + LATER + FLAGS}
        self.live = [self.box]
        self.outputs = [self.box, *self.inputs.values(), self.name, self.review, self.said]
        self._wire()

    def _build_main(self) -> None:
        with gr.Row():
            self.who = dropdown(
                [],
                label="Who answers",
                info="A base model here, or an endpoint of settings.toml.",
                elem_id="generate-who",
            )
            self.endpoint_model = one_line(
                "Model at the endpoint", "generate-endpoint-model", info=AS_SETTINGS_SAY, visible=False
            )
            self.limit = gr.Textbox(label="Prompts at most", info="Empty: all of them.", elem_id="generate-limit")
            self.max_tokens = whole_number(
                256, "Most tokens of an answer", "generate-tokens", info="Longer ones are cut."
            )
        self.system_prompt = gr.Textbox(
            label="System prompt (optional)", lines=1, max_lines=6, elem_id="generate-system", max_length=20_000
        )
        self.name = one_line("Name (optional)", "generate-name", max_length=200)

    def _build_more(self) -> None:
        with gr.Row():
            self.temperature = gr.Number(
                0.0, label="Temperature", info="0: always the likeliest token.", elem_id="generate-temperature"
            )
            self.top_p = gr.Number(1.0, label="Top-p", info="Counts above temperature 0.", elem_id="generate-top-p")
            self.seed = whole_number(0, "Seed", "generate-seed")
            self.batch_size = whole_number(
                16, "Answers at once", "generate-batch", info="More is faster and needs more memory."
            )
            self.max_minutes = gr.Textbox(
                label="Minutes at most", info="Then it keeps what is done.", elem_id="generate-minutes"
            )
        with gr.Row():
            self.samples = whole_number(
                1, "Answers to each prompt", "generate-samples", info="More than one needs a temperature."
            )
            self.shard_rows = gr.Textbox(
                label="Prompts a shard",
                info=f"Empty: {SHARD_ROWS}. Larger generations are divided; any worker takes a shard.",
                elem_id="generate-shard-rows",
            )
            self.temperatures = one_line(
                "Several temperatures",
                "generate-temperatures",
                info="In place of one, such as 0.0, 0.3, 0.7: answers are spread over them.",
                max_length=200,
            )
            self.hidden_states_store = one_line(
                "Store of hidden states",
                "generate-store",
                info="A name; empty for none. Medusa trainings that name it too need not run the model again.",
                max_length=100,
            )
        with gr.Row():
            self.served = dropdown(
                [],
                label="The base that the endpoint serves",
                info="Then its token ids are asked for and checked: exact labels.",
                elem_id="generate-served",
                visible=False,
            )
            self.api = gr.Radio(
                [("Chat", "chat"), ("Plain completions", "completions")],
                value="chat",
                label="How the endpoint is asked",
                info="Plain: the base's chat template is rendered here.",
                elem_id="generate-api",
                visible=False,
            )
        with gr.Row():
            self.replace_system = gr.Checkbox(
                label="System prompt in place of the prompts' own", elem_id="generate-replace-system"
            )
            self.drop_cut = gr.Checkbox(label="Leave out answers that are cut", elem_id="generate-drop-cut")
            self.unique = gr.Checkbox(label="Leave out what is there twice", elem_id="generate-unique")

    def _wire(self) -> None:
        values = [self.chosen, self.name, *self.inputs.values()]
        on_typing((*self.inputs.values(), self.name), self._review, values, self.review)
        self.who.change(self._endpoint, self.who, [self.endpoint_model, self.served, self.api], **QUIET)
        leads(self.start.click, self._start, values, self.said, self.target)

    def follow(self, shown: gr.HTML) -> None:
        """Review again what is asked for when what is shown of the data set has changed: its rows are there now."""
        shown.change(self._review_again, [self.chosen, self.name, *self.inputs.values()], self.review, **QUIET)

    def _review_again(self, data_id: str, name: str, who: str, *values: Any) -> Any:
        """Nothing while the form is still being filled in, which reviews it by itself."""
        return self._review(data_id, name, who, *values) if who else gr.skip()

    def live_view(self, data: Dataset) -> list[Any]:
        """Values of `live`."""
        return [gr.Accordion(visible=data.kind == "prompts" and data.state != "failed")]

    def view(self, session: Session, data: Dataset | None, query: Mapping[str, str]) -> list[Any]:
        """Values of `outputs` for a newly opened data set."""
        if data is None or data.kind != "prompts" or data.state == "failed":
            return [gr.Accordion(visible=False), *[gr.skip()] * (len(self.outputs) - 1)]
        form = self._values(session, query)
        answerers = choices.answerers(session, self.settings)
        form["who"] = choices.first(answerers, form.get("who") or query.get("base"))
        bases = [("–", ""), *choices.bases(session)]
        boxes = {
            "who": gr.Dropdown(answerers, value=form["who"]),
            "served": gr.Dropdown(bases, value=form.get("served") or ""),
        }
        shown = [boxes.get(name, form[name]) for name in self.inputs]
        review_html = self._reviewed(session, data.id, "", form)
        return [gr.Accordion(visible=True), *shown, "", review_html, ""]

    def _values(self, session: Session, query: Mapping[str, str]) -> dict[str, Any]:
        job = session.get(Job, query.get("clone", "")) if query.get("clone") else None
        cloned = generate_form(job.request) if job and job.kind == "generate_data" else {}
        return {**{name: box.value for name, box in self.inputs.items()}, **cloned}

    def _endpoint(self, who: str | None) -> tuple[Any, ...]:
        """What only endpoints have."""
        asked = bool(who) and who.startswith(ENDPOINT)
        return gr.Textbox(visible=asked), gr.Dropdown(visible=asked), gr.Radio(visible=asked)

    def _review(self, data_id: str, name: str, *values: Any) -> str:
        if not data_id:
            return ""
        with reading(self.settings) as session:
            return self._reviewed(session, data_id, name, dict(zip(self.inputs, values, strict=True)))

    @saying_errors(tone="warn")
    def _reviewed(self, session: Session, data_id: str, name: str, form: dict[str, Any]) -> str:
        request = generate_request(data_id, **form)
        guess = estimate(session, request, self.settings.home)
        return review(guess, command_for(request, names(session), name.strip()))

    def _start(self, data_id: str, name: str, *values: Any) -> tuple[str, str]:
        form = dict(zip(self.inputs, values, strict=True))
        return started(self.settings, lambda: generate_request(data_id, **form), name=name)

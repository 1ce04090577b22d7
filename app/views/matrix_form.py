"""Forms that start evaluations: a matrix of models, suites, temperatures and trees, or a suite on a server."""

from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.evaluation_forms import BUILT_IN, PAIR, matrix_request, served_request
from app.links import on_event_open
from app.views.choices import Choices
from app.views.job_start import command_of, form_end, started
from app.widgets.elements import block, closed_accordion, notice, on_changes
from app.widgets.fields import dropdown
from app.widgets.problems import show_errors
from app.widgets.review import review
from app.widgets.setting_fields import setting_control
from app.widgets.text import safe, tag
from ops.homes import names
from speculoos.settings import Settings
from speculoos.suites import BUILT_IN_SUITE_NAME as BUILT_IN_SUITE
from speculoos.suites import suite_title
from tracking import queries
from tracking.db import reading
from tracking.tables import Base, Checkpoint, Dataset
from workers.jobs import matrix
from workers.jobs.evaluate import suite_of
from workers.jobs.request import command_for
from workers.jobs.requests import Evaluate, Matrix
from workers.jobs.submit import check_and_estimate

TREES = "own: the checkpoint's tuned tree · chain 4 · tree 4x2x1 · ngram (no draft) · or options as JSON. One per line."
SERVER = (
    "The same questions on a server of settings.toml: vLLM, SGLang, TensorRT-LLM or Speculoos. Acceptance is what the "
    "server reports; choose the model it serves to compare it with the local engine."
)


class MatrixForm:
    """Evaluation matrix: values to combine, estimate, start."""

    def __init__(self, settings: Settings):
        self.settings = settings
        with closed_accordion("Measure checkpoints on suites", elem_id="matrix") as self.box:
            with gr.Row():
                self.models = dropdown([], multiselect=True, label="Models", elem_id="matrix-models")
                self.suites = dropdown([], multiselect=True, label="Suites", elem_id="matrix-suites")
            with gr.Row():
                self.temperatures = gr.Textbox(
                    "0", label="Temperatures", info="0 is greedy; several: 0, 1", elem_id="matrix-temperatures"
                )
                self.limit = setting_control(Matrix.options()["limit"], "matrix-limit", value=10)
                self.tokens = setting_control(Matrix.options()["max_tokens"], "matrix-tokens", value=64)
            self.trees = gr.Textbox("own", label="Trees", info=TREES, lines=2, max_lines=8, elem_id="matrix-trees")
            self.review, self.said, self.start, self.target = form_end("matrix", "Start measuring")
        fields = [self.models, self.suites, self.temperatures, self.trees, self.limit, self.tokens]
        self.opens = [self.box, *fields, self.said]
        on_changes(fields, self._review, self.review)
        on_event_open(self.start.click, self._start, fields, self.said, self.target)

    @staticmethod
    def opened(session: Session, values: list[Any] | None) -> list[Any]:
        """Values of `opens`: choices, and `values` of a cloned job."""
        models, suites = model_choices(session), suite_choices(session)
        if values is None:
            best = [value for _, value in models if not value.endswith(PAIR)][:1]
            return [gr.skip(), _multiselect(models, best), _multiselect(suites, [BUILT_IN]), *[gr.skip()] * 5]
        known_models, missing_models = _split_known(models, values[0])
        known_suites, missing_suites = _split_known(suites, values[1])
        boxes = [_multiselect(models, known_models), _multiselect(suites, known_suites)]
        return [gr.Accordion(open=True), *boxes, *values[2:], gone(missing_models + missing_suites)]

    @show_errors(tone="warn")
    def _review(self, *values: Any) -> str:
        request = matrix_request(*values)
        estimate = check_and_estimate(self.settings, request)
        with reading(self.settings) as session:
            count = len(matrix.cells(session, request))
            command = command_for(request, names(session))
        summary = tag("p", safe(f"{count:,} evaluation{'' if count == 1 else 's'}."), class_="sp-lead")
        return summary + review(estimate, command)

    def _start(self, *values: Any) -> tuple[str, str]:
        return started(self.settings, lambda: matrix_request(*values))


class ServerForm:
    """Evaluation of an endpoint on a suite."""

    def __init__(self, settings: Settings):
        self.settings = settings
        with closed_accordion("Measure a server", elem_id="served") as self.box:
            block(tag("p", safe(SERVER), class_="sp-lead"))
            with gr.Row():
                self.endpoint = dropdown([], label="Server", elem_id="served-endpoint")
                self.model = setting_control(Evaluate.options()["endpoint_model"], "served-model")
                self.plain = setting_control(Evaluate.options()["plain_model"], "served-plain")
            with gr.Row():
                self.serves = dropdown([], label="Model it serves", elem_id="served-serves")
                self.suite = dropdown([], label="Suite", elem_id="served-suite")
                self.limit = setting_control(Evaluate.options()["limit"], "served-limit", value=10)
                self.tokens = setting_control(Evaluate.options()["max_tokens"], "served-tokens", value=64)
            self.review, self.said, self.start, self.target = form_end("served", "Start measuring")
        fields = [self.endpoint, self.model, self.plain, self.serves, self.suite, self.limit, self.tokens]
        self.opens = [self.box, *fields, self.said]
        on_changes(fields, self._review, self.review)
        on_event_open(self.start.click, self._start, fields, self.said, self.target)

    def opened(self, session: Session, values: list[Any] | None) -> list[Any]:
        """Values of `opens`: choices, and `values` of a cloned job."""
        endpoints = [(name, name) for name in self.settings.endpoints]
        serves, suites = [("unknown", ""), *model_choices(session)], suite_choices(session)
        if values is None:
            first = gr.Dropdown(endpoints, value=endpoints[0][1] if endpoints else None)
            boxes = [first, *[gr.skip()] * 2, gr.Dropdown(serves, value=""), gr.Dropdown(suites, value=BUILT_IN)]
            return [gr.skip(), *boxes, *[gr.skip()] * 3]
        server, model, plain, served, suite, *rest = values
        boxes = ((endpoints, server), (serves, served), (suites, suite))
        first, *others = [_box(*box) for box in boxes]
        missing = sum(_split_known(options, [value])[1] for options, value in boxes)
        return [gr.Accordion(open=True), first, model, plain, *others, *rest, gone(missing)]

    def _review(self, *values: Any) -> str:
        return command_of(self.settings, lambda: served_request(*values))

    def _start(self, *values: Any) -> tuple[str, str]:
        return started(self.settings, lambda: served_request(*values))


def model_choices(session: Session) -> Choices:
    """Every ready base, followed by its checkpoints."""
    query = select(Checkpoint.id, Checkpoint.name, Checkpoint.base_id).where(Checkpoint.state == "ready")
    drafts: dict[str, list[tuple[str, str]]] = {}
    for row_id, name, base_id in session.execute(query.order_by(Checkpoint.created_at.desc(), Checkpoint.id)):
        drafts.setdefault(base_id, []).append((name, row_id))
    options: Choices = []
    for base in session.scalars(queries.listed(Base, ready_only=True)):
        options.append((f"{base.name}, no draft", f"{base.id}{PAIR}"))
        options += [(f"{base.name}@{name}", f"{base.id}{PAIR}{row_id}") for name, row_id in drafts.get(base.id, ())]
    return options


def suite_choices(session: Session) -> Choices:
    """The built-in questions (once, even if they were added as a data set), imported suites, and every prompt set."""
    sets = queries.datasets(session, "prompts", ready_only=True)
    options = [(words(data), data.id) for data in sets if suite_of(data) != BUILT_IN_SUITE]
    return [(suite_title(BUILT_IN_SUITE), BUILT_IN), *options]


def words(data: Dataset) -> str:
    known = suite_title((data.config or {}).get("suite") or "")
    name = f"{known} ({data.name})" if known and known != data.name else data.name
    return f"{name} · {data.rows:,} questions"


def _split_known(choices: Choices, values: list[str]) -> tuple[list[str], int]:
    """(those of `values` that are among the choices, number of the others)."""
    options = {value for _, value in choices}
    known = [value for value in values if value in options]
    return known, len(values) - len(known)


def _multiselect(choices: Choices, values: list[str]) -> gr.Dropdown:
    return gr.Dropdown(choices, value=values, multiselect=True)


def _box(choices: Choices, value: str) -> gr.Dropdown:
    return gr.Dropdown(choices, value=value if _split_known(choices, [value])[0] else None)


def gone(count: int) -> str:
    """Notice about values of a cloned job that no longer exist."""
    values = "one of its values was" if count == 1 else f"{count} of its values were"
    return notice(f"Filled in from the job, but {values} deleted.", "warn") if count else ""

"""Forms that start evaluations: a matrix of models, suites, temperatures and trees, or a suite on a server."""

from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.forms import BUILT_IN, PAIR, matrix_request, served_request
from app.links import on_event_open
from app.views.choices import Choices
from app.views.job_start import command_of, form_end, started
from app.widgets.elements import block, closed_accordion, on_changes
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
from workers.jobs.command_line import command_for
from workers.jobs.evaluate import suite_of
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
        with closed_accordion("Measure checkpoints on suites", elem_id="matrix"):
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
        self.opens = [self.models, self.suites]
        on_changes(fields, self._review, self.review)
        on_event_open(self.start.click, self._start, fields, self.said, self.target)

    @staticmethod
    def opened(session: Session) -> list[Any]:
        """Values of `opens`: choices, with the newest checkpoint of the first base."""
        models = model_choices(session)
        best = [value for _, value in models if not value.endswith(PAIR)][:1]
        suites = gr.Dropdown(suite_choices(session), value=[BUILT_IN], multiselect=True)
        return [gr.Dropdown(models, value=best, multiselect=True), suites]

    @show_errors(tone="warn")
    def _review(self, *values: Any) -> str:
        request = matrix_request(*values)
        estimate = check_and_estimate(self.settings, request)
        with reading(self.settings) as session:
            count, missing = len(matrix.cells(session, request)), matrix.left_out(session, request)
            command = command_for(request, names(session))
        left_out = f"; {missing:,} unsupported combinations are skipped" if missing else ""
        summary = tag("p", safe(f"{count:,} evaluation{'' if count == 1 else 's'}{left_out}."), class_="sp-lead")
        return summary + review(estimate, command)

    def _start(self, *values: Any) -> tuple[str, str]:
        return started(self.settings, lambda: matrix_request(*values))


class ServerForm:
    """Evaluation of an endpoint on a suite."""

    def __init__(self, settings: Settings):
        self.settings = settings
        with closed_accordion("Measure a server", elem_id="served"):
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
        self.opens = [self.endpoint, self.serves, self.suite]
        on_changes(fields, self._review, self.review)
        on_event_open(self.start.click, self._start, fields, self.said, self.target)

    def opened(self, session: Session) -> list[Any]:
        """Values of `opens`: choices."""
        endpoints = list(self.settings.endpoints)
        return [
            gr.Dropdown(endpoints, value=next(iter(endpoints), None)),
            gr.Dropdown([("unknown", ""), *model_choices(session)], value=""),
            gr.Dropdown(suite_choices(session), value=BUILT_IN),
        ]

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
    for base in session.scalars(queries.base_query().where(Base.state == "ready")):
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

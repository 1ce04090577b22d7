"""Forms that start evaluations: a matrix of models, suites, temperatures and trees, or a suite on a server."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.forms import BUILT_IN, PAIR, matrix_request, served_request
from app.i18n import N_, plural, t
from app.views.choices import Choices, suite_choices
from app.views.job_forms import JobForm
from app.widgets.elements import block, closed_accordion
from app.widgets.fields import dropdown
from app.widgets.setting_fields import setting_control
from app.widgets.text import safe, tag
from speculoos.settings import Settings
from tracking import queries
from tracking.tables import Base, Checkpoint
from workers.jobs import matrix
from workers.jobs.requests import Evaluate, Matrix

TREES = N_("own: the draft's tuned tree · chain 4 · tree 4x2x1 · ngram (no draft) · or options as JSON. One per line.")
SERVER = N_(
    "A server of settings.toml: vLLM, SGLang, TensorRT-LLM, llama.cpp or Speculoos, which reports its acceptance."
)


class MatrixForm:
    """Evaluation matrix: values to combine, estimate, start. `opened` has the values of `outputs`."""

    def __init__(self, settings: Settings):
        with closed_accordion(t("Evaluate drafts"), elem_id="matrix", elem_classes="sp-action") as box:
            with gr.Row():
                models = dropdown([], multiselect=True, label=t("Models"), elem_id="matrix-models")
                suites = dropdown([], multiselect=True, label=t("Suites"), elem_id="matrix-suites")
            with gr.Row():
                temperatures = gr.Textbox(
                    "0", label=t("Temperatures"), info=t("0: greedy; several: 0, 1"), elem_id="matrix-temperatures"
                )
                limit, tokens = size_controls(Matrix, "matrix")
            trees = gr.Textbox("own", label=t("Trees"), info=t(TREES), lines=2, max_lines=8, elem_id="matrix-trees")
            fields = {"models": models, "suites": suites, "temperatures": temperatures, "tree_lines": trees}
            fields |= {"limit": limit, "max_tokens": tokens}
            self.form = JobForm(settings, "matrix", t("Start evaluation"), fields, matrix_request, note=cells_note)
        self.form.keep_in_url()
        self.outputs = [box, *self.form.outputs]

    def opened(self, session: Session, query: Mapping[str, str]) -> list[Any]:
        models = model_choices(session)
        values = {"models": [value for _, value in models if not value.endswith(PAIR)][:1], "suites": [BUILT_IN]}
        filled = self.form.fill(query, values, {"models": models, "suites": suite_choices(session)})
        return [opened_box(self.form, query), *filled]


class ServerForm:
    """Evaluation of an endpoint on a suite. `opened` has the values of `outputs`."""

    def __init__(self, settings: Settings):
        self.settings = settings
        with closed_accordion(t("Evaluate a server"), elem_id="served") as box:
            block(tag("p", safe(t(SERVER)), class_="sp-lead"))
            with gr.Row():
                endpoint = dropdown([], label=t("Server"), elem_id="served-endpoint")
                model = setting_control(Evaluate.options()["endpoint_model"], "served-model")
                plain = setting_control(Evaluate.options()["plain_model"], "served-plain")
            with gr.Row():
                without = Evaluate.options()["plain_endpoint"]
                other = dropdown([], label=t(without.label), info=t(without.help), elem_id="served-plain-endpoint")
                loads = setting_control(Evaluate.options()["concurrency"], "served-concurrency")
            with gr.Row():
                serves = dropdown([], label=t("Model it serves"), elem_id="served-serves")
                suite = dropdown([], label=t("Suite"), elem_id="served-suite")
                limit, tokens = size_controls(Evaluate, "served")
            fields = {"endpoint": endpoint, "model": model, "plain_model": plain, "serves": serves, "suite": suite}
            fields |= {"limit": limit, "max_tokens": tokens, "plain_endpoint": other, "concurrency": loads}
            self.form = JobForm(settings, "served", t("Start evaluation"), fields, served_request)
        self.form.keep_in_url()
        self.outputs = [box, *self.form.outputs]

    def opened(self, session: Session, query: Mapping[str, str]) -> list[Any]:
        endpoints = [(name, name) for name in self.settings.current().endpoints]
        models = [(t("unknown"), ""), *model_choices(session)]
        choices = {"endpoint": endpoints, "serves": models, "suite": suite_choices(session)}
        choices["plain_endpoint"] = [(t("the same server"), ""), *endpoints]
        return [opened_box(self.form, query), *self.form.fill(query, {}, choices)]


def opened_box(form: JobForm, query: Mapping[str, str]) -> Any:
    """The accordion of a form, open if the URL holds a value of it."""
    return gr.Accordion(open=True) if form.is_entered(query) else gr.skip()


def size_controls(kind: type[Evaluate | Matrix], prefix: str) -> list[Any]:
    options = kind.options()
    sizes = (("limit", "limit", 10), ("max_tokens", "tokens", 64))
    return [setting_control(options[name], f"{prefix}-{short}", value=value) for name, short, value in sizes]


def cells_note(session: Session, request: Matrix) -> str:
    count = len(matrix.matrix_evaluations(session, request))
    return tag("p", safe(plural("{n:,} evaluation.", "{n:,} evaluations.", count)), class_="sp-lead")


def model_choices(session: Session) -> Choices:
    """Every ready base, followed by its checkpoints."""
    query = select(Checkpoint.id, Checkpoint.name, Checkpoint.base_id).where(Checkpoint.state == "ready")
    drafts: dict[str, list[tuple[str, str]]] = {}
    for row_id, name, base_id in session.execute(query.order_by(Checkpoint.created_at.desc(), Checkpoint.id)):
        drafts.setdefault(base_id, []).append((name, row_id))
    options: Choices = []
    for base in session.scalars(queries.listed(Base, ready_only=True)):
        options.append((t("{name}, no draft", name=base.name), f"{base.id}{PAIR}"))
        options += [(f"{base.name}@{name}", f"{base.id}{PAIR}{row_id}") for name, row_id in drafts.get(base.id, ())]
    return options

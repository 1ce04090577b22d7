"""The forms that measure: a matrix of models, suites, temperatures and trees, and a suite asked of a server."""

from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app.evaluation_forms import BUILT_IN, PAIR, matrix_request, served_request
from app.links import on_event_open
from app.views.asking import command_of, form_end, started
from app.views.choices import Choices
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
from workers.jobs import estimates, matrix
from workers.jobs.command_line import command_for
from workers.jobs.evaluate import suite_of
from workers.jobs.requests import Evaluate, Matrix

TREES = (
    "own: as the checkpoint is tuned · chain 4 · tree 4x2x1 · ngram (a base alone) · or options as JSON. One a line."
)
SERVER = (
    "The same questions to a server that the operator named in settings.toml: vLLM, SGLang, TensorRT-LLM or another of "
    "ours. Its acceptance is what it publishes; say what it serves, and both stand side by side."
)


class MatrixForm:
    """A matrix: what to combine, what it takes, and the start."""

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
        """Values of `opens`: what there is to choose, and `values` of a job that is cloned."""
        models, suites = model_choices(session), suite_choices(session)
        if values is None:
            best = [value for _, value in models if not value.endswith(PAIR)][:1]
            return [gr.skip(), _several(models, best), _several(suites, [BUILT_IN]), *[gr.skip()] * 5]
        (here, there), (known, lost) = _parted(models, values[0]), _parted(suites, values[1])
        boxes = [_several(models, here), _several(suites, known)]
        return [gr.Accordion(open=True), *boxes, *values[2:], gone(there + lost)]

    @show_errors(tone="warn")
    def _review(self, *values: Any) -> str:
        request = matrix_request(*values)
        with reading(self.settings) as session:
            request.check(session)
            found, missing = len(matrix.cells(session, request)), matrix.left_out(session, request)
            estimate = estimates.estimate(session, request, self.settings.home)
            command = command_for(request, names(session))
        left = f"; {missing:,} combinations that cannot be are left out" if missing else ""
        words = tag("p", safe(f"{found:,} evaluation{'' if found == 1 else 's'}{left}."), class_="sp-lead")
        return words + review(estimate, command)

    def _start(self, *values: Any) -> tuple[str, str]:
        return started(self.settings, lambda: matrix_request(*values))


class ServerForm:
    """A suite asked of an endpoint."""

    def __init__(self, settings: Settings):
        self.settings = settings
        with closed_accordion("Measure a server", elem_id="served") as self.box:
            block(tag("p", safe(SERVER), class_="sp-lead"))
            with gr.Row():
                self.endpoint = dropdown([], label="Server", elem_id="served-endpoint")
                self.model = setting_control(Evaluate.options()["endpoint_model"], "served-model")
                self.plain = setting_control(Evaluate.options()["plain_model"], "served-plain")
            with gr.Row():
                self.serves = dropdown([], label="What it serves", elem_id="served-serves")
                self.suite = dropdown([], label="Suite", elem_id="served-suite")
                self.limit = setting_control(Evaluate.options()["limit"], "served-limit", value=10)
                self.tokens = setting_control(Evaluate.options()["max_tokens"], "served-tokens", value=64)
            self.review, self.said, self.start, self.target = form_end("served", "Ask it")
        fields = [self.endpoint, self.model, self.plain, self.serves, self.suite, self.limit, self.tokens]
        self.opens = [self.box, *fields, self.said]
        on_changes(fields, self._review, self.review)
        on_event_open(self.start.click, self._start, fields, self.said, self.target)

    def opened(self, session: Session, values: list[Any] | None) -> list[Any]:
        """Values of `opens`: what there is to choose, and `values` of a job that is cloned."""
        endpoints = [(name, name) for name in self.settings.endpoints]
        serves, suites = [("not known here", ""), *model_choices(session)], suite_choices(session)
        if values is None:
            first = gr.Dropdown(endpoints, value=endpoints[0][1] if endpoints else None)
            boxes = [first, *[gr.skip()] * 2, gr.Dropdown(serves, value=""), gr.Dropdown(suites, value=BUILT_IN)]
            return [gr.skip(), *boxes, *[gr.skip()] * 3]
        server, model, plain, served, suite, *rest = values
        wanted = ((endpoints, server), (serves, served), (suites, suite))
        first, *others = [_box(*each) for each in wanted]
        lost = sum(_parted(known, [value])[1] for known, value in wanted)
        return [gr.Accordion(open=True), first, model, plain, *others, *rest, gone(lost)]

    def _review(self, *values: Any) -> str:
        return command_of(self.settings, lambda: served_request(*values))

    def _start(self, *values: Any) -> tuple[str, str]:
        return started(self.settings, lambda: served_request(*values))


def model_choices(session: Session) -> Choices:
    """Every base that is ready, with its checkpoints below it."""
    query = select(Checkpoint.id, Checkpoint.name, Checkpoint.base_id).where(Checkpoint.state == "ready")
    drafts: dict[str, list[tuple[str, str]]] = {}
    for row_id, name, base_id in session.execute(query.order_by(Checkpoint.created_at.desc(), Checkpoint.id)):
        drafts.setdefault(base_id, []).append((name, row_id))
    found: Choices = []
    for base in session.scalars(queries.base_query().where(Base.state == "ready")):
        found.append((f"{base.name}, no draft", f"{base.id}{PAIR}"))
        found += [(f"{base.name}@{name}", f"{base.id}{PAIR}{row_id}") for name, row_id in drafts.get(base.id, ())]
    return found


def suite_choices(session: Session) -> Choices:
    """The built-in questions (once, also where they were added as a data set), suites that were imported, and every
    prompt set."""
    sets = queries.datasets(session, "prompts", ready_only=True)
    found = [(words(data), data.id) for data in sets if suite_of(data) != BUILT_IN_SUITE]
    return [(suite_title(BUILT_IN_SUITE), BUILT_IN), *found]


def words(data: Dataset) -> str:
    known = suite_title((data.config or {}).get("suite") or "")
    name = f"{known} ({data.name})" if known and known != data.name else data.name
    return f"{name} · {data.rows:,} questions"


def _parted(choices: Choices, wanted: list[str]) -> tuple[list[str], int]:
    """Of `wanted` what there still is, and how many there are not."""
    known = {value for _, value in choices}
    here = [value for value in wanted if value in known]
    return here, len(wanted) - len(here)


def _several(choices: Choices, values: list[str]) -> gr.Dropdown:
    return gr.Dropdown(choices, value=values, multiselect=True)


def _box(choices: Choices, wanted: str) -> gr.Dropdown:
    return gr.Dropdown(choices, value=wanted if _parted(choices, [wanted])[0] else None)


def gone(count: int) -> str:
    """What a cloned job had and this home has not."""
    words = "one thing that it chose is" if count == 1 else f"{count} things that it chose are"
    return notice(f"As the job was asked, but {words} not here any more.", "warn") if count else ""

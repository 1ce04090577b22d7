"""The Evaluations page: a leaderboard with filters and sorting, and forms that start evaluations; `?id=` opens one."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import gradio as gr
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from app.i18n import N_, t
from app.links import on_event_open
from app.turns import run_again
from app.views import evaluation_view, leaderboard
from app.views.job_rows import jobs_table
from app.views.manage import build_list
from app.views.matrix_form import MatrixForm, ServerForm
from app.widgets.downloads import export_list, pressed
from app.widgets.elements import block, closed_accordion, notice, on_load, page_header
from app.widgets.fields import dropdown
from app.widgets.list_page import Listing
from app.widgets.picker import KEEP_FOCUS
from app.widgets.problems import show_errors
from app.widgets.text import tag
from speculoos.settings import Settings
from tracking import leaderboard as board
from tracking import listing
from tracking.db import reading
from tracking.leaderboard import DEFAULT_SORT, LeaderboardView
from tracking.paging import page as page_of
from tracking.tables import Evaluation, Job

PLANS = 5
"""Maximum number of plans below the leaderboard."""
FILTERS = {
    "base": N_("Base model"),
    "suite": N_("Questions"),
    "prompts": N_("Number of questions"),
    "temperature": N_("Temperature"),
    "tree": N_("Tree"),
    "machine": N_("Machine"),
    "source": N_("Engine"),
}
SORTS = {
    N_("Speedup"): "",
    "τ": "-tau",
    N_("Tokens per second"): "-speed",
    N_("Newest"): "-made",
    N_("Model"): "model",
    N_("Questions"): "suite",
}


class Leaderboard(Listing):
    """The list of evaluations, whose query is a view."""

    def query_of(self, query: Mapping[str, str]) -> LeaderboardView:
        """The view in the URL."""
        return LeaderboardView.of(query)

    def fields(self) -> dict[str, Any]:
        """Parameter of the URL → its control above the list."""

        def field(key: str, label: str) -> gr.Dropdown:
            return dropdown([], label=label, elem_id=f"evaluations-by-{key}", min_width=130)

        with gr.Row():
            main = {"checkpoint": field("checkpoint", t("Draft")), "sort": field("sort", t("Sort"))}
        with closed_accordion(t("More filters"), elem_id="evaluations-filters"), gr.Row(elem_classes="sp-filters"):
            return main | {key: field(key, t(label)) for key, label in FILTERS.items()}

    def field_values(self, session: Session, query: Mapping[str, str]) -> list[Any]:
        """The boxes, with the choices of all evaluations."""
        view, choices = self.query_of(query), board.filter_choices(session)
        sorts = [(t(label), value) for label, value in SORTS.items()]
        boxes = {"sort": _box(sorts, "" if view.sort == DEFAULT_SORT else view.sort)}
        for key in ("checkpoint", *FILTERS):
            options = [(t("All"), ""), *((t(label), value) for label, value in choices[key])]
            boxes[key] = _box(options, getattr(view, key))
        return [boxes[key] for key in ("checkpoint", "sort", *FILTERS)]


def _box(choices: list[tuple[str, str]], value: str) -> gr.Dropdown:
    is_listed = value in {choice for _, choice in choices}
    return gr.Dropdown(choices if is_listed else [*choices, (value, value)], value=value)


def table(session: Session, view: LeaderboardView, offset: str = "") -> str:
    """A page of the leaderboard, with its chart."""
    page = page_of(session, view.select(), offset[:64])
    names = leaderboard.names_of(session, page.rows)
    listed = leaderboard.leaderboard(page, names, view) + leaderboard.chart(page.rows, names, view)
    return listed + plans(session)


def plans(session: Session) -> str:
    """The newest plans; "" without any."""
    jobs = list(session.scalars(listing.newest().where(Job.kind == "plan").limit(PLANS)))
    return tag("h2", t("Plans"), class_="sp-section") + jobs_table(jobs, {}, as_links=True) if jobs else ""


def signature(session: Session) -> str:
    """Changes with the evaluations and the plans."""
    planned = select(func.count(), func.sum(Job.version)).where(Job.kind == "plan")
    return f"{board.signature(session)}.{session.execute(planned).one()}"


def row_signature(session: Session, row_id: str) -> str:
    """Changes with the evaluation, with its job, and with the list."""
    query = select(Evaluation.state, Job.version).outerjoin(Job, Job.id == Evaluation.job_id)
    return f"{board.signature(session)}.{session.execute(query.where(Evaluation.id == row_id)).one_or_none()}"


EVALUATIONS = Leaderboard(
    *("evaluations", Evaluation, "evaluation", table, signature),
    row_signature=row_signature,
    keys=(*(field.name for field in fields(LeaderboardView)), "from"),
)


def build(settings: Settings) -> None:
    page_header(t("Results"), t("How much faster each draft is, measured on sets of questions."))
    build_list(settings, EVALUATIONS, EvaluationPanel, build_forms)


def build_forms(settings: Settings) -> None:
    forms = (MatrixForm(settings), ServerForm(settings))

    def opened(request: gr.Request) -> list[Any]:
        with reading(settings) as session:
            return [value for form in forms for value in form.opened(session, request.query_params)]

    on_load(opened, [output for form in forms for output in form.outputs])


class EvaluationPanel:
    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.one = export_list("evaluation-one", KEEP_FOCUS)
        message = block(elem_id="evaluation-steps-message")
        self.live, self.outputs = [self.one], [message]
        on_event_open(self.one.make, self.show_steps, chosen, message)

    def live_view(self, session: Session, row: Evaluation) -> list[Any]:
        return [evaluation_view.view(session, row)]

    def view(self, session: Session, row: Evaluation | None, query: Mapping[str, str]) -> list[Any]:
        return [""]

    @show_errors("")
    def show_steps(self, row_id: str, event: gr.EventData) -> tuple[str, str]:
        """Run one of its prompts again and record probabilities: (error notice, URL to open)."""
        chat, error = run_again(self.settings, row_id, pressed(event))
        return (notice(error, "bad"), "") if error else ("", f"/playground?chat={chat}")

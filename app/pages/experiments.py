"""The Experiments page: named groups of jobs; `?id=` opens one."""

from collections.abc import Mapping
from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.links import on_event_open
from app.views import experiment_rows, shell
from app.views.manage import SMALL, Manage
from app.widgets.bulk import Action, on_bulk
from app.widgets.elements import QUIET, block, hidden, page_header, section
from app.widgets.fields import one_line
from app.widgets.list_page import Listing, ListPage
from app.widgets.picker import live, picker
from app.widgets.problems import show_errors
from speculoos.settings import Settings
from tracking import experiments
from tracking.db import writing
from tracking.tables import Experiment

LEAD = "Groups of jobs: their trainings, results, and τ by amount of data."
EXPERIMENTS = Listing(
    "experiments",
    Experiment,
    "experiment",
    experiment_rows.experiments_table,
    experiments.signature,
    row_signature=experiments.row_signature,
)


class ExperimentPanel:
    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings = settings
        self.head = live("experiment-head")
        self.manage = Manage(settings, Experiment, "experiment", "experiment", chosen)
        self.figures = live("experiment-figures")
        section("Learning curve")
        self.curves = live("experiment-curves")
        section("Jobs")
        self.said = block(elem_id="experiment-bulk-said")
        self.jobs = picker("experiment-jobs", bulk=True)
        self.live = [self.head, self.figures, self.curves, self.jobs]
        self.outputs = [*self.live, self.said, *self.manage.outputs]

    def wire(self, redraw: Any, inputs: list[Any], outputs: list[Any]) -> None:
        self.manage.wire(redraw, inputs, outputs)
        action = Action("Removed from the experiment", lambda job_id: remove(self.settings, job_id))
        on_bulk(self.jobs, {"remove": action}, self.said).then(redraw, inputs, outputs, **QUIET)

    def live_view(self, session: Session, row: Experiment) -> list[Any]:
        return experiment_rows.parts(session, row)

    def view(self, session: Session, row: Experiment | None, query: Mapping[str, str]) -> list[Any]:
        shown = self.live_view(session, row) if row else [""] * len(self.live)
        return [*shown, "", *self.manage.view(row)]


def build(settings: Settings) -> None:
    page_header("Experiments", LEAD)
    shell.tabs("/experiments")
    page = ListPage(settings, EXPERIMENTS)
    with page.listing():
        build_form(settings)
    with page.opened():
        panel = ExperimentPanel(settings, page.chosen)
    page.wire(panel)
    panel.wire(*page.again)


def build_form(settings: Settings) -> None:
    with gr.Row(elem_classes="sp-find"):
        name = one_line("New experiment", "experiments-name", max_length=200, scale=3)
        make = gr.Button("Create", elem_id="experiments-make", **SMALL)
    message, target = block(elem_id="experiments-said"), hidden("experiments-target")

    @show_errors("")
    def create(text: str) -> tuple[str, str]:
        with writing(settings) as session:
            return "", f"/experiments?id={experiments.create(session, text or '').id}"

    for event in (make.click, name.submit):
        on_event_open(event, create, name, message, target)


def remove(settings: Settings, job_id: str) -> None:
    with writing(settings) as session:
        experiments.move_to_experiment(session, job_id, None)

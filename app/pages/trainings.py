"""The page that compares trainings: curves, figures, and settings that differ. `?ids=a,b` lists the jobs."""

from typing import Any

import gradio as gr
from sqlalchemy.orm import Session

from app.i18n import N_, t
from app.views import trainings_view
from app.widgets.elements import block, empty_state, page_header
from app.widgets.list_page import live_page
from app.widgets.picker import live
from speculoos.settings import Settings
from tracking import reports, trainings

PAGE = "trainings"
LEAD = N_("Curves in shared charts, results side by side, and the settings that differ.")


def now(session: Session, ids: str) -> str:
    return f"{ids}|{trainings.signature(session, trainings_view.ids_of(ids))}"


def build(settings: Settings) -> None:
    page_header(t("Compare training runs"), t(LEAD))
    problem = block(elem_id="trainings-problem")
    with gr.Column(visible=False, elem_id="trainings-shown") as column:
        differ = block(elem_id="trainings-settings")
        charts = live("trainings-charts")
        figures = live("trainings-figures")
    shown = [problem, column, differ, charts, figures]
    live_page(settings, PAGE, now, drawn, shown, lambda query: ",".join(trainings_view.ids_of(query.get("ids") or "")))


def nothing() -> str:
    text = t("Select two or more training runs on Jobs, then press Compare training runs.")
    return empty_state(t("Nothing to compare yet"), text, "/runs", t("Go to Jobs"))


def drawn(session: Session, ids: str) -> list[Any]:
    selected = trainings.find(session, trainings_view.ids_of(ids))
    pairs = zip(trainings_view.labels(selected.trainings), selected.trainings, strict=True)
    metrics = {label: reports.sampled_metrics(session, training.job.id) for label, training in pairs}
    return [
        trainings_view.missing_jobs_notice(selected) if ids else nothing(),
        gr.Column(visible=bool(selected.trainings)),
        trainings_view.settings_table(selected.trainings),
        trainings_view.charts(metrics),
        trainings_view.figures_table(session, selected.trainings, metrics),
    ]

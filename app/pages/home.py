"""Home: before any work a recorded race of the starter with and without its draft; after it the latest result."""

from functools import partial
from pathlib import Path
from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import visitor
from app.i18n import N_, t
from app.links import chat_link, on_event_open
from app.paths import PAGES
from app.theme import asset
from app.views import guided_view
from app.views.job_view import progress, state_badge
from app.views.manage import SMALL
from app.widgets.elements import block, link_button, page_header, row_note
from app.widgets.list_page import live_page
from app.widgets.picker import live
from app.widgets.problems import show_errors
from app.widgets.text import safe, tag
from models.starter import STARTER_HEAD
from speculoos.settings import Settings
from tracking import listing, queries
from tracking.experiments import jobs_of
from tracking.states import JobState
from tracking.tables import Base, Checkpoint, Experiment, Job
from workers.jobs.guided import EXPERIMENT, QUICKSTART_MINUTES, submit_quickstart

LEAD = N_("A small draft proposes tokens, the base model verifies them in one pass: same output, faster.")


def build(settings: Settings) -> None:
    page_header(t("Speculative decoding, end to end"), t(LEAD))
    work, message = live("home-work"), block(elem_id="home-message")
    label = t("Run the quickstart: a draft for the starter in {n} minutes", n=QUICKSTART_MINUTES)
    start = gr.Button(label, elem_id="home-quickstart", visible=False, **SMALL)
    live_page(settings, "home", now, draw, [work, start])
    on_event_open(start.click, partial(quickstart, settings), None, message)


@show_errors("")
def quickstart(settings: Settings) -> tuple[str, str]:
    """Submit the quickstart: (error notice, URL of the run)."""
    chain = submit_quickstart(settings, user=visitor.user())
    return "", f"{PAGES['guided']}?experiment={chain.experiment_id}"


def now(session: Session, _id: str) -> str:
    return listing.signature(session)


def draw(session: Session, _id: str) -> list[Any]:
    """What runs, and the latest trained draft; without work the race and the button of the quickstart."""
    latest, active = result(session), running(session)
    html = tag("div", buttons(session, main=not latest) + active + (latest or race()), class_="sp-stack")
    return [html, gr.Button(visible=not latest and not active)]


def buttons(session: Session, main: bool) -> str:
    chat = PAGES["playground"]
    for checkpoint in queries.checkpoints(session, ready_only=True):
        if Path(checkpoint.path).name == STARTER_HEAD.name:
            chat = chat_link(session.get_one(Base, checkpoint.base_id).name, checkpoint.name)
    links = link_button(t("Chat with the starter model"), chat, main=main, id="home-chat")
    links += link_button(t("Make my model faster"), PAGES["guided"], id="home-guided")
    return tag("div", links, class_="sp-link-row")


def race() -> str:
    return tag("div", "", data_sp="race", data_src=asset("race.json"), class_="sp-race")


def running(session: Session) -> str:
    """The running jobs with their progress."""
    html = ""
    for job in session.scalars(listing.newest((JobState.RUNNING,)).limit(3)):
        name = tag("a", safe(job.name), href=address(session, job), class_="sp-row-name")
        body = tag("div", name + state_badge(job), class_="sp-detail-head") + progress(job)
        html += tag("div", tag("div", body, class_="sp-step-body"), class_="sp-step sp-info")
    return tag("div", html, class_="sp-steps") if html else ""


def address(session: Session, job: Job) -> str:
    """URL of the guided run that a job belongs to, otherwise of the job."""
    experiment = session.get(Experiment, job.experiment_id or "")
    if experiment and experiment.name.startswith(EXPERIMENT):
        return f"{PAGES['guided']}?experiment={experiment.id}"
    return f"{PAGES['jobs']}?id={job.id}"


def result(session: Session) -> str:
    """The latest draft that was trained here, with its verdict and next steps; "" if there is none."""
    trained = select(Checkpoint, Job).join(Job, Checkpoint.job_id == Job.id)
    trained = trained.where(Job.kind == "train", Job.state == JobState.SUCCEEDED, Checkpoint.state == "ready")
    row = session.execute(trained.order_by(Checkpoint.created_at.desc()).limit(1)).one_or_none()
    if row is None:
        return ""
    checkpoint, job = row
    jobs = jobs_of(session, job.experiment_id) if job.experiment_id else [job]
    draft_jobs = [each for each in jobs if each.id == job.id or each.request.get("checkpoint_id") == checkpoint.id]
    name = tag("h2", t("Latest draft"), class_="sp-section") + row_note(checkpoint.name)
    html = tag("div", name, class_="sp-detail-head")
    html += guided_view.draft_result(session, job, checkpoint, draft_jobs)
    return tag("section", html, class_="sp-stack", aria_label=t("Latest draft"))

"""The home page: the starter's draft, the quickstart with its steps, the machine. `?experiment=` shows another one."""

import os
import shutil
from pathlib import Path
from typing import Any

import gradio as gr
import psutil
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import visitor
from app.links import model_link
from app.views.checkpoint_rows import figure_tiles
from app.views.job_view import ACTIVE, banner, progress, state_badge
from app.widgets.elements import (
    QUIET,
    block,
    detail_head,
    hidden,
    link_button,
    notice,
    on_change,
    on_load,
    page_header,
    row_note,
    section,
    tiles,
)
from app.widgets.formatting import ago, size
from app.widgets.picker import live
from app.widgets.problems import error_text, show_errors
from app.widgets.text import safe, tag
from models.starter import STARTER_HEAD
from speculoos.errors import SpeculoosError
from speculoos.resources import nearest_existing
from speculoos.settings import Settings
from tracking import jobs, listing, processes, queries
from tracking.db import reading
from tracking.experiments import jobs_of
from tracking.tables import Base, Checkpoint, Experiment, Job
from workers.jobs.quickstart import submit_quickstart
from workers.jobs.requests import kind_title

LEAD = (
    "Speculative decoding: a small draft model proposes tokens, the base model verifies them. Same output, but faster."
)
LOOK = "The starter model comes with a trained draft. Chat with it and see which tokens were drafted."
PROMISE = (
    "Trains small draft heads for the starter model and shows them at work, in about seven minutes on two CPU cores. "
    "Nothing is downloaded, and you can close this page meanwhile."
)
QUICKSTART = "quickstart "
"""Start of the name of a quickstart's experiment."""
TONES = {"SUCCEEDED": "good", "RUNNING": "info", "FAILED": "bad", "INTERRUPTED": "info"}


def build(settings: Settings) -> None:
    page_header("Speculoos", LEAD)
    HomePage(settings).wire()


class HomePage:
    def __init__(self, settings: Settings):
        self.settings = settings
        self.experiment = hidden("home-experiment")
        self.seen = hidden("home-seen")
        self.look = live("home-look")
        with gr.Column(elem_classes="sp-hero", elem_id="quickstart"):
            block(hero("Quickstart: train a draft", PROMISE))
            self.start = gr.Button(
                "Start the quickstart", variant="primary", size="lg", elem_id="quickstart-start", scale=0
            )
            self.message = block(elem_id="quickstart-said")
        self.work = live("home-work")
        section("This machine")
        self.machine = block(elem_id="home-machine")
        self.live = [self.seen, self.look, self.work, self.start, self.machine]

    def wire(self) -> None:
        on_load(self.open_address, [self.experiment, *self.live])
        experiment = {"chosen": "home-experiment", "seen": "home-seen"}
        on_change("home", self.poll, [self.experiment, self.seen], self.live, **experiment)
        self.start.click(self.begin, None, [self.message, self.experiment], **QUIET).then(
            self.redraw, self.experiment, self.live, js=REMEMBER, **QUIET
        )

    def open_address(self, request: gr.Request) -> list[Any]:
        experiment_id = str(request.query_params.get("experiment", ""))[:64]
        return [experiment_id, *self.redraw(experiment_id)]

    def redraw(self, experiment_id: str) -> list[Any]:
        """Values of `live`."""
        try:
            with reading(self.settings) as session:
                return [listing.signature(session), *self._view(session, experiment_id)]
        except SpeculoosError as error:
            return ["", notice(error_text(error), "bad"), *[gr.skip()] * (len(self.live) - 2)]

    def poll(self, experiment_id: str, seen: str) -> Any:
        """Values of `live` if something changed since `seen`."""
        try:
            with reading(self.settings) as session:
                now = listing.signature(session)
                return gr.skip() if now == seen else [now, *self._view(session, experiment_id)]
        except SpeculoosError:
            return gr.skip()

    def _view(self, session: Session, experiment_id: str) -> list[Any]:
        experiment, is_running = shown_experiment(session, experiment_id), active_quickstart(session) is not None
        words = "The quickstart is running…" if is_running else "Start the quickstart"
        return [
            first_look(session),
            experiment_view(session, experiment) if experiment else last_job(session),
            gr.Button(words, interactive=not is_running),
            machine(session, self.settings),
        ]

    @show_errors("")
    def begin(self) -> tuple[str, str]:
        """Submit the quickstart unless one is active: (error notice, experiment id)."""
        with reading(self.settings) as session:
            if active := active_quickstart(session):
                return "", active.id
        chain = submit_quickstart(self.settings, user=visitor.user())
        with reading(self.settings) as session:
            return "", jobs.get(session, chain.job_ids[-1]).experiment_id


def hero(title: str, text: str) -> str:
    return tag("div", tag("h2", safe(title)) + tag("p", safe(text)), class_="sp-hero-text")


def first_look(session: Session) -> str:
    """Box with a link to chat with the starter's draft; "" if that is not in the list."""
    for checkpoint in queries.checkpoints(session, ready_only=True):
        if Path(checkpoint.path).name == STARTER_HEAD.name:
            link = model_link("playground", session.get_one(Base, checkpoint.base_id).name, checkpoint.name)
            button = link_button("Chat with the starter", link, main=True)
            return tag("div", hero("Try it", LOOK) + tag("div", button, class_="sp-hero-go"), class_="sp-hero")
    return ""


REMEMBER = """(id) => {
  if (id) history.replaceState({}, '', '/?experiment=' + encodeURIComponent(id));
  return id;
}"""


def latest_quickstart(session: Session) -> Experiment | None:
    """The newest quickstart with jobs. Jobs of other experiments are not steps of one task."""
    has_jobs = select(Job.id).where(Job.experiment_id == Experiment.id).exists()
    quick = Experiment.name.startswith(QUICKSTART, autoescape=True)
    return session.scalar(select(Experiment).where(has_jobs, quick).order_by(Experiment.created_at.desc()).limit(1))


def active_quickstart(session: Session) -> Experiment | None:
    """The latest quickstart, if it has not ended."""
    experiment = latest_quickstart(session)
    return experiment if experiment and is_active(jobs_of(session, experiment.id)) else None


def shown_experiment(session: Session, experiment_id: str) -> Experiment | None:
    """The requested experiment, otherwise the latest quickstart."""
    return (session.get(Experiment, experiment_id) if experiment_id else None) or latest_quickstart(session)


def is_active(jobs: list[Job]) -> bool:
    return any(job.state in ACTIVE for job in jobs)


def experiment_view(session: Session, experiment: Experiment) -> str:
    """Jobs of an experiment as steps with their progress, and its results."""
    jobs, queues = jobs_of(session, experiment.id), listing.Queues(session)
    name = "Quickstart" if experiment.name.startswith(QUICKSTART) else experiment.name
    steps = "".join(_step(queues, number, job) for number, job in enumerate(jobs, 1))
    parts = detail_head(name, row_note(ago(experiment.created_at))) + experiment_result(session, jobs)
    parts += tag("div", steps, class_="sp-steps")
    state = "active" if is_active(jobs) else "ended"
    return tag("section", parts, class_="sp-stack", data_state=state, aria_label="Latest work")


def _step(queues: listing.Queues, number: int, job: Job) -> str:
    mark = "✓" if job.state == "SUCCEEDED" else "×" if job.state == "FAILED" else str(number)
    name = tag("a", safe(job.name), href=f"/runs?id={job.id}", class_="sp-row-name")
    note = row_note(queues.waits_for(job) if job.state == "QUEUED" else kind_title(job.kind))
    how = progress(job) if job.state in ("RUNNING", "INTERRUPTED") else ""
    how += banner(job) if job.state in ("FAILED", "CANCELLED", "INTERRUPTED") else ""
    body = tag("div", tag("div", name + state_badge(job), class_="sp-detail-head") + note + how, class_="sp-step-body")
    number_html = tag("span", mark, class_="sp-step-number", aria_hidden="true")
    return tag("div", number_html + body, class_=f"sp-step sp-{TONES.get(job.state, 'waiting')}", data_state=job.state)


def experiment_result(session: Session, jobs: list[Job]) -> str:
    """The trained checkpoints' figures and links to the Playground, or how to continue."""
    if is_active(jobs):
        return notice("Running on the server. You can close this page and come back later.", "info")
    mine = Checkpoint.job_id.in_([job.id for job in jobs])
    trained = session.scalars(select(Checkpoint).where(mine, Checkpoint.state == "ready"))
    html = "".join(_finished(session, checkpoint) for checkpoint in trained)
    broken = next((job for job in jobs if job.state != "SUCCEEDED"), None)
    if broken:
        return notice("A step did not finish.", "warn", f"/runs?id={broken.id}", "See why, and retry") + html
    return html or notice("Done.", "good")


def _finished(session: Session, checkpoint: Checkpoint) -> str:
    base = session.get_one(Base, checkpoint.base_id)
    link = model_link("playground", base.name, checkpoint.name)
    button = link_button("Open in Playground", link, main=True, id="open-playground")
    text = f"“{checkpoint.name}” is trained. Chat with it and see which tokens it drafted."
    compare = link_button("Compare with the base model", model_link("compare", base.name, checkpoint.name))
    links = tag("div", button + compare, class_="sp-link-row")
    return notice(text, "good") + figure_tiles(session, checkpoint) + links


def last_job(session: Session) -> str:
    """Link to the last job; without jobs the first steps."""
    jobs = listing.jobs(session, limit=1)
    if not jobs:
        return first_steps()
    return notice(f"Continue: “{jobs[0].name}”.", "info", f"/runs?id={jobs[0].id}", "Open it")


STEPS = (
    ("/models", "1. Choose a model", "The starter is installed. Add your own by Hub id, folder or GGUF file."),
    ("/data", "2. Generate training data", "Import prompts and generate responses. The draft is trained on them."),
    ("/runs/new", "3. Train a draft", "Medusa heads, EAGLE, or a small standalone model, with live charts."),
    ("/playground", "4. Chat with it", "See which tokens were drafted and how much faster the responses are."),
)


def first_steps() -> str:
    cards = ""
    for link, title, text in STEPS:
        words = tag("span", safe(title), class_="sp-card-title") + tag("span", safe(text), class_="sp-card-line")
        cards += tag("a", words, href=link, class_="sp-card")
    return tag("h2", "Or step by step", class_="sp-section") + tag("div", cards, class_="sp-cards")


def machine(session: Session, settings: Settings) -> str:
    disk, memory = shutil.disk_usage(nearest_existing(settings.home)), psutil.virtual_memory()
    alive = processes.alive(session, "inference")
    ready = len(queries.bases(session, ready_only=True))
    device = str(alive[0].value.get("device", "cpu")).upper() if alive else "CPU"
    return tiles(
        [
            ("Device", device, f"{os.cpu_count()} CPU cores"),
            ("Memory free", size(memory.available), f"of {size(memory.total)}"),
            ("Disk free", size(disk.free), f"of {size(disk.total)}"),
            (
                "Jobs running",
                listing.Queues(session).running,
                f"models: {ready}",
            ),
        ]
    )

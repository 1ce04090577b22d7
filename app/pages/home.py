"""The home page: quickstart, last job, active jobs, best drafts. `?experiment=` shows one experiment."""

import os
import shutil
from pathlib import Path
from typing import Any

import gradio as gr
import psutil
from sqlalchemy.orm import Session

from app import visitor
from app.links import model_link
from app.views import experiment_view, job_rows
from app.views.checkpoint_rows import REFERENCE, figures_of, last_measured, method_words
from app.widgets.elements import (
    QUIET,
    block,
    hidden,
    link_button,
    notice,
    on_change,
    on_load,
    page_header,
    section,
    tiles,
)
from app.widgets.formatting import figure, size
from app.widgets.picker import live, table
from app.widgets.problems import error_text, show_errors
from app.widgets.text import safe, tag
from models.starter import STARTER_HEAD
from speculoos.errors import SpeculoosError
from speculoos.resources import nearest_existing
from speculoos.settings import Settings
from tracking import jobs, listing, processes, queries
from tracking.db import reading
from tracking.evaluations import finite_number
from tracking.experiments import jobs_of
from tracking.tables import Base, Checkpoint, Experiment, Job
from workers.jobs.quickstart import submit_quickstart

LEAD = (
    "Speculative decoding: a small draft model proposes tokens, the base model verifies them. Same output, but faster."
)
LOOK = "The starter model comes with a trained draft. Chat with it and see which tokens were drafted."
PROMISE = (
    "Trains small draft heads for the starter model and shows them at work, in about seven minutes on two CPU cores. "
    "Nothing is downloaded, and you can close this page meanwhile."
)
BEST, ACTIVE = 5, 10
"""Maximum number of best drafts and of active jobs shown."""
WEAK_TAU, WEAK = 1.1, " · few of its tokens are accepted: it needs more data or more steps"
"""Mean accepted length below which a draft is called weak, and the note."""


def build(settings: Settings) -> None:
    """Wire the page inside the current Blocks."""
    page_header("Speculoos", LEAD)
    HomePage(settings).wire()


class HomePage:
    """The components, all drawn from rows."""

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
            self.said = block(elem_id="quickstart-said")
        self.work = live("home-work")
        with gr.Column(visible=False) as self.active_box:
            section("Running and waiting")
            self.active = live("home-active")
        with gr.Column(visible=False) as self.best_box:
            section("Best drafts")
            self.best = live("home-best")
        section("This machine")
        self.machine = block(elem_id="home-machine")
        self.live = [
            self.seen,
            self.look,
            self.work,
            self.start,
            self.active_box,
            self.active,
            self.best_box,
            self.best,
            self.machine,
        ]

    def wire(self) -> None:
        """Connect the events: opening, the poll, the button."""
        on_load(self.open_address, [self.experiment, *self.live])
        experiment = {"chosen": "home-experiment", "seen": "home-seen"}
        on_change("home", self.poll, [self.experiment, self.seen], self.live, **experiment)
        self.start.click(self.begin, None, [self.said, self.experiment], **QUIET).then(
            self.redraw, self.experiment, self.live, js=REMEMBER, **QUIET
        )

    def open_address(self, request: gr.Request) -> list[Any]:
        """Show the experiment in the URL, or the latest."""
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
        experiment = shown_experiment(session, experiment_id)
        experiment_shown = experiment.id if experiment else ""
        active = listing.active(session, without_experiment=experiment_shown, limit=ACTIVE + 1)
        queues, best = listing.Queues(session), best_drafts(session)
        return [
            first_look(session),
            experiment_view.view(session, experiment) if experiment else last_job(session),
            start_button(active_quickstart(session) is not None),
            gr.Column(visible=bool(active)),
            active_table(active, queues),
            gr.Column(visible=bool(best)),
            best_table(session, best),
            machine(session, self.settings, queues.running),
        ]

    @show_errors("")
    def begin(self) -> tuple[str, str]:
        """Submit the quickstart: (error notice, experiment id)."""
        return "", begin_quickstart(self.settings)


def hero(title: str, text: str) -> str:
    """Title and text of one of the two large boxes."""
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


def begin_quickstart(settings: Settings) -> str:
    """Submit the quickstart unless one is active; returns its experiment's id."""
    with reading(settings) as session:
        if active := active_quickstart(session):
            return active.id
    chain = submit_quickstart(settings, user=visitor.user())
    with reading(settings) as session:
        return jobs.get(session, chain.job_ids[-1]).experiment_id


def active_quickstart(session: Session) -> Experiment | None:
    """The latest quickstart, if it has not ended."""
    experiment = experiment_view.latest(session)
    if experiment is None:
        return None
    return experiment if experiment_view.is_active(jobs_of(session, experiment.id)) else None


def shown_experiment(session: Session, experiment_id: str) -> Experiment | None:
    """The requested experiment, otherwise the latest quickstart."""
    return (session.get(Experiment, experiment_id) if experiment_id else None) or experiment_view.latest(session)


def start_button(running: bool) -> Any:
    """The start button, disabled while a quickstart is active."""
    return gr.Button("The quickstart is running…" if running else "Start the quickstart", interactive=not running)


def last_job(session: Session) -> str:
    """Link to the last job; without jobs the first steps."""
    jobs = listing.jobs(session, limit=1)
    if not jobs:
        return first_steps()
    return notice(f"Continue: “{jobs[0].name}”.", "info", f"/jobs?id={jobs[0].id}", "Open it")


STEPS = (
    ("/models", "1. Choose a model", "The starter is installed. Add your own by Hub id, folder or GGUF file."),
    (
        "/data",
        "2. Generate training data",
        "Import prompts and generate the model's responses. The draft is trained on them.",
    ),
    (
        "/train",
        "3. Train a draft",
        "Medusa heads, EAGLE, or a small standalone model, with live charts of loss and accuracy.",
    ),
    ("/playground", "4. Chat with it", "See which tokens were drafted and how much faster the responses are."),
)


def first_steps() -> str:
    """Cards with the manual steps, for a home folder without jobs."""
    cards = "".join(
        tag(
            "a",
            tag("span", safe(title), class_="sp-card-title") + tag("span", safe(text), class_="sp-card-line"),
            href=link,
            class_="sp-card",
        )
        for link, title, text in STEPS
    )
    return tag("h2", "Or step by step", class_="sp-section") + tag("div", cards, class_="sp-cards")


def best_drafts(session: Session) -> list[Checkpoint]:
    """Checkpoints with the highest mean accepted length, from local evaluations if there are any."""
    ready = queries.checkpoints(session, ready_only=True)
    measured = last_measured(session, [checkpoint.id for checkpoint in ready])
    tau = {c.id: finite_number(figures_of(c, measured.get(c.id)).get("mean_accepted_length")) for c in ready}
    known = [c for c in ready if tau[c.id] is not None]
    return sorted(known, key=lambda c: tau[c.id], reverse=True)[:BEST]


def best_table(session: Session, best: list[Checkpoint]) -> str:
    """Table of the best drafts."""
    columns = ["Draft", "Method", "τ", "Speedup", ""]
    measured = last_measured(session, [checkpoint.id for checkpoint in best])
    rows_html = [_best_row(session, c, figures_of(c, measured.get(c.id))) for c in best]
    return table(columns, rows_html, "Best drafts", wide_first=True, named=columns[1:4])


def _best_row(session: Session, checkpoint: Checkpoint, figures: dict[str, Any]) -> list[str]:
    base = session.get_one(Base, checkpoint.base_id).name
    name = tag("a", safe(checkpoint.name), href=f"/checkpoints?id={checkpoint.id}", class_="sp-row-name")
    chat = tag("a", "Chat", href=model_link("playground", base, checkpoint.name), class_="sp-back")
    speedup = figure(figures.get("speedup"), unit="×")
    known = tag("div", safe(REFERENCE), class_="sp-row-note") if figures.get(REFERENCE) else ""
    accepted = finite_number(figures.get("mean_accepted_length"))
    words = f"for {base}" + (WEAK if accepted is not None and accepted < WEAK_TAU else "")
    note = tag("span", safe(words), class_="sp-row-note")
    return [
        name + note,
        safe(method_words(checkpoint.method)),
        safe(figure(accepted)) + known,
        safe(speedup) + known,
        chat,
    ]


def active_table(jobs: list[Job], queues: listing.Queues) -> str:
    """Table of the first active jobs, with a link to the others."""
    waits = {job.id: job_rows.waits_words(queues, job) for job in jobs[:ACTIVE]}
    words = f"All {queues.active:,} active jobs"
    more = tag("nav", tag("a", safe(words), href="/jobs", class_="sp-back"), class_="sp-pager") if jobs[ACTIVE:] else ""
    return job_rows.jobs_table(jobs[:ACTIVE], waits) + more


def machine(session: Session, settings: Settings, running: int) -> str:
    """Tiles of CPU, memory, disk, running jobs and models."""
    disk, memory = shutil.disk_usage(nearest_existing(settings.home)), psutil.virtual_memory()
    return tiles(
        [
            ("Device", device(session), f"{os.cpu_count()} CPU cores"),
            ("Memory free", size(memory.available), f"of {size(memory.total)}"),
            ("Disk free", size(disk.free), f"of {size(disk.total)}"),
            ("Jobs running", running, f"models: {len(queries.bases(session, ready_only=True))}"),
        ]
    )


def device(session: Session) -> str:
    """Device of the inference server, from its heartbeat."""
    alive = processes.alive(session, "inference")
    return str(alive[0].value.get("device", "cpu")).upper() if alive else "CPU"

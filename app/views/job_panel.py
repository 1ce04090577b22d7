"""One job's page: how it is, what can be done with it, charts, samples, log and what it was asked to do.

Everything is drawn from rows, so a reload or a restarted web process shows the same.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import visitor
from app.links import clone_form, leads, model_link
from app.views import (
    evaluation_view,
    experiment_rows,
    generation_view,
    job_rows,
    job_view,
    metrics_view,
    shard_rows,
    tree_view,
    verdict,
)
from app.views.manage import SMALL, Manage, note_line, outcome_notice
from app.widgets.elements import QUIET, block, hidden, link_button, notice
from app.widgets.picker import live
from app.widgets.problems import saying_errors
from app.widgets.text import safe, tag
from ops.homes import names
from speculoos.settings import Settings
from tracking import downsampling, generations, jobs, listing, reports
from tracking.db import reading
from tracking.states import FINISHED, JobState
from tracking.tables import Base, Checkpoint, Dataset, Job
from workers.jobs import submit

OUTPUTS: tuple[tuple[type, str, str], ...] = (
    (Dataset, "data set", "data"),
    (Base, "model", "models"),
    (Checkpoint, "checkpoint", "checkpoints"),
)


SAID = "(said) => { window.speculoosSaid = said ? Date.now() : 0; }"
STALE = """(said) => {
  const now = document.querySelector('#job-head [data-state]')?.dataset.state;
  const before = window.speculoosState;
  window.speculoosState = now;
  return before && before !== now && Date.now() - window.speculoosSaid > 1500 ? '' : said;
}"""
"""Takes what a button said away once the job has got into another state than it was in then."""


class JobPanel:
    """The components of one job's page, and what to put into them. `chosen` is the hidden box with the job's id."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings, self.chosen = settings, chosen
        self._build_head()
        self.manage = Manage(settings, Job, "job", "job", chosen)
        self._build_tabs()
        self.live = [self.head, self.cancel, self.retry, self.charts, self.samples, self.log, self.config]
        self.outputs = [*self.live, self.said, *self.manage.outputs]

    def _build_head(self) -> None:
        self.head = live("job-head")
        with gr.Row(elem_classes="sp-buttons"):
            self.cancel = gr.Button("Cancel", elem_id="job-cancel", variant="stop", visible=False, **SMALL)
            self.retry = gr.Button("Retry", elem_id="job-retry", variant="primary", visible=False, **SMALL)
            self.clone = gr.Button("Clone", elem_id="job-clone", **SMALL)
        self.said = block(elem_id="job-action-said")
        self.target = hidden("job-clone-target")

    def _build_tabs(self) -> None:
        with gr.Tabs(elem_id="job-tabs"):
            with gr.Tab("Charts", elem_id="job-tab-charts"):
                self.charts = block(elem_id="job-charts")
            with gr.Tab("Log", elem_id="job-tab-log"):
                self.log = block(elem_id="job-log", max_height=440)
            with gr.Tab("Samples", elem_id="job-tab-samples"):
                self.samples = block(elem_id="job-samples")
            with gr.Tab("Settings", elem_id="job-tab-config"):
                self.config = block(elem_id="job-config")

    def wire(self, redraw: Any, inputs: list[Any], outputs: list[Any]) -> None:
        """Wire the actions; `redraw` shows what came of them."""
        for button, action in ((self.cancel, cancel), (self.retry, retry)):
            button.click(self._act(action), self.chosen, self.said, **QUIET).then(redraw, inputs, outputs, **QUIET)
        self.said.change(None, self.said, None, js=SAID, api_visibility="private")
        self.head.change(None, self.said, self.said, js=STALE, api_visibility="private")
        leads(self.clone.click, self._clone, self.chosen, self.said, self.target)
        self.manage.wire(redraw, inputs, outputs)

    def _act(self, action: Any) -> Any:
        return lambda job_id: outcome_notice(lambda: action(self.settings, job_id))

    @saying_errors("")
    def _clone(self, job_id: str) -> tuple[str, str]:
        return "", clone(self.settings, job_id)

    def live_view(self, session: Session, job: Job) -> list[Any]:
        """Values of `live`."""
        state = JobState(job.state)
        word, alone = "Retry" if state == JobState.FAILED else "Resume", not job.parent_id
        charts = metrics_view.charts(downsampling.metrics(session, job.id, but=generations.NOW))
        return [
            head(session, job, self.settings.home),
            gr.Button(visible=alone and state not in FINISHED, interactive=not job.cancel_requested),
            gr.Button(word, visible=alone and state.can_become(JobState.QUEUED)),
            charts or tag("p", safe(no_charts(job)), class_="sp-lead"),
            samples(session, job),
            job_rows.log_lines(reports.logs(session, job.id, limit=300)),
            job_rows.attempts(reports.attempt_seconds(session, job.id)) + job_rows.config(job, names(session)),
        ]

    def view(self, session: Session, job: Job | None, query: Mapping[str, str]) -> list[Any]:
        """Values of `outputs` for a newly opened job."""
        live = self.live_view(session, job) if job else [gr.skip()] * len(self.live)
        return [*live, "", *self.manage.view(job)]


def samples(session: Session, job: Job) -> str:
    """Answers that were kept while the job went on."""
    if job.kind in generation_view.KINDS:
        return generation_view.first_answers(session, job) or job_rows.samples(())
    if job.kind == "evaluate":
        return job_rows.samples(())  # its records are the results of questions, shown above
    return job_rows.samples((s.step, s.record) for s in reports.samples(session, job.id))


def head(session: Session, job: Job, home: Path | None = None) -> str:
    """Name, state, progress, the banner and what the job made. `home`: where its rows go, to see what room is left."""
    parts = [
        job_rows.title(job),
        note_line(job),
        shard_rows.whole_link(session, job),
        experiment_rows.link(session, job),
        job_view.progress(job),
        shard_rows.part(session, job),
        generation_view.part(session, job, home),
        job_view.banner(job, job_rows.waits_words(listing.Queues(session), job)),
    ]
    ended = verdict.part(session, job) + output_links(session, job) + evaluation_view.report_of(session, job)
    return tag("div", "".join(parts) + ended, class_="sp-job-head", data_state=job.state)


def no_charts(job: Job) -> str:
    """Why there is no chart."""
    if job.kind in ("train", *generation_view.KINDS) and job.state in job_view.ACTIVE and not job.shards:
        return "The first numbers appear here a moment after the job has begun."
    if job.kind == "evaluate" and job.state in job_view.ACTIVE:
        return "The result of each question stands above, as it comes; the report follows when all are measured."
    return "This job measured nothing to chart."


def output_links(session: Session, job: Job) -> str:
    """Links to what a finished job made."""
    if job.state != JobState.SUCCEEDED:
        return ""
    links = made(session, job)
    if job.kind == "replay":
        links += "".join(_chat(number, chat) for number, chat in enumerate(job.result.get("chats") or (), 1))
    if job.kind in ("evaluate", "replay"):
        to = f"/evaluations?id={job.request.get('evaluation_id', '')}"
        links += notice("The evaluation is stored.", "good", to, "Open it")
    if job.kind == "tune":
        to = f"/checkpoints?id={job.request.get('checkpoint_id', '')}"
        words = (job.result.get("busy"), job.result.get("verdict"), tree_view.kept_words(job.result))
        said = " ".join(str(each) for each in words if each)
        links += notice(said, tree_view.verdict_tone(job.result), to, "Open the checkpoint")
    if job.kind == "plan":
        busy = str(job.result.get("busy") or "")
        said = " ".join(filter(None, (busy, "The plan is made.")))
        links += notice(said, "warn" if busy else "good", f"/plans?id={job.id}", "Open it")
    return links + downloads(session, job)


def _chat(number: int, chat: object) -> str:
    return notice(f"Answer {number}, replayed.", "good", f"/playground?chat={chat}", "See it in the Playground")


def downloads(session: Session, job: Job) -> str:
    """Where the files are of the checkpoint that a job trained or exported."""
    query = select(Checkpoint.id).where(Checkpoint.job_id == job.id, Checkpoint.state == "ready")
    checkpoint_id = job.request.get("checkpoint_id") if job.kind == "export" else session.scalar(query)
    link = link_button("Download it for a server…", f"/checkpoints?id={checkpoint_id}")
    return tag("div", link, class_="sp-link-row") if checkpoint_id else ""


def made(session: Session, job: Job) -> str:
    """Each row that the job made and that is ready."""
    said = ""
    for table, word, page in OUTPUTS:
        for row in session.scalars(select(table).where(table.job_id == job.id, table.state == "ready")):
            link, words = f"/{page}?id={row.id}", "Open it"
            if table is Checkpoint:
                base = session.get_one(Base, row.base_id)
                link, words = model_link("playground", base.name, row.name), "Open in Playground"
            said += notice(f"Made the {word} “{row.name}”.", "good", link, words)
    return said


def cancel(settings: Settings, job_id: str) -> str:
    """Ask a job to stop."""
    job = submit.request_cancel(job_id, settings)
    return "Cancelled." if job.state == JobState.CANCELLED else "Asked to stop; what is finished is saved first."


def retry(settings: Settings, job_id: str) -> str:
    """Queue it again."""
    submit.retry(job_id, settings)
    return "Queued again; it goes on from what was saved."


def clone(settings: Settings, job_id: str) -> str:
    """Where to go: the form filled in as for this job, or the page of a new job that does the same."""
    with reading(settings) as session:
        job = jobs.get(session, job_id)
    return clone_form(job) or f"/jobs?id={submit.clone(job_id, user=visitor.user(), settings=settings).id}"

"""The Jobs page: list of jobs; `?id=` opens one with state, actions, charts, samples, log and request.

Everything is drawn from rows, so a reload or a restarted web process shows the same.
"""

from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr
from sqlalchemy import select
from sqlalchemy.orm import Session

from app import visitor
from app.i18n import N_, plural, t
from app.links import chat_link, clone_form, on_event_open
from app.paths import PAGES
from app.views import (
    evaluation_view,
    generation_view,
    job_rows,
    job_view,
    manage,
    metrics_view,
    plan_view,
    served,
    tree_view,
    verdict,
)
from app.views.job_forms import own_kind_form
from app.views.manage import SMALL, note_line
from app.widgets.bulk import Action, bulk_bar, compare_button, name_field
from app.widgets.elements import QUIET, block, link_button, page_header
from app.widgets.list_page import Listing
from app.widgets.list_query import ListQuery, filtered_query
from app.widgets.picker import live, pager
from app.widgets.problems import show_errors
from app.widgets.text import safe, tag
from speculoos.settings import Settings
from tracking import experiments, jobs, listing, queries, reports
from tracking.db import reading, writing
from tracking.paging import page
from tracking.states import FINISHED, WAITING, JobState
from tracking.tables import Base, Checkpoint, Dataset, Evaluation, Job
from workers.jobs import submit
from workers.jobs.requests import custom_kinds

SHOWN = {
    N_("All"): (),
    N_("Active"): tuple(s for s in JobState if s not in FINISHED),
    N_("Done"): (JobState.SUCCEEDED,),
    N_("Failed or cancelled"): (JobState.FAILED, JobState.CANCELLED),
}


BULK = {"cancel": (N_("Cancel"), ""), "delete": (N_("Delete"), N_("Delete permanently?"))}


def table(session: Session, list_query: ListQuery, offset: str = "") -> str:
    query = filtered_query(listing.newest(SHOWN.get(list_query.filter, ())), list_query)
    shown = page(session, query, offset)
    waits = job_rows.waits_of(session, shown.rows)
    listed = job_rows.jobs_table(
        shown.rows,
        waits,
        list_query.is_filtered,
        chosen=True,
        count=plural("{range} job", "{range} jobs", shown.total, range=shown.range),
    )
    add_to = name_field("add", t("Add to experiment"), t("Experiment (existing or new)"), experiments.names(session))
    bar = bulk_bar(BULK, compare_button() + add_to) if shown.rows else ""
    return bar + listed + pager("jobs", shown, list_query)


def row_signature(session: Session, job_id: str) -> str:
    """Changes with the job and with evaluations of its draft, which affect the verdict; while it waits, with any job,
    since its position in the queue may change."""
    row = session.execute(select(Job.state, Job.version).where(Job.id == job_id)).one_or_none()
    if row and row.state in WAITING:
        return listing.signature(session)
    return f"{row} {verdict.signature(session, job_id)}"


JOBS = Listing("jobs", Job, "job", table, listing.signature, tuple(SHOWN), row_signature=row_signature, bulk=True)


def build(settings: Settings) -> None:
    page_header(t("Jobs"), t("Work on the server, newest first. Jobs continue when you close this page."))
    forms = partial(map, partial(own_kind_form, settings), custom_kinds())
    listed = manage.build_list(settings, JOBS, JobPanel, lambda settings: [*forms()])
    listed.panel.wire(*listed.again)
    listed.on_bulk(actions(settings))


def actions(settings: Settings) -> dict[str, Action]:
    return {
        "cancel": Action(t("Stop requested"), lambda job_id: submit.request_cancel(job_id, settings)),
        "delete": Action(t("Deleted"), lambda job_id: manage.delete(settings, Job, "job", job_id)),
        "add": Action(t("Added to the experiment"), lambda job_id, name: add(settings, job_id, name), named=True),
    }


def add(settings: Settings, job_id: str, name: str) -> None:
    with writing(settings) as session:
        experiments.move_to_experiment(session, job_id, name)


OUTPUTS: tuple[tuple[type, str, str], ...] = (
    (Dataset, N_("Created the dataset “{name}”."), "data"),
    (Base, N_("Created the model “{name}”."), "models"),
    (Checkpoint, N_("Created the draft “{name}”."), "checkpoints"),
)


class JobPanel:
    """The components of one job's page and their values. `chosen` is the hidden text with the job's id."""

    def __init__(self, settings: Settings, chosen: gr.Textbox):
        self.settings, self.chosen = settings, chosen
        self.head = live("job-head")
        with gr.Row(elem_classes="sp-buttons"):
            self.cancel = gr.Button(t("Cancel"), elem_id="job-cancel", variant="stop", visible=False, **SMALL)
            self.retry = gr.Button(t("Retry"), elem_id="job-retry", variant="primary", visible=False, **SMALL)
            self.clone = gr.Button(t("Clone"), elem_id="job-clone", **SMALL)
        self.message = block(elem_id="job-action-message")
        with gr.Tabs(elem_id="job-tabs") as self.tabs:
            with gr.Tab(t("Charts"), id="charts", elem_id="job-tab-charts"):
                charts = block(elem_id="job-charts")
            with gr.Tab(t("Log"), id="log", elem_id="job-tab-log"):
                log = block(elem_id="job-log", max_height=440)
            with gr.Tab(t("Samples"), elem_id="job-tab-samples"):
                samples = block(elem_id="job-samples")
            with gr.Tab(t("Settings"), elem_id="job-tab-config"):
                config = block(elem_id="job-config")
        self.live = [self.head, self.cancel, self.retry, charts, samples, log, config]
        self.outputs = [self.message, self.tabs]

    def wire(self, redraw: Any, inputs: list[Any], outputs: list[Any]) -> None:
        for button, action in ((self.cancel, submit.request_cancel), (self.retry, submit.retry)):
            act = partial(self._act, action)
            button.click(act, self.chosen, self.message, **QUIET).then(redraw, inputs, outputs, **QUIET)
        on_event_open(self.clone.click, partial(clone, self.settings), self.chosen, self.message)

    @show_errors()
    def _act(self, action: Any, job_id: str) -> str:
        """No message on success: the head of the page shows the new state."""
        action(job_id, self.settings)
        return ""

    def live_view(self, session: Session, job: Job) -> list[Any]:
        state = JobState(job.state)
        label, is_part = t("Retry") if state == JobState.FAILED else t("Resume"), bool(job.parent_id)
        charts = metrics_view.charts(reports.sampled_metrics(session, job.id, excluded_prefix=reports.COUNTER_PREFIX))
        return [
            head(session, job) + served.part(session, self.settings, job),
            gr.Button(visible=not is_part and state not in FINISHED, interactive=not job.cancel_requested),
            gr.Button(label, visible=not is_part and state.can_become(JobState.QUEUED)),
            charts or tag("p", safe(no_charts(job)), class_="sp-lead"),
            samples(session, job),
            job_rows.log_lines(reports.logs(session, job.id, limit=300)),
            job_rows.attempts(reports.attempt_seconds(session, job.id)) + job_rows.config(job, queries.names(session)),
        ]

    def view(self, session: Session, job: Job | None, query: Mapping[str, str]) -> list[Any]:
        drawn = job is not None and has_charts(job.kind)
        return ["", gr.Tabs(selected="charts" if drawn else "log")]


def samples(session: Session, job: Job) -> str:
    if job.kind in generation_view.KINDS:
        return generation_view.first_answers(session, job) or job_rows.samples(())
    if job.kind == "evaluate":
        return job_rows.samples(())  # the head shows its records: results per prompt
    return job_rows.samples((s.step, s.record) for s in reports.samples(session, job.id))


def head(session: Session, job: Job) -> str:
    """Name, state, progress, banner and results of the job."""
    parts = [
        job_rows.title(job),
        note_line(job),
        job_rows.belongs_to(session, job),
        job_view.progress(job),
        job_rows.shards_part(session, job),
        generation_view.part(session, job),
        status_line(session, job),
    ]
    results = verdict.part(session, job) + download_link(session, job) + evaluation_view.report_of(session, job)
    results += plan_view.report(job)
    attributes = {"data_state": job.state, "data_drawn": has_charts(job.kind)}
    return tag("div", "".join(parts) + results, class_="sp-job-head", **attributes)


def has_charts(kind: str) -> bool:
    """Whether jobs of this kind have charts and samples; a rule of the style sheet hides these tabs for others."""
    return kind in ("train", *generation_view.KINDS) or any(custom.kind == kind for custom in custom_kinds())


def no_charts(job: Job) -> str:
    if job.kind in ("train", *generation_view.KINDS) and job.state in job_view.ACTIVE and not job.shards:
        return t("The first figures appear shortly after the job starts.")
    if job.kind == "evaluate" and job.state in job_view.ACTIVE:
        return t("The report follows when all questions are measured.")
    return t("This job has no charts.")


def status_line(session: Session, job: Job) -> str:
    """One notice: the job's state and, if it succeeded, its results."""
    waits = job_rows.wait_text(listing.Queues(session), job)
    results = outcomes(session, job) if job.state == JobState.SUCCEEDED else ()
    return job_view.banner(job, waits, results, tree_view.verdict_tone(job.result or {}))


def outcomes(session: Session, job: Job) -> list[tuple[str, str, str]]:
    """(sentence, URL, link text) of everything that the job created."""
    entries = []
    for kind, sentence, page_name in OUTPUTS:
        for row in session.scalars(select(kind).where(kind.job_id == job.id, kind.state == "ready")):
            link, link_text = f"{PAGES[page_name]}?id={row.id}", t("Open")
            if kind is Checkpoint:
                base = session.get_one(Base, row.base_id)
                link, link_text = chat_link(base.name, row.name), t("Open in Playground")
            entries.append((t(sentence, name=row.name), link, link_text))
    if job.kind == "train" and not entries:
        entries.append((t("Its draft was deleted."), "", ""))
    if job.kind == "replay":
        for number, chat in enumerate(job.result.get("chats") or (), 1):
            entries.append(
                (t("Response {number}, replayed.", number=number), f"/playground?chat={chat}", t("Open in Playground"))
            )
    evaluation_id = job.request.get("evaluation_id", "")
    if job.kind in ("evaluate", "replay", "prove") and session.get(Evaluation, evaluation_id):
        to = f"/results?id={evaluation_id}"
        entries.append((t("The evaluation is stored."), to, t("Open the evaluation")))
    if job.kind == "tune":
        sentences = (job.result.get("busy"), job.result.get("verdict"), tree_view.kept_tree_note(job.result))
        to = f"/models/drafts?id={job.request.get('checkpoint_id', '')}"
        entries.append((" ".join(str(each) for each in sentences if each), to, t("Open the draft")))
    return entries


def download_link(session: Session, job: Job) -> str:
    """Links to the draft that the job trained or exported, and to its downloads."""
    query = select(Checkpoint.id).where(Checkpoint.job_id == job.id, Checkpoint.state == "ready")
    checkpoint_id = job.request.get("checkpoint_id") if job.kind == "export" else session.scalar(query)
    if job.state != JobState.SUCCEEDED or not checkpoint_id:
        return ""
    links = link_button(t("Open the draft"), f"/models/drafts?id={checkpoint_id}")
    links += link_button(t("Export for a server"), f"/models/drafts?id={checkpoint_id}#checkpoint-tabs")
    return tag("div", links, class_="sp-link-row")


@show_errors("")
def clone(settings: Settings, job_id: str) -> tuple[str, str]:
    """URL of the form with this job's values or, for kinds without a form, of a new job with the same request."""
    with reading(settings) as session:
        job = jobs.get(session, job_id)
    form = clone_form(job)
    return "", form or f"/runs?id={submit.clone(job_id, user=visitor.user(), settings=settings).id}"

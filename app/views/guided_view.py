"""HTML of a guided run: its jobs as steps with live results, then the draft with its verdict and download."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.i18n import t
from app.links import chat_link, compare_link
from app.paths import PAGES
from app.views import evaluation_view, generation_view, metrics_view, verdict
from app.views.checkpoint_rows import figure_tiles
from app.views.export_rows import serve_command
from app.views.job_view import ACTIVE, banner, progress, state_badge
from app.widgets.elements import detail_head, link_button, notice, row_note
from app.widgets.formatting import ago
from app.widgets.review import command_box
from app.widgets.text import safe, tag
from formats import FORMATS
from tracking import listing, reports
from tracking.experiments import jobs_of
from tracking.tables import Base, Checkpoint, Experiment, Job
from workers.jobs.guided import EXPERIMENT
from workers.jobs.requests import kind_title

TONES = {"SUCCEEDED": "good", "RUNNING": "info", "FAILED": "bad", "INTERRUPTED": "info"}


def latest(session: Session) -> Experiment | None:
    """The newest guided run with jobs."""
    has_jobs = select(Job.id).where(Job.experiment_id == Experiment.id).exists()
    guided = Experiment.name.startswith(EXPERIMENT, autoescape=True)
    return session.scalar(select(Experiment).where(has_jobs, guided).order_by(Experiment.created_at.desc()).limit(1))


def is_active(jobs: list[Job]) -> bool:
    return any(job.state in ACTIVE for job in jobs)


def run_view(session: Session, experiment: Experiment) -> str:
    """The whole run: result or state, then its jobs as steps."""
    jobs, queues = jobs_of(session, experiment.id), listing.Queues(session)
    title = detail_head(
        experiment.name.removeprefix(EXPERIMENT), row_note(t("started {ago}", ago=ago(experiment.created_at)))
    )
    steps = "".join(_step(session, queues, number, job) for number, job in enumerate(jobs, 1))
    parts = title + _result(session, jobs) + tag("div", steps, class_="sp-steps")
    state = "active" if is_active(jobs) else "ended"
    return tag("section", parts, class_="sp-stack", data_state=state, aria_label=t("Guided run"))


def _step(session: Session, queues: listing.Queues, number: int, job: Job) -> str:
    mark = "✓" if job.state == "SUCCEEDED" else "×" if job.state == "FAILED" else str(number)
    name = tag("a", safe(job.name), href=f"{PAGES['jobs']}?id={job.id}", class_="sp-row-name")
    note = row_note(queues.waits_for(job) if job.state == "QUEUED" else t(kind_title(job.kind)))
    how = progress(job) if job.state in ("RUNNING", "INTERRUPTED") else ""
    how += banner(job) if job.state in ("FAILED", "CANCELLED", "INTERRUPTED") else ""
    how += _live(session, job)
    body = tag("div", tag("div", name + state_badge(job), class_="sp-detail-head") + note + how, class_="sp-step-body")
    number_html = tag("span", mark, class_="sp-step-number", aria_hidden="true")
    return tag("div", number_html + body, class_=f"sp-step sp-{TONES.get(job.state, 'waiting')}", data_state=job.state)


def _live(session: Session, job: Job) -> str:
    """Counters of a generation, τ of a training, results per question of an evaluation."""
    if job.state == "RUNNING":
        live = generation_view.part(session, job)
        live += evaluation_view.so_far(session, job.id) if job.kind == "evaluate" else ""
        if live:
            return live
    if job.kind != "train" or job.state not in ("RUNNING", "SUCCEEDED"):
        return ""
    sampled = reports.sampled_metrics(session, job.id, excluded_prefix=reports.COUNTER_PREFIX)
    return metrics_view.charts({name: points for name, points in sampled.items() if name.endswith("/tau")})


def _result(session: Session, jobs: list[Job]) -> str:
    """The trained draft with verdict and next steps, or how the run goes on."""
    trainings = {job.id: job for job in jobs if job.kind == "train"}
    trained = select(Checkpoint).where(Checkpoint.job_id.in_(trainings), Checkpoint.state == "ready")
    checkpoint = session.scalar(trained.order_by(Checkpoint.created_at.desc()).limit(1))
    broken = next((job for job in jobs if job.state in ("FAILED", "CANCELLED")), None)
    html = ""
    if is_active(jobs):
        html = notice(t("Running on the server. You can close this page and come back later."), "info")
    elif broken:
        link = f"{PAGES['jobs']}?id={broken.id}"
        html = notice(t("A step did not finish."), "warn", link, t("Open the job"))
    return html + (draft_result(session, trainings[checkpoint.job_id], checkpoint, jobs) if checkpoint else "")


def draft_result(session: Session, training: Job, checkpoint: Checkpoint, jobs: list[Job]) -> str:
    """Verdict, figures, and what to do with the draft; `jobs` may contain an export of it."""
    base = session.get_one(Base, checkpoint.base_id)
    exports = [job for job in jobs if job.kind == "export" and job.state == "SUCCEEDED"]
    links = link_button(t("Compare with the baseline"), compare_link(base.name, checkpoint.name))
    command = ""
    for job in exports:
        name = job.request["format"]
        to = f"/api/checkpoints/{checkpoint.id}/exports/{name}"
        links += link_button(
            t("Download for {server}", server=FORMATS[name].title), to, download="", id=f"download-{name}"
        )
        command = command or serve_command(session, base, checkpoint, name)
    links += link_button(t("Export for a server"), f"{PAGES['checkpoints']}?id={checkpoint.id}")
    evaluated = next((job for job in jobs if job.kind == "evaluate" and job.state == "SUCCEEDED"), None)
    if evaluated:
        links += link_button(
            t("Results per question"), f"{PAGES['evaluations']}?id={evaluated.request['evaluation_id']}"
        )
    shown = command_box(command, t("Serve it, in the folder of the unpacked download")) if command else ""
    watch = chat_link(base.name, checkpoint.name)
    return verdict.part(session, training, links, watch) + figure_tiles(session, checkpoint) + shown

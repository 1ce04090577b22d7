"""HTML of a quickstart experiment: its jobs as steps with their progress, and its results. Pure functions of rows."""

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.links import model_link
from app.views.job_view import ACTIVE, banner, progress, state_badge
from app.widgets.elements import detail_head, link_button, notice, row_note, tiles
from app.widgets.formatting import ago, figure, interval, yes_or_no
from app.widgets.text import safe, tag
from tracking import listing
from tracking.experiments import jobs_of
from tracking.tables import Base, Checkpoint, Experiment, Job
from workers.jobs.requests import kind_title

QUICKSTART = "quickstart "
TONES = {"SUCCEEDED": "good", "RUNNING": "info", "FAILED": "bad", "INTERRUPTED": "info"}


def latest(session: Session) -> Experiment | None:
    """The newest quickstart with jobs. Jobs of other experiments are not steps of one task."""
    has_jobs = select(Job.id).where(Job.experiment_id == Experiment.id).exists()
    quick = Experiment.name.startswith(QUICKSTART, autoescape=True)
    return session.scalar(select(Experiment).where(has_jobs, quick).order_by(Experiment.created_at.desc()).limit(1))


def is_active(jobs: list[Job]) -> bool:
    return any(job.state in ACTIVE for job in jobs)


def steps(session: Session, jobs: list[Job]) -> str:
    queues = listing.Queues(session)
    html = "".join(_step(queues, number, job) for number, job in enumerate(jobs, 1))
    return tag("div", html, class_="sp-steps")


def _step(queues: listing.Queues, number: int, job: Job) -> str:
    mark = "✓" if job.state == "SUCCEEDED" else "×" if job.state == "FAILED" else str(number)
    name = tag("a", safe(job.name), href=f"/jobs?id={job.id}", class_="sp-row-name")
    head = tag("div", name + state_badge(job), class_="sp-detail-head")
    note = row_note(kind_title(job.kind))
    how = progress(job) if job.state in ("RUNNING", "INTERRUPTED") else ""
    if job.state in ("FAILED", "CANCELLED", "INTERRUPTED"):
        how += banner(job)
    elif job.state == "QUEUED":
        note = row_note(queues.waits_for(job))
    body = tag("div", head + note + how, class_="sp-step-body")
    number_html = tag("span", mark, class_="sp-step-number", aria_hidden="true")
    return tag("div", number_html + body, class_=f"sp-step sp-{TONES.get(job.state, 'waiting')}", data_state=job.state)


def experiment_result(session: Session, jobs: list[Job]) -> str:
    """The checkpoint's figures and a link to the Playground, or how to continue."""
    if is_active(jobs):
        return notice("Running on the server. You can close this page and come back later.", "info")
    html = "".join(_finished(session, checkpoint) for checkpoint in trained_checkpoints(session, jobs))
    broken = next((job for job in jobs if job.state != "SUCCEEDED"), None)
    if broken:
        return notice("A step did not finish.", "warn", f"/jobs?id={broken.id}", "See why, and retry") + html
    return html or notice("Done.", "good")


def trained_checkpoints(session: Session, jobs: list[Job]) -> list[Checkpoint]:
    mine = Checkpoint.job_id.in_([job.id for job in jobs])
    return list(session.scalars(select(Checkpoint).where(mine, Checkpoint.state == "ready")))


def _finished(session: Session, checkpoint: Checkpoint) -> str:
    base = session.get_one(Base, checkpoint.base_id)
    link = model_link("playground", base.name, checkpoint.name)
    button = link_button("Open in Playground", link, main=True, id="open-playground")
    text = f"“{checkpoint.name}” is trained. Chat with it and see which tokens it drafted."
    compare = link_button("Compare with the base model", model_link("compare", base.name, checkpoint.name))
    return notice(text, "good") + figures(checkpoint) + tag("div", button + compare, class_="sp-link-row")


def figures(checkpoint: Checkpoint) -> str:
    values = checkpoint.figures or {}
    if values.get("mean_accepted_length") is None:
        return ""
    return tiles(
        [
            (
                "Mean accepted length τ",
                figure(values.get("mean_accepted_length")),
                interval(values, "mean_accepted_length") or "1 without drafting",
            ),
            (
                "Speedup",
                figure(values.get("speedup"), unit="×"),
                interval(values, "speedup", "×") or "same engine",
            ),
            ("Tokens per second", figure(values.get("tokens_per_second"), 1), plain_words(values)),
            ("Same output as plain", yes_or_no(values.get("identical_to_plain")), "greedy, token for token"),
        ]
    )


def plain_words(values: dict[str, float]) -> str:
    """Speed of the base model without drafting; "" if unknown."""
    plain = values.get("plain_tokens_per_second")
    return f"{plain:.1f} without drafting" if isinstance(plain, int | float) else ""


def title(experiment: Experiment) -> str:
    name = "Quickstart" if experiment.name.startswith(QUICKSTART) else experiment.name
    return detail_head(name, row_note(ago(experiment.created_at)))


def view(session: Session, experiment: Experiment) -> str:
    jobs = jobs_of(session, experiment.id)
    parts = title(experiment) + experiment_result(session, jobs) + steps(session, jobs)
    state = "active" if is_active(jobs) else "ended"
    return tag("section", parts, class_="sp-stack", data_state=state, aria_label="Latest work")

"""Servers that run as jobs: their table, the installed engines, and what one offers, on its job's page."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.forms import PAIR
from app.i18n import N_, t
from app.paths import PAGES
from app.views.job_view import ACTIVE, progress_text, state_badge
from app.widgets.bulk import row_button
from app.widgets.elements import badge, empty_state, facts, link_button, row_note
from app.widgets.formatting import ago
from app.widgets.picker import table
from app.widgets.review import command_box
from app.widgets.text import safe, tag
from formats.engines import ENGINES, request_command
from speculoos import running_servers
from speculoos.settings import Settings, secret_file
from tracking import queries
from tracking.tables import Base, Checkpoint, Job
from workers.jobs.requests import InstallServer, Serve
from workers.jobs.serve import engine_command

COLUMNS = [N_("State"), N_("Server"), N_("Model"), N_("Endpoint"), N_("Time"), ""]
SHOWN = 8
"""Maximum number of servers in the table, running ones first."""


def servers_table(session: Session, settings: Settings) -> str:
    """The servers that run, start or wait, then those that ended last."""
    query = select(Job).where(Job.kind == Serve.kind).order_by(Job.state.not_in(ACTIVE), Job.created_at.desc())
    running = running_servers.by_job(settings.home)
    rows = [_row(session, job, running.get(job.id, {})) for job in session.scalars(query.limit(SHOWN))]
    if not rows:
        text = t("A server serves a model here, alone or with its draft, and is an endpoint while it runs.")
        return empty_state(t("No server yet"), text)
    columns = [t(column) if column else "" for column in COLUMNS]
    return table(columns, rows, t("Servers"), named=columns[2:4])


def _row(session: Session, job: Job, running: Mapping[str, Any]) -> list[str]:
    request = Serve.from_row(job.request)
    name = tag("a", safe(running.get("name") or job.name.partition(" ")[2]), href=f"{PAGES['jobs']}?id={job.id}")
    version = f"{request.server_engine.title} {running.get('version', '')}".strip()
    state = badge(t("Ready"), "good") if running and not job.cancel_requested else state_badge(job)
    address = safe(running["endpoint"]["url"]) if running else row_note(progress_text(job) or job.error or "–")
    stop = row_button("stop", job.id, t("Stop")) if job.state in ACTIVE and not job.cancel_requested else ""
    time = ago(job.started_at or job.created_at) if job.state in ACTIVE else ago(job.finished_at)
    return [state, _two_lines(name, version), safe(_model(session, request)), address, row_note(time), stop]


def _two_lines(first: str, second: str) -> str:
    return tag("div", first) + tag("div", row_note(second))


def _model(session: Session, request: Serve) -> str:
    base, draft = session.get(Base, request.base_id), session.get(Checkpoint, request.checkpoint_id or "")
    if base is None:
        return t("deleted")
    return f"{base.name}@{draft.name}" if draft else base.name


def engines_table(session: Session, settings: Settings) -> str:
    """The engines, where each is installed, and a button that installs its package for CPUs."""
    current, installing = settings.current(), _installing(session)
    rows = []
    for engine in ENGINES.values():
        python, command = engine_command(current, engine)
        package = next(iter(engine.wheels), "")
        if python or command:
            where, action = _two_lines(badge(t("Installed"), "good"), python or " ".join(command)), ""
        elif package in installing:
            link = tag("a", t("Being installed…"), href=f"{PAGES['jobs']}?id={installing[package]}")
            where, action = link, ""
        else:
            where = row_note(t("Not installed. In settings.toml: [servers.{name}] python = …", name=engine.name))
            action = row_button("install", package, t("Install for CPUs")) if package and not settings.is_shared else ""
        rows.append([tag("strong", safe(engine.title)), where, action])
    columns = [t("Server"), t("Environment"), ""]
    return table(columns, rows, t("Installed servers"))


def _installing(session: Session) -> dict[str, str]:
    """Package → id of the job that installs it."""
    active = select(Job).where(Job.kind == InstallServer.kind, Job.state.in_(ACTIVE))
    return {job.request.get("package", ""): job.id for job in session.scalars(active)}


def part(session: Session, settings: Settings, job: Job) -> str:
    """On the page of a server's job: address, model and key, a request to try, and where it can be used; "" unless it
    runs."""
    if job.kind != Serve.kind or not (running := running_servers.by_job(settings.home).get(job.id)):
        return ""
    endpoint, name = running["endpoint"], running["name"]
    key = secret_file(settings.home, endpoint["key_env"])
    rows = [
        (t("Endpoint"), name),
        (t("Address"), endpoint["url"]),
        (t("Model name"), endpoint["model"]),
        (t("API key"), t("in the file {path}", path=key)),
        (t("Draft tokens"), running["tokens"] or t("none: plain decoding")),
    ]
    links = link_button(t("Chat"), f"{PAGES['playground']}?model=@{name}", main=True)
    links += link_button(t("Evaluate it"), f"{PAGES['evaluations']}?served-endpoint={name}")
    links += link_button(t("Generate training data"), PAGES["data"])
    parts = (
        facts(rows),
        tag("div", links, class_="sp-link-row"),
        command_box(request_command(endpoint["url"], endpoint["model"], key), t("Try it")),
    )
    return tag("div", "".join(parts), class_="sp-stack")


def default_model(session: Session) -> str:
    """The latest draft, in the form; otherwise the first base model."""
    drafts = queries.checkpoints(session, ready_only=True)
    return f"{drafts[0].base_id}{PAIR}{drafts[0].id}" if drafts else ""


def default_engine(settings: Settings) -> str:
    """The first installed engine, in the form; without any, the one that `Serve` starts by default."""
    installed = (name for name, engine in ENGINES.items() if any(engine_command(settings.current(), engine)))
    return next(installed, Serve.options()["engine"].default)

"""Download formats of a checkpoint: servers of each format, its validation, and why a format is not available."""

import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.i18n import N_, plural, t
from app.store_downloads import download_notice, files_of
from app.views.proof_view import tone
from app.widgets.elements import badge, fold, notice
from app.widgets.formatting import size
from app.widgets.picker import table
from app.widgets.review import command_box
from app.widgets.text import safe, tag
from formats import FORMATS, OWN
from formats.checkpoint import CheckpointFiles
from formats.engines import ENGINES
from formats.facts import CardFacts
from formats.options import FormatOption, export_options
from formats.store import StoredExport, checkpoint_state, exports_folder, stored_exports
from models.archive import archive_name
from speculoos.errors import SpeculoosError, Unsupported
from speculoos.settings import Settings
from tracking import queries
from tracking.evaluations import measured_loads, proofs
from tracking.states import FINISHED, JobState
from tracking.tables import Base, Checkpoint, Job

COLUMNS = [N_("Format"), N_("For"), N_("Validation"), N_("Download")]
COMMAND = re.compile(r"`{3,}sh\n(.*?)\n`{3,}", re.DOTALL)
LATEST = 200
"""Maximum number of export jobs that are read, newest first."""


def exports_table(session: Session, settings: Settings, checkpoint: Checkpoint) -> str:
    if checkpoint.state != "ready":
        return tag("p", t("Downloads are available when the draft is ready."), class_="sp-lead")
    base, files = session.get_one(Base, checkpoint.base_id), files_of(settings)
    if message := download_notice(session, settings, checkpoint, base):
        return notice(message, "info")
    folder = files.path(checkpoint)
    try:
        formats = options_of(str(folder), str(files.path(base)))
    except SpeculoosError as error:
        return notice(str(error), "bad")
    jobs, source = latest_jobs(session, checkpoint.id), checkpoint_state(folder)
    exports = exports_in_store(jobs, source) | stored_exports(exports_folder(settings.home, checkpoint.id), source)
    possible = [option for option in formats if option.possible]
    compared = proofs(queries.evaluations(session, checkpoint.id))
    cells = [_row(checkpoint, option, exports.get(option.name), jobs.get(option.name), compared) for option in possible]
    columns = [t(column) for column in COLUMNS]
    html = table(columns, cells, t("Formats"), named=columns[1:])
    for option in possible:
        if option.name in exports and (command := serve_command(session, base, checkpoint, option.name)):
            title = t("Serve {format}, in the folder of the unpacked download", format=option.title)
            html += command_box(command, title)
    refused = [[*map(safe, (each.title, each.servers, each.reason))] for each in formats if not each.possible]
    columns = [t("Format"), t("For"), t("Why not")]
    listed = table(columns, refused, t("Incompatible formats"), named=columns[1:2]) if refused else ""
    return tag("div", html + fold(t("Incompatible formats: {n}", n=len(refused)), listed), class_="sp-exports")


def serve_command(session: Session, base: Base, checkpoint: Checkpoint, name: str) -> str:
    """The command that serves the export `name` of a draft; "" if its files are not on this machine."""
    try:
        files = _files(checkpoint.path, base.path, stamps(checkpoint.path), stamps(base.path))
    except (OSError, SpeculoosError):
        return ""
    folder = f"{archive_name(base.name, checkpoint.name).removesuffix('.zip')}-{name}"
    loads = measured_loads(queries.evaluations(session, checkpoint.id))
    match = COMMAND.search(FORMATS[name].serve(files, CardFacts.of(base, checkpoint.name, loads=loads), folder))
    return match[1] if match else ""


def exports_in_store(jobs: dict[str, Job], source: str) -> dict[str, StoredExport]:
    """Format → zip of the current checkpoint that a worker of another machine put into the store; it is copied to this
    machine when it is downloaded."""
    results = {name: job.result for name, job in jobs.items() if (job.result or {}).get("source") == source}
    return {name: StoredExport(Path(f"{name}.zip"), r["bytes"], r["report"]) for name, r in results.items()}


def options_of(checkpoint: str, base: str) -> tuple[FormatOption, ...]:
    """All formats for the files in two folders. Headers and configs are read once per state of the files."""
    return _options(checkpoint, base, stamps(checkpoint), stamps(base))


def stamps(folder: str) -> tuple[tuple[Any, ...], ...]:
    """(name, size, mtime, inode) of the files with headers and configs; it identifies their state."""
    files = (path for path in Path(folder).glob("[!.]*") if path.suffix in (".json", ".safetensors"))
    stats = ((path.name, path.stat()) for path in sorted(files))
    return tuple((name, stat.st_size, stat.st_mtime_ns, stat.st_ino) for name, stat in stats)


@lru_cache(maxsize=64)
def _files(checkpoint: str, base: str, *_stamps: tuple[tuple[Any, ...], ...]) -> CheckpointFiles:
    return CheckpointFiles.read(checkpoint, base)


@lru_cache(maxsize=64)
def _options(checkpoint: str, base: str, *_stamps: tuple[tuple[Any, ...], ...]) -> tuple[FormatOption, ...]:
    return tuple(export_options(checkpoint, base))


def latest_jobs(session: Session, checkpoint_id: str) -> dict[str, Job]:
    query = select(Job).where(Job.kind == "export").order_by(Job.created_at.desc()).limit(LATEST)
    draft_jobs = [job for job in session.scalars(query) if job.request.get("checkpoint_id") == checkpoint_id]
    return {job.request["format"]: job for job in reversed(draft_jobs)}


def exported(session: Session) -> dict[str, list[str]]:
    """checkpoint id → formats that were exported, of the latest jobs."""
    query = select(Job).where(Job.kind == "export", Job.state == JobState.SUCCEEDED)
    formats: dict[str, set[str]] = {}
    for job in session.scalars(query.order_by(Job.created_at.desc()).limit(LATEST)):
        formats.setdefault(job.request["checkpoint_id"], set()).add(job.request["format"])
    return {row_id: sorted(names) for row_id, names in formats.items()}


def signature(session: Session) -> int:
    """Changes when an export starts or ends. Every poll computes it, so it does not read the jobs' requests."""
    query = select(Job.id, Job.state).where(Job.kind == "export").order_by(Job.created_at.desc()).limit(LATEST)
    return hash(tuple(map(tuple, session.execute(query))))


def can_be_made(session: Session, settings: Settings, checkpoint_id: str, name: str) -> bool:
    """Whether no job is creating the format now. Raises NotFound, or Unsupported with the reason."""
    checkpoint, files = queries.find_checkpoint(session, checkpoint_id), files_of(settings)
    base = session.get_one(Base, checkpoint.base_id)
    formats = {option.name: option for option in options_of(str(files.path(checkpoint)), str(files.path(base)))}
    if name not in formats or name == OWN:
        raise Unsupported(f"There is no format {name!r} to create. Reload the page.")
    if not formats[name].possible:
        raise Unsupported(formats[name].reason)
    job = latest_jobs(session, checkpoint.id).get(name)
    return job is None or job.state in FINISHED


def _row(
    checkpoint: Checkpoint,
    option: FormatOption,
    export: StoredExport | None,
    job: Job | None,
    compared: Mapping[str, Mapping[str, Any]],
) -> list[str]:
    name = tag("strong", safe(option.title))
    if option.name == OWN:
        return [name, safe(option.servers), safe(t("sha256 sums")), _link(checkpoint.id, option, t("Download zip"))]
    checks = _proof(export) + _compared(option.name, checkpoint.method, compared)
    return [name, safe(option.servers), checks, _action(checkpoint.id, option, export, job)]


def _compared(name: str, method: str, compared: Mapping[str, Mapping[str, Any]]) -> str:
    """Verdicts of comparisons with the servers that read the format `name`."""
    html = ""
    for engine, proof in compared.items():
        if engine in ENGINES and ENGINES[engine].reads(name, method) and proof.get("agrees") is not None:
            label = N_("same acceptance in {server}") if proof["agrees"] else N_("different acceptance in {server}")
            html += badge(t(label, server=proof["server"]), tone(proof))
    return html


def _proof(export: StoredExport | None) -> str:
    if export is None:
        return tag("span", t("not created yet"), class_="sp-off")
    checks = export.report.get("checks", [])
    summary = badge(plural("{n} check passed", "{n} checks passed", len(checks)), "good")
    items = (tag("b", safe(f"✓ {each.get('name')}")) + safe(f" {each.get('detail')}") for each in checks)
    listed = tag("ul", "".join(tag("li", item) for item in items))
    return tag("details", tag("summary", summary) + listed, class_="sp-proof")


def _action(checkpoint_id: str, option: FormatOption, export: StoredExport | None, job: Job | None) -> str:
    if export is not None:
        return _link(checkpoint_id, option, t("Download ({size})", size=size(export.bytes)))
    if job is not None and job.state not in FINISHED:
        return tag("a", t("Being created and checked… (a job; you can leave this page)"), href=f"/runs?id={job.id}")
    label = t("Create and download (about {size})", size=size(option.bytes))
    button = tag("button", safe(label), type="button", class_="sp-small-button", data_make=option.name)
    failed = job is not None and job.state == JobState.FAILED
    return button + (tag("div", safe(job.error), class_="sp-hint") if failed else "")


def _link(checkpoint_id: str, option: FormatOption, label: str) -> str:
    to = f"/api/checkpoints/{checkpoint_id}/exports/{option.name}"
    return tag("a", safe(label), href=to, class_="sp-small-button", data_made=option.name, download="")

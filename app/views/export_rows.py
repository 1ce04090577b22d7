"""The formats a checkpoint can be downloaded in: for which server each is, whether it was proved, and why not."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from app.widgets.elements import badge
from app.widgets.formatting import size
from app.widgets.picker import table
from app.widgets.text import safe, tag
from formats import FORMATS
from formats.record import Format
from formats.store import Stored, exports_folder, source_of, stored
from models.checkpoints import read_config
from speculoos.errors import SpeculoosError
from speculoos.settings import Settings
from tracking.states import FINISHED, JobState
from tracking.tables import Checkpoint, Job

OWN = "own"
COLUMNS = ["Format", "For", "Proof", "Download"]
LATEST = 200
"""Export jobs that are looked at, the newest first."""


def exports_table(rows: Session, settings: Settings, checkpoint: Checkpoint) -> str:
    """Every format: what can be had, what is being made, what cannot be and why."""
    if checkpoint.state != "ready":
        return tag("p", "There is something to download once it is trained.", class_="sp-lead")
    config = _config(checkpoint.path)
    made = stored(exports_folder(settings.home, checkpoint.id), source_of(checkpoint.path))
    jobs = latest_jobs(rows, checkpoint.id)
    cells = [_row(checkpoint, record, config, made.get(name), jobs.get(name)) for name, record in FORMATS.items()]
    cells.sort(key=lambda row: "sp-off" in row[0])
    return tag("div", table(COLUMNS, cells, "Formats", named=COLUMNS[1:]), class_="sp-exports")


def latest_jobs(rows: Session, checkpoint_id: str) -> dict[str, Job]:
    """{format: the last job that was to make it}."""
    query = select(Job).where(Job.kind == "export").order_by(Job.created_at.desc()).limit(LATEST)
    own = [job for job in rows.scalars(query) if job.request.get("checkpoint_id") == checkpoint_id]
    return {job.request["format"]: job for job in reversed(own)}


def _config(path: str) -> dict[str, Any]:
    try:
        return read_config(path)
    except SpeculoosError:
        return {}


def _row(checkpoint: Checkpoint, record: Format, config: Mapping[str, Any], made: Stored | None, job: Job | None):
    reason = record.reason(config) if config else "Its files cannot be read."
    if record.name == OWN:
        action = _link(checkpoint.id, record, "Download zip")
        return [_name(record), safe(record.servers), "sha256 sums", action]
    if reason:
        return [tag("span", safe(record.title), class_="sp-off"), safe(record.servers), "–", _why(reason)]
    return [_name(record), safe(record.servers), _proof(made), _action(checkpoint.id, record, made, job)]


def _name(record: Format) -> str:
    return tag("strong", safe(record.title))


def _why(reason: str) -> str:
    return tag("span", safe(reason), class_="sp-hint")


def _proof(made: Stored | None) -> str:
    """What the check found, in a word, with every check behind it."""
    if made is None:
        return "–"
    checks = made.report.get("checks", [])
    failed = [check for check in checks if not check.get("passed")]
    word = badge(f"{len(checks)} checks passed", "good") if not failed else badge("failed: " + failed[0]["name"], "bad")
    items = "".join(tag("li", safe(f"{'✓' if c.get('passed') else '×'} {c['name']}: {c.get('detail', '')}")) for c in checks)
    return tag("details", tag("summary", word) + tag("ul", items), class_="sp-proof")


def _action(checkpoint_id: str, record: Format, made: Stored | None, job: Job | None) -> str:
    if made is not None:
        words = "Download" if _holds(made) else "Download all the same"
        return _link(checkpoint_id, record, f"{words} ({size(made.bytes)})")
    if job is not None and job.state not in FINISHED:
        return tag("a", "Being made and checked…", href=f"/jobs?id={job.id}")
    button = tag("button", "Make and download", type="button", class_="sp-small-button", data_make=record.name)
    if job is not None and job.state == JobState.FAILED:
        return button + tag("div", safe(job.error), class_="sp-hint")
    return button


def _holds(made: Stored) -> bool:
    return all(check.get("passed") for check in made.report.get("checks", []))


def _link(checkpoint_id: str, record: Format, words: str) -> str:
    to = f"/api/checkpoints/{checkpoint_id}/exports/{record.name}"
    return tag("a", safe(words), href=to, class_="sp-small-button", data_made=record.name, download="")

"""What a bug report needs, as one zip without secrets and without what people or models wrote.

Left out: prompts, answers, names, notes, job logs, files. Known secrets are masked everywhere, in logs also texts of
the latest runs and whatever stands in quotes with blanks in it.
"""

import json
import os
import platform
import re
import zipfile
from collections import deque
from collections.abc import Iterable
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from ops.backup import new_file
from ops.health import HealthPart
from speculoos.errors import SpeculoosError
from speculoos.redaction import MASK, known_secrets, redact
from speculoos.settings import Settings
from tracking import db, revisions, workload
from tracking.states import JobState
from tracking.tables import Job, Run

LINES, JOBS, RUNS = 300, 30, 300
PROCESSES = ("web", "inference", "reconciler", "worker-gpu", "worker-io", "broker", "supervisord")
"""Whose logs are taken; those of jobs hold what people wrote."""
SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL)", re.IGNORECASE)
QUOTED = re.compile(r"""(["'“‘«])(?=[^"'”’»\n]*\s)[^"'”’»\n]{12,}(["'”’»])""")
SHORTEST = 8
"""Characters of a line of a text that is looked for in logs; shorter ones would mask ordinary words."""
WORDS = ("method", "source", "kind")
"""Keys of a request whose words are ours, not people's."""


def write_bundle(settings: Settings, target: Path, parts: dict[str, HealthPart]) -> list[str]:
    """Write the zip (mode 0600, whole or not at all); returns the names in it. `parts` is what `doctor` found."""
    mask = Mask(settings)
    makers = {
        "doctor.json": lambda: {name: part.to_json() for name, part in parts.items()},
        "versions.json": versions,
        "settings.json": lambda: shown_settings(settings),
        "database.json": lambda: database(settings),
        "failed-jobs.json": lambda: failed_jobs(settings),
    }
    with new_file(target) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, make in makers.items():
            bundle.writestr(name, mask(json.dumps(_tried(make), indent=1, default=str, ensure_ascii=False)))
        for name in PROCESSES:
            if lines := last_lines(settings.home / "logs" / f"{name}.log"):
                bundle.writestr(f"logs/{name}.log", mask.log("\n".join(lines) + "\n"))
        bundle.writestr("README.txt", README)
        return bundle.namelist()


README = """What `speculoos doctor --bundle` gathered for a bug report.

Secrets are masked; prompts, answers, names and job logs are left out. Look it through all the same before you give it
to others.
"""


class Mask:
    """Hides what must not leave: every secret this machine's settings name, and in logs also texts."""

    def __init__(self, settings: Settings):
        self._secrets = sorted({*known_secrets(settings), *own_secrets(settings)}, key=len, reverse=True)
        self._texts = sorted(_texts(settings), key=len, reverse=True)

    def __call__(self, text: str) -> str:
        return redact(text, self._secrets)

    def log(self, text: str) -> str:
        """Without queries of addresses (they may hold a prompt), known texts, and quotations."""
        text = re.sub(r"\?[^\s\"']+", f"?{MASK}", self(text))
        for known in self._texts:
            text = text.replace(known, MASK)
        return QUOTED.sub(rf"\1{MASK}\2", text)


def own_secrets(settings: Settings) -> set[str]:
    """The metrics token, files in secrets/, and what the environment holds under a telling name."""
    secrets = {settings.metrics_token}
    secrets |= {value for name, value in os.environ.items() if SECRET.search(name) and not name.endswith("_FILE")}
    files = [Path(value) for name, value in os.environ.items() if SECRET.search(name) and name.endswith("_FILE")]
    for path in [*files, *(settings.home / "secrets").glob("*")]:
        try:
            secrets.add(path.read_text(errors="replace").strip())
        except OSError:
            continue
    return {value for value in secrets if len(value) >= 6}


def versions() -> dict[str, Any]:
    """This machine's system and Python, and every installed package."""
    packages = {str(d.metadata["Name"]): d.version for d in metadata.distributions() if d.metadata["Name"]}
    known = {"python": platform.python_version(), "system": platform.platform(), "machine": platform.machine()}
    return {**known, "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower()))}


def shown_settings(settings: Settings) -> dict[str, Any]:
    """Numbers and choices as they are; secrets as set or not set; addresses without user and password."""
    values: dict[str, Any] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if not each.repr:
            values[each.name] = "set" if value else "not set"
        elif each.name == "state_servers":
            values[each.name] = {f"server {n}": {"kind": server.kind} for n, server in enumerate(value.values())}
        elif each.name == "endpoints":
            values[each.name] = {f"endpoint {n}": {"concurrency": e.concurrency} for n, e in enumerate(value.values())}
        elif each.name in ("database_url", "redis_url", "inference_url", "store"):
            values[each.name] = re.sub(r"(?<=://)[^/@]*@", "", str(value))
        else:
            values[each.name] = value
    return values


def database(settings: Settings) -> dict[str, Any]:
    """Which revision it has, which one is wanted, and how many jobs there are."""
    facts = {"revision": db.revision(settings), "newest": revisions.head()}
    with db.reading(settings) as session:
        load = workload.workload(session)
    jobs = {f"{queue} {state}": count for (queue, state), count in load.jobs.items()}
    return {**facts, "jobs": jobs, "runs": load.runs, "lost": load.counters, "heartbeats": load.heartbeats}


def failed_jobs(settings: Settings) -> list[dict[str, Any]]:
    """The latest failures: columns that we write, and the shape of the request."""
    with db.reading(settings) as session:
        query = select(Job).where(Job.state == JobState.FAILED).order_by(Job.finished_at.desc()).limit(JOBS)
        return [_job(job) for job in session.scalars(query)]


def _job(job: Job) -> dict[str, Any]:
    names = ("id", "kind", "queue", "attempt", "attempt_cap", "queued_at", "started_at", "finished_at", "done", "total")
    facts = {name: getattr(job, name) for name in (*names, "unit", "error_code")}
    return {**facts, "error": _sentence(job.error), "hint": _sentence(job.hint), "request": shape(job.request)}


def shape(value: Any, key: str = "") -> Any:
    """A request without its texts: numbers and switches stay."""
    if isinstance(value, dict):
        return {name: shape(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    if isinstance(value, str) and key not in WORDS:
        return f"({len(value)} characters)" if value else ""
    return value


def _sentence(text: str) -> str:
    """An error's words without what they quote."""
    return QUOTED.sub(rf"\1{MASK}\2", re.sub(r"“[^”]*”", f"“{MASK}”", text))


def last_lines(path: Path) -> list[str]:
    """The end of a log; nothing where there is none."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return [line.rstrip("\n")[:2000] for line in deque(file, maxlen=LINES)]
    except OSError:
        return []


def _texts(settings: Settings) -> set[str]:
    """Lines of what people asked and models answered lately, and names that people chose."""
    try:
        with db.reading(settings) as session:
            return {line for text in _written(session) for line in _lines(text)}
    except SpeculoosError:
        return set()


def _written(session: Session) -> Iterable[Any]:
    for request, text in session.execute(
        select(Run.request, Run.text).order_by(Run.created_at.desc()).limit(RUNS)
    ).all():
        yield from (request, text)
    yield from session.scalars(select(Job.request).order_by(Job.created_at.desc()).limit(RUNS))
    yield from session.scalars(select(Job.name).order_by(Job.created_at.desc()).limit(RUNS))


def _lines(value: Any) -> Iterable[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from _lines(item)
    elif isinstance(value, str):
        yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= SHORTEST)


def _tried(make: Any) -> Any:
    """What `make` finds, or why it could not: a report is wanted most where things are broken."""
    try:
        return make()
    except SpeculoosError as error:
        return {"error": _sentence(str(error))}
    except Exception as error:
        return {"error": type(error).__name__}

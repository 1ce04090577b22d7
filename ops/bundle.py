"""The zip for a bug report (`speculoos doctor --bundle`), without secrets and without texts of users or models.

Prompts, responses, names, notes, job logs and files are left out. Known secrets are masked everywhere; in logs also
texts of the latest runs and jobs, and quoted text of several words.
"""

import json
import os
import platform
import re
import zipfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from importlib import metadata
from pathlib import Path
from typing import Any

from sqlalchemy import select

from ops.backup import new_file
from ops.health import HealthPart
from speculoos.errors import SpeculoosError
from speculoos.redaction import MASK, SHORTEST, known_secrets, redact
from speculoos.settings import Settings
from tracking import db, revisions, workload
from tracking.states import JobState
from tracking.tables import Job, Run

LINES, JOBS, RUNS = 300, 30, 300
PROCESSES = ("web", "inference", "reconciler", "worker-gpu", "worker-io", "broker")
"""Processes whose logs are included; logs of jobs contain texts of users."""
SECRET = re.compile(r"(TOKEN|SECRET|PASSWORD|KEY|CREDENTIAL)", re.IGNORECASE)
QUOTED = re.compile(r"""(["'“‘«])(?=[^"'”’»\n]*\s)[^"'”’»\n]{12,}(["'”’»])""")
SHORTEST_TEXT = 8  # shorter lines are not masked in logs, as they may be ordinary words
OWN_KEYS = ("method", "source", "kind")  # keys of a request whose texts are choices, not user input
JOB_COLUMNS = ("id", "kind", "queue", "attempt", "attempt_cap", "done", "total", "unit", "error_code")
JOB_COLUMNS += ("queued_at", "started_at", "finished_at")
README = "Secrets are masked; prompts, responses, names and job logs are left out. Check it before you share it.\n"


def write_bundle(settings: Settings, target: Path, parts: dict[str, HealthPart]) -> list[str]:
    """Write the zip (mode 0600, whole or not at all); returns the names in it. `parts` is the result of `doctor`."""
    known = sorted({*known_secrets(settings), *_more_secrets(settings)}, key=len, reverse=True)
    texts = sorted(_texts(settings), key=len, reverse=True)
    makers: dict[str, Callable[[], Any]] = {
        "doctor.json": lambda: {name: part.to_json() for name, part in parts.items()},
        "versions.json": _versions,
        "settings.json": lambda: _settings(settings),
        "database.json": lambda: _database(settings),
        "failed-jobs.json": lambda: _failed_jobs(settings),
    }
    with new_file(target) as out, zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as bundle:
        for name, make in makers.items():
            content = json.dumps(_result_or_error(make), indent=1, default=str, ensure_ascii=False)
            bundle.writestr(name, redact(content, known))
        for name in PROCESSES:
            with suppress(OSError):
                lines = (settings.home / "logs" / f"{name}.log").read_text(errors="replace").splitlines()
                log = "".join(f"{line[:2000]}\n" for line in lines[-LINES:])
                log = re.sub(r"\?[^\s\"']+", f"?{MASK}", redact(log, known))  # queries may hold a prompt
                for line in texts:
                    log = log.replace(line, MASK)
                bundle.writestr(f"logs/{name}.log", _unquoted(log))
        bundle.writestr("README.txt", README)
        return bundle.namelist()


def _more_secrets(settings: Settings) -> set[str]:
    """Files in secrets/, and values and files that the environment names as secret."""
    named = {name: value for name, value in os.environ.items() if SECRET.search(name)}
    known = {value for name, value in named.items() if not name.endswith("_FILE")}
    files = [Path(value) for name, value in named.items() if name.endswith("_FILE")]
    for path in [*files, *(settings.home / "secrets").glob("*")]:
        with suppress(OSError):
            known.add(path.read_text(errors="replace").strip())
    return {value for value in known if len(value) >= SHORTEST}


def _versions() -> dict[str, Any]:
    packages = {str(d.metadata["Name"]): d.version for d in metadata.distributions() if d.metadata["Name"]}
    known = {"python": platform.python_version(), "system": platform.platform(), "machine": platform.machine()}
    return {**known, "packages": dict(sorted(packages.items(), key=lambda item: item[0].lower()))}


def _settings(settings: Settings) -> dict[str, Any]:
    """Numbers and choices as they are; secrets as set or not set; addresses without user and password."""
    values: dict[str, Any] = {}
    for each in fields(settings):
        value = getattr(settings, each.name)
        if not each.repr:
            value = "set" if value else "not set"
        elif each.name in ("state_servers", "endpoints"):
            value = len(value)
        elif each.name in ("database_url", "redis_url", "inference_url", "store"):
            value = re.sub(r"(?<=://)[^/@]*@", "", str(value))
        values[each.name] = value
    return values


def _database(settings: Settings) -> dict[str, Any]:
    facts = {"revision": db.revision(settings), "newest": revisions.head()}
    with db.reading(settings) as session:
        load = workload.workload(session)
    jobs = {f"{queue} {state}": count for (queue, state), count in load.jobs.items()}
    return {**facts, **vars(load), "jobs": jobs}


def _failed_jobs(settings: Settings) -> list[dict[str, Any]]:
    """The latest failures: columns without texts of users, and the shape of the request."""
    with db.reading(settings) as session:
        query = select(Job).where(Job.state == JobState.FAILED).order_by(Job.finished_at.desc()).limit(JOBS)
        return [
            {name: getattr(job, name) for name in JOB_COLUMNS}
            | {"error": _unquoted(job.error), "hint": _unquoted(job.hint), "request": shape(job.request)}
            for job in session.scalars(query)
        ]


def shape(value: Any, key: str = "") -> Any:
    """A request without its texts; numbers and switches stay."""
    if isinstance(value, dict):
        return {name: shape(item, name) for name, item in value.items()}
    if isinstance(value, list):
        return [shape(item) for item in value]
    if isinstance(value, str) and key not in OWN_KEYS:
        return f"({len(value)} characters)" if value else ""
    return value


def _unquoted(text: str) -> str:
    return QUOTED.sub(rf"\1{MASK}\2", re.sub(r"“[^”]*”", f"“{MASK}”", text))


def _texts(settings: Settings) -> set[str]:
    runs = select(Run.request, Run.text).order_by(Run.created_at.desc()).limit(RUNS)
    jobs = select(Job.request, Job.name).order_by(Job.created_at.desc()).limit(RUNS)
    try:
        with db.reading(settings) as session:
            rows = [list(row) for query in (runs, jobs) for row in session.execute(query)]
    except SpeculoosError:
        return set()
    return set(_lines(rows))


def _lines(value: Any) -> Iterator[str]:
    if isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _lines(item)
    elif isinstance(value, str):
        yield from (line.strip() for line in value.splitlines() if len(line.strip()) >= SHORTEST_TEXT)


def _result_or_error(make: Callable[[], Any]) -> Any:
    """The result of `make`, or its error, as a bundle must also work for a broken home."""
    try:
        return make()
    except SpeculoosError as error:
        return {"error": _unquoted(str(error))}
    except Exception as error:
        return {"error": type(error).__name__}

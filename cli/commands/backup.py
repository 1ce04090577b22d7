"""`speculoos backup`, `restore`, `cleanup` and `verify`: the files of a home."""

import sys
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.console import Json, finish, say, table
from ops.homes import open_home
from speculoos.errors import BadInput, Conflict, Unavailable
from speculoos.settings import load
from tracking import processes
from tracking.db import reading

STANDARD = "-"
"""File name for standard output or input."""


def backup(
    file: Annotated[str, typer.Argument(help="Archive to write: .tar, .tar.gz or .tar.xz; - is standard output.")],
    secrets: Annotated[
        bool, typer.Option("--secrets", help="Include tokens and keys of the home; keep such an archive secret.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Write the database and all files into one archive; the workbench may run meanwhile."""
    from ops.backup import back_up, stream

    settings = open_home()
    if file == STANDARD:
        if sys.stdout.isatty():
            raise BadInput("An archive cannot be written to a terminal; use a file: speculoos backup - > FILE.tar")
        report = stream(settings, sys.stdout.buffer, secrets=secrets, on_progress=say)
        sys.stdout.buffer.flush()
    else:
        report = back_up(settings, Path(file).expanduser().resolve(), secrets=secrets, on_progress=say)
    for item in report.wrong:
        say(f"Damaged before the backup, and in the archive as well: {item}.")
    for item in report.outside:
        say(f"Outside the home, so not in the archive: {item}.")
    if not secrets:
        say("Secrets (tokens, keys) are not in the archive; a restored home makes new ones. --secrets includes them.")
    if file != STANDARD:
        text = f"{file}: {report.rows:,} rows, {report.files:,} files, {report.bytes / 1e6:,.1f} MB"
        finish({"path": file, **asdict(report)}, as_json, text)
    return 1 if report.wrong else 0


def restore(
    file: Annotated[str, typer.Argument(help="Archive made by `speculoos backup`; - is standard input.")],
    as_json: Json = False,
) -> int:
    """Fill an empty home from an archive; interrupted jobs resume at the next `speculoos up`."""
    from cli.launch.homelock import HomeLock
    from ops.health import exists
    from ops.restore import restore as restore_home

    settings = load()
    lock = HomeLock(settings)
    with suppress(Unavailable), reading(settings) as session:  # no tables yet; other problems appear again later
        # Other containers do not hold this machine's lock, but have a heartbeat.
        alive = [row for row in processes.alive(session) if exists(row.key, settings.home)]
        if running := [row.value.get("name", row.key) for row in alive]:
            raise Conflict(f"The workbench is running ({', '.join(running)}); stop it, then restore.")
    if not lock.acquire("restore", ()):
        raise Conflict(f"Process {lock.holder().get('pid')} uses the home {settings.home}; stop it first.")
    try:
        with sys.stdin.buffer if file == STANDARD else Path(file).expanduser().open("rb") as source:
            report = restore_home(settings, source, "standard input" if file == STANDARD else file, on_progress=say)
    finally:
        lock.release()
    for item in [*report.wrong, *report.outside]:
        say(f"Incomplete in the archive: {item}.")
    text = f"Restored {report.rows:,} rows and {report.files:,} files to {settings.home}, as of {report.made_at}."
    more = f" {report.jobs_going_on} jobs resume at the next `speculoos up`." if report.jobs_going_on else ""
    finish(asdict(report), as_json, text + more)
    return 0


def cleanup(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be removed; remove nothing.")] = False,
    leftovers: Annotated[
        bool, typer.Option("--leftovers", help="Also remove unused files in the home that are older than a day.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Apply the retention rules of the settings; the reconciler does the same every hour."""
    from ops import retention

    removed = retention.clean(open_home(), dry_run=dry_run, leftovers=leftovers)
    result = {rule: {"count": part.count, "bytes": part.bytes} for rule, part in removed.items()}
    rows = [(rule, part.count, f"{part.bytes / 1e6:,.1f} MB") for rule, part in removed.items()]
    finish({"dry_run": dry_run, "removed": result}, as_json, table(rows, ("rule", "number", "size")))


def verify(
    references: Annotated[
        list[str] | None, typer.Argument(help="Models, MODEL@DRAFT or datasets; default: all.")
    ] = None,
    as_json: Json = False,
) -> int:
    """Hash all files again and list the damaged ones with a hint; exit code 1 if there are any."""
    from ops.verify import check

    findings = check(open_home(), references or ())
    damaged = [one for one in findings if one.damage]
    lines = [f"BAD {one.sentence()}" if one.damage else f"ok  {one.kind} {one.name}" for one in findings]
    end = f"{len(damaged)} of {len(findings)} damaged." if damaged else f"{len(findings)} checked, none damaged."
    result = {"healthy": not damaged, "checked": len(findings), "findings": [one.to_json() for one in findings]}
    finish(result, as_json, "\n".join([*lines, end]))
    return 1 if damaged else 0

"""speculoos backup, speculoos restore: a home as one archive, and back."""

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cli.console import Json, finish, say
from speculoos.errors import BadInput, Conflict, Unavailable
from speculoos.settings import Settings, load

STANDARD = "-"
"""The file name that means standard output, or input."""


def backup(
    file: Annotated[str, typer.Argument(help="Archive to write: .tar, .tar.gz or .tar.xz; - is standard output.")],
    secrets: Annotated[
        bool, typer.Option("--secrets", help="Tokens and keys of the home too; keep such an archive as a password.")
    ] = False,
    as_json: Json = False,
) -> int:
    """Put the database and all files into one archive, while everything goes on running."""
    from ops.backup import back_up, stream
    from ops.homes import open_home

    settings = open_home()
    if file == STANDARD:
        if sys.stdout.isatty():
            raise BadInput("An archive is nothing for a terminal; lead it into a file: speculoos backup - > FILE.tar")
        report = stream(settings, sys.stdout.buffer, secrets=secrets, say=say)
        sys.stdout.buffer.flush()
    else:
        report = back_up(settings, Path(file).expanduser().resolve(), secrets=secrets, say=say)
    for words in report.wrong:
        say(f"Damaged already, and so in the archive: {words}.")
    for words in report.outside:
        say(f"Outside of the home, so not in the archive: {words}.")
    if not secrets:
        say("Secrets (tokens, keys) are not in the archive; a restored home makes its own. --secrets takes them along.")
    if file != STANDARD:
        said = f"{file}: {report.rows:,} rows, {report.files:,} files, {report.bytes / 1e6:,.1f} MB"
        finish({"path": file, **asdict(report)}, as_json, said)
    return 1 if report.wrong else 0


def restore(
    file: Annotated[str, typer.Argument(help="Archive made by `speculoos backup`; - is standard input.")],
    as_json: Json = False,
) -> int:
    """Fill an empty home from an archive; what was going on goes on at the next `speculoos up`."""
    from cli.launch.homelock import HomeLock
    from ops import restore as restoring

    settings = load()
    lock = HomeLock(settings)
    _refuse_running(settings)
    if not lock.acquire("restore", ()):
        raise Conflict(f"Process {lock.holder().get('pid')} uses the home {settings.home}; stop it first.")
    try:
        if file == STANDARD:
            report = restoring.restore(settings, sys.stdin.buffer, "standard input", say=say)
        else:
            with Path(file).expanduser().open("rb") as source:
                report = restoring.restore(settings, source, file, say=say)
    finally:
        lock.release()
    for words in [*report.wrong, *report.outside]:
        say(f"Not whole in the archive: {words}.")
    said = f"{report.rows:,} rows and {report.files:,} files are back in {settings.home}, as of {report.made_at}."
    more = f" {report.jobs_going_on} jobs go on at the next `speculoos up`." if report.jobs_going_on else ""
    finish(asdict(report), as_json, said + more)
    return 0


def _refuse_running(settings: Settings) -> None:
    """Raises Conflict while processes beat on this database (other containers hold no lock of ours)."""
    from ops.health import exists
    from tracking import processes
    from tracking.db import reading

    try:
        with reading(settings) as rows:
            running = [
                row.value.get("name", row.key) for row in processes.alive(rows) if exists(row.key, settings.home)
            ]
    except Unavailable:
        return  # no tables yet; any other trouble shows again
    if running:
        raise Conflict(f"The workbench runs ({', '.join(running)}); stop it, then restore.")

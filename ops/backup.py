"""Writing a backup while the workbench runs: rows from one snapshot of the database, then the files they name.

Rows come first, so what they call ready was whole before its files are read. What a job is making comes along as far
as it is whole (finished shards, training states), and the job goes on from there in the home it is restored into.
"""

import contextlib
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from ops import archive, contents, rows
from speculoos.errors import Conflict, Unavailable
from speculoos.faults import disk_full
from speculoos.files import new_private_file
from speculoos.settings import Settings
from speculoos.store import hide_credentials
from tracking import db, revisions
from tracking.tables import now

SECRET_TABLES = ("logins",)
"""Tables left out with the secrets: who has a cookie of the old home is not let into the new one."""
PASSING = ("device_leases",)
Say = Callable[[str], None]


@dataclass
class BackupReport:
    """What went into a backup. `wrong` says, one phrase each, what was damaged or gone already; `outside` names what
    lies outside the home and is not in it: models in other folders, and what the store alone has."""

    revision: str
    rows: int = 0
    files: int = 0
    things: int = 0
    bytes: int = 0
    secrets: bool = False
    wrong: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


def back_up(settings: Settings, target: Path, *, secrets: bool = False, say: Say = lambda _: None) -> BackupReport:
    """Write the backup to a file of mode 0600 that appears whole or not at all. Raises BadInput for a name that is no
    tar's, Conflict when the file is there already, Unavailable when the disk is full."""
    archive.check_ending(target.name)
    if target.exists():
        raise Conflict(f"{target} is there already; choose another name, such as one with the date.")
    target.parent.mkdir(parents=True, exist_ok=True)
    with new_file(target) as out, archive.compressed(out, target.name) as packed:
        report = stream(settings, packed, secrets=secrets, say=say)
    report.bytes = target.stat().st_size
    return report


def stream(
    settings: Settings, out: IO[bytes], *, secrets: bool = False, files: bool = True, say: Say = lambda _: None
) -> BackupReport:
    """Write the backup to an open file or pipe. Without `files` it holds the database alone."""
    writer = archive.ArchiveWriter(out)
    try:
        with db.snapshot(settings) as connection:
            report = BackupReport(revisions.current(connection), secrets=secrets)
            writer.data(archive.HEAD, json.dumps(_head(settings, report, files)).encode())
            report.rows = _write_rows(writer, connection, secrets, say)
            inventory = contents.contents(Session(connection), settings) if files else None
        if inventory:
            _write_files(writer, settings, inventory, report, say)
        report.files = sum(name.startswith(archive.HOME) for name in writer.sums)
        writer.end(rows=report.rows, files=report.files, wrong=report.wrong, outside=report.outside)
    except BaseException:
        writer.drop()
        raise
    return report


def _head(settings: Settings, report: BackupReport, files: bool) -> dict[str, Any]:
    return {
        **{"format": archive.FORMAT, "revision": report.revision, "home": str(settings.home), "files": files},
        **{"made_at": now().isoformat(), "database": db.engine(settings).dialect.name, "secrets": report.secrets},
    }


def _write_rows(writer: archive.ArchiveWriter, connection: Connection, secrets: bool, say: Say) -> int:
    count = 0
    for table in rows.tables(connection):
        if table.name in PASSING or (table.name in SECRET_TABLES and not secrets):
            continue
        for number, piece in enumerate(rows.pieces(rows.read_rows(connection, table))):
            writer.data(f"{archive.ROWS}/{table.name}/{number:05d}.jsonl", piece)
            count += piece.count(b"\n")
    say(f"{count:,} rows")
    return count


def _write_files(
    writer: archive.ArchiveWriter, settings: Settings, inventory: contents.Contents, report: BackupReport, say: Say
) -> None:
    home = settings.home
    for thing in inventory.things:
        if contents.is_outside(thing, home) and thing.kind == "models":
            report.outside.append(f"{thing.name} ({thing.path})")
        say(f"{thing.kind}: {thing.name}")
        report.things += 1
        if thing.in_store:
            report.outside.append(f"{thing.name} (in the store {hide_credentials(settings.store)})")
            continue
        if problem := contents.copy_thing(writer, thing, home):
            report.wrong.append(f"{thing.kind[:-1]} “{thing.name}”: {problem}")
    single = [home / "logs" / f"{job_id}.log" for job_id in inventory.logs]
    single += [home / "settings.toml", home / "starter-head", *inventory.uploads]
    if secrets := report.secrets:
        single += sorted(path for path in (home / "secrets").glob("[!.]*") if path.is_file())
    for path in single:
        contents.copy_file(writer, path, home)
    say(f"settings{' and secrets' if secrets else ''}")


@contextlib.contextmanager
def new_file(target: Path) -> Iterator[IO[bytes]]:
    """A file for its owner alone, under a name with a dot until the block ends well. Raises Unavailable for a full
    disk."""
    try:
        with new_private_file(target) as out:
            yield out
    except OSError as error:
        if not disk_full(error):
            raise
        raise Unavailable(f"The disk of {target.parent} is full, so {target.name} was not written.") from None

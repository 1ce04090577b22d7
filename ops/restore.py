"""Restore of a backup into an empty home: check the archive, write the rows, move the files; undo all if that fails.

The archive is unpacked into `.restore` in the home. While that folder exists the home is not complete: `up` and the
commands refuse it, and the next restore first removes what the interrupted one wrote.
"""

import json
import os
import re
import shutil
import tarfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from lzma import LZMAError
from pathlib import Path
from typing import IO, Any

from ops import rows
from ops.backup import CHUNK, END, FORMAT, HEAD, HOME, ROWS, SKIPPED_TABLES, SUMS, OnProgress
from speculoos.checksums import file_sha256
from speculoos.errors import BadInput, Conflict, Unavailable
from speculoos.faults import disk_full
from speculoos.settings import Settings
from tracking import db, revisions
from tracking.stored import KINDS
from tracking.tables import now

BUSY, FILLING = ".restore", "filling"
NAME = r"/(?!\.{1,2}(?:/|$))[^/\x00-\x1f]+"
HOME_PARTS = "models|datasets|checkpoints|logs|uploads|secrets|settings.toml|starter-head"
MEMBER = re.compile(rf"{HEAD}|{SUMS}|{END}|{ROWS}{NAME}{NAME}(?<=\.jsonl)|{HOME}/(?:{HOME_PARTS})(?:{NAME})*")
HEAD_FIELDS = {"format": int, "revision": str, "home": str, "files": bool, "made_at": str}
TABLES_WITH_PATHS = ("bases", "datasets", "checkpoints", "evaluations", "jobs")
IGNORED_TABLES = ("preferences", "device_leases", "logins")  # their rows do not count as use of a database
RESUMED = "Resumes from its state at the time of the backup."
CUT_OFF = "Was running at the time of the backup; send it again."
DAMAGE = (tarfile.TarError, EOFError, ValueError, zlib.error, LZMAError)


@dataclass(frozen=True)
class RestoreReport:
    """What was restored; `made_at` is the time of the backup."""

    made_at: datetime
    revision: str
    rows: int
    files: int
    jobs_going_on: int
    wrong: list[str]
    outside: list[str]


def restore(
    settings: Settings, source: IO[bytes], name: str, *, on_progress: OnProgress = lambda _: None
) -> RestoreReport:
    """Fill an empty home and database from a backup. The caller makes sure that the workbench does not run.

    Raises Conflict for a home or database that is in use, BadInput for a damaged archive, Unavailable for an archive of
    a newer Speculoos or a full disk; after these errors the home is empty.
    """
    busy = settings.home / BUSY
    _undo(settings)
    busy.mkdir(parents=True, mode=0o700)
    try:
        try:
            head, end = _unpack(source, name, busy, lambda head: check_empty(settings, files=head["files"]))
        except DAMAGE as error:
            raise BadInput(f"{name} is not a backup, or it is damaged or cut off ({error}).") from None
        on_progress("The archive is complete.")
        report = _fill(settings, busy, head, end)
    except BaseException as error:
        _undo(settings)
        if isinstance(error, OSError) and disk_full(error):
            raise Unavailable(f"The disk of {settings.home} is full; nothing was restored.") from None
        raise
    shutil.rmtree(busy)
    return report


def check_not_restoring(settings: Settings) -> None:
    """Raises Conflict for a home in which a restore is running or was interrupted."""
    if (settings.home / BUSY).exists():
        raise Conflict(
            f"A restore into {settings.home} is running or was interrupted; wait until it ends, or run `speculoos "
            "restore FILE` again, which starts over."
        )


def check_empty(settings: Settings, files: bool) -> None:
    """Raises Conflict if the database, or with `files` the home, holds anything but the starter model."""
    used = [folder for folder in KINDS.values() if files and any((settings.home / folder).glob("[!.]*"))]
    if used:
        raise Conflict(
            f"The home {settings.home} is not empty (there is something in {used[0]}/); restore into another one: "
            "SPECULOOS_HOME=/another/folder speculoos restore …"
        )
    if not db.revision(settings):
        return
    with db.snapshot(settings) as connection:
        for table in rows.tables(connection):
            if table.name not in IGNORED_TABLES and any(map(_is_used, rows.read_rows(connection, table))):
                raise Conflict(
                    f"The database is not empty (it has rows in {table.name}); restore into another one: another "
                    "SPECULOOS_HOME, or another DATABASE_URL."
                )


def _is_used(row: dict[str, Any]) -> bool:
    """Anything but the starter model and its head, which a home has from its first start."""
    return row.get("source") != "starter" and Path(row.get("path") or "").name != "starter_head"


def _unpack(
    source: IO[bytes], name: str, folder: Path, check: Callable[[dict[str, Any]], None]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Unpack the archive and compare its checksums; `check` may raise to refuse its head. Returns head and end."""
    head: dict[str, Any] = {}
    members = set()
    with tarfile.open(fileobj=source, mode="r|*", copybufsize=CHUNK) as tar:
        for member in tar:
            tar.members.clear()  # tarfile would remember each one
            if not member.isreg() or member.issparse() or len(member.name) > 4000:
                raise BadInput(f"{name}: {member.name!r} is not an ordinary file; nothing was restored.")
            if not MEMBER.fullmatch(member.name):
                raise BadInput(f"{name}: {member.name!r} is not a path of a home; nothing was restored.")
            content = tar.extractfile(member)
            assert content is not None
            if member.name == HEAD:
                head = _checked(json.load(content), name)
                check(head)
                continue
            if not head:
                raise BadInput(f"{name} is a tar archive, but not a backup of Speculoos.")
            target = folder / member.name
            target.parent.mkdir(parents=True, exist_ok=True)
            with open(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as out:
                shutil.copyfileobj(content, out, CHUNK)
            members.add(member.name)
    if not {SUMS, END} <= members:
        raise BadInput(f"{name} is cut off: its end is missing; nothing was restored.")
    sums = dict(line.split("  ", 1)[::-1] for line in (folder / SUMS).read_text().splitlines())
    for member_name, digest in sums.items():
        if member_name != HEAD and (member_name not in members or file_sha256(folder / member_name) != digest):
            raise BadInput(f"{name} is damaged: {member_name} differs from its checksum; nothing was restored.")
    for member_name in members - sums.keys() - {SUMS, END}:
        (folder / member_name).unlink()  # changed while the backup was made
    return head, json.loads((folder / END).read_text())


def _checked(head: Any, name: str) -> dict[str, Any]:
    if not isinstance(head, dict) or any(type(head.get(key)) is not kind for key, kind in HEAD_FIELDS.items()):
        raise BadInput(f"{name} is a tar archive, but not a backup of Speculoos.")
    if head["format"] > FORMAT:
        raise Unavailable(f"{name} was made by a newer Speculoos; update this one, then restore.")
    revisions.check(head["revision"], name)
    return head


def _fill(settings: Settings, busy: Path, head: dict[str, Any], end: dict[str, Any]) -> RestoreReport:
    files = sorted(path for path in (busy / HOME).rglob("*") if path.is_file())
    moves = [(path, settings.home / path.relative_to(busy / HOME)) for path in files]
    moves = [(path, target) for path, target in moves if not target.exists()]  # settings and secrets of this home stay
    (busy / FILLING).write_text("\0".join(str(target) for _, target in moves))
    _remove_tables(settings)
    db.upgrade(settings, head["revision"])
    count = resumed = 0

    def adapted(table: str) -> Iterator[dict[str, Any]]:
        nonlocal resumed
        for row in _read(busy / ROWS / table):
            if table not in SKIPPED_TABLES and not str(row.get("key", "")).startswith("process:"):
                resumed += table == "jobs" and row["state"] == "RUNNING"
                yield _adapt(table, row, head["home"], str(settings.home))

    with db.connection(settings) as connection:
        for table in rows.tables(connection):
            count += rows.write_rows(connection, table, adapted(table.name))
    db.upgrade(settings)
    _move_files(moves)
    wrong, outside = list(end.get("wrong", [])), list(end.get("outside", []))
    made_at = datetime.fromisoformat(head["made_at"])
    return RestoreReport(made_at, head["revision"], count, len(moves), resumed, wrong, outside)


def _read(folder: Path) -> Iterator[dict[str, Any]]:
    for path in sorted(folder.glob("*.jsonl")):
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)


def _adapt(table: str, row: dict[str, Any], old: str, new: str) -> dict[str, Any]:
    """A row for its new home: other paths, and nothing running. A job that ran is interrupted, which is not counted as
    an attempt; a waiting one is published to the new broker."""
    if table in TABLES_WITH_PATHS:
        row = _moved(row, old, new)
    if table == "runs" and row["state"] in ("QUEUED", "RUNNING"):
        row |= {"state": "FAILED", "error": CUT_OFF, "finished_at": row["finished_at"] or now().isoformat()}
    if table == "jobs":
        row |= {"child": {}, "owner": "", "lease_until": None}
        if row["state"] == "RUNNING":
            row |= {"state": "INTERRUPTED", "attempt_cap": row["attempt_cap"] + 1}
            row |= {"progress_note": RESUMED, "eta_seconds": None}
        if row["state"] in ("QUEUED", "INTERRUPTED"):
            row["published_at"] = None
    return row


def _moved(value: Any, old: str, new: str) -> Any:
    """`value` with every path in the old home replaced by the one in the new home."""
    if isinstance(value, str) and (value == old or value.startswith(old + os.sep)):
        return new + value.removeprefix(old)
    if isinstance(value, dict):
        return {key: _moved(item, old, new) for key, item in value.items()}
    return [_moved(item, old, new) for item in value] if isinstance(value, list) else value


def _move_files(moves: list[tuple[Path, Path]]) -> None:
    for source, target in moves:
        target.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if target.parent.name == "secrets" else 0o777)
        source.rename(target)


def _undo(settings: Settings) -> None:
    """Remove what a restore that did not finish has written into this home, which was empty before."""
    busy = settings.home / BUSY
    if not busy.exists():
        return
    if (busy / FILLING).exists():
        _remove_tables(settings)
        for path in map(Path, filter(None, (busy / FILLING).read_text().split("\0"))):
            path.unlink(missing_ok=True)
            folder = path.parent
            while folder != settings.home and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()
                folder = folder.parent
    shutil.rmtree(busy)


def _remove_tables(settings: Settings) -> None:
    """Remove all tables of the database, whatever its revision; `check_empty` found no data in it."""
    if db.revision(settings):
        db.downgrade(settings, "base")

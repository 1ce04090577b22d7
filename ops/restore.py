"""Reading a backup into an empty home: checked whole first, then rows, then files, and nothing at all if it breaks off.

What is unpacked gathers in `.restore` in the home. While that folder is there the home is not whole: `up` and commands
refuse it, and the next restore removes what the broken one left.
"""

import json
import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Any

from ops import archive, rows
from ops.backup import PASSING
from speculoos.errors import BadInput, Conflict, Unavailable
from speculoos.faults import disk_full
from speculoos.settings import Settings
from tracking import db, revisions
from tracking.stored import KINDS
from tracking.tables import now

BUSY, FILLING = ".restore", "filling"
PATHS = ("bases", "datasets", "checkpoints", "evaluations", "jobs")
"""Tables in which paths of the home stand."""
OF_THE_HOME = ("preferences", "device_leases", "logins")
"""Tables whose rows make no home a used one."""
AGAIN = "Goes on here from where it was when the backup was made."
CUT_OFF = "Was going on when the backup was made; send it again."
Say = Callable[[str], None]


@dataclass(frozen=True)
class RestoreReport:
    """What came back. `made_at` says when the backup was made."""

    made_at: datetime
    revision: str
    rows: int
    files: int
    jobs_going_on: int
    wrong: list[str]
    outside: list[str]


def restore(settings: Settings, source: IO[bytes], name: str, *, say: Say = lambda _: None) -> RestoreReport:
    """Fill an empty home and database from a backup; the caller makes sure that nothing runs.

    Raises Conflict for a home or database that holds something, BadInput for an archive that is damaged, Unavailable
    for one of a newer Speculoos or a full disk; the home is empty then.
    """
    busy = settings.home / BUSY
    _remove_broken(settings)
    busy.mkdir(parents=True, mode=0o700)
    try:
        unpacked = _UnpackedArchive(busy, name)
        unpacked.read(source, lambda head: check_empty(settings, files=head["files"]))
        say("The archive is whole.")
        report = _fill(settings, unpacked, say)
    except BaseException as error:
        _remove_broken(settings)
        if isinstance(error, OSError) and disk_full(error):
            raise Unavailable(f"The disk of {settings.home} is full; nothing was restored.") from None
        raise
    shutil.rmtree(busy)
    return report


def check_whole(settings: Settings) -> None:
    """Raises Conflict for a home in which a restore goes on, or broke off."""
    if (settings.home / BUSY).exists():
        raise Conflict(
            f"A restore into {settings.home} goes on, or broke off; wait for its end, or run `speculoos restore FILE` "
            "again, which begins anew."
        )


def check_empty(settings: Settings, files: bool) -> None:
    """Raises Conflict unless nothing has been made in this home yet. Without `files` the database alone counts."""
    used = [place for place in KINDS.values() if files and any((settings.home / place).glob("[!.]*"))]
    if used:
        raise Conflict(
            f"The home {settings.home} is not empty (there is something in {used[0]}/); restore into another one: "
            "SPECULOOS_HOME=/another/folder speculoos restore …"
        )
    if held := _held(settings):
        raise Conflict(
            f"The database is not empty (it has rows in {held}); restore into another one: another SPECULOOS_HOME, or "
            "another DATABASE_URL."
        )


def _held(settings: Settings) -> str:
    """A table with rows that a fresh home has not."""
    if not db.revision(settings):
        return ""
    with db.snapshot(settings) as connection:
        for table in rows.tables(connection):
            if table.name not in OF_THE_HOME and any(_is_made(row) for row in rows.read_rows(connection, table)):
                return table.name
    return ""


def _is_made(row: dict[str, Any]) -> bool:
    """Anything but the starter model and its head, which a home has from its first start."""
    return row.get("source") != "starter" and Path(row.get("path") or "").name != "starter_head"


class _UnpackedArchive:
    """An archive in a folder: rows/ and home/, after its sums were checked."""

    def __init__(self, folder: Path, name: str):
        self.folder, self.name = folder, name
        self.head: dict[str, Any] = {}
        self.end: dict[str, Any] = {}

    def read(self, source: IO[bytes], check: Callable[[dict[str, Any]], None]) -> None:
        """Unpack everything; `check` may refuse the archive by its head."""
        digests: dict[str, str] = {}
        claimed = ""
        for member in archive.members(source, self.name):
            if not self.head and member.name != archive.HEAD:
                raise BadInput(f"{self.name} is a tar, but no backup of Speculoos.")
            if member.name == archive.HEAD:
                self.head = self._checked(member.json())
                check(self.head)
            elif member.name == archive.SUMS:
                claimed = member.text()
            elif member.name == archive.END:
                self.end = member.json()
            else:
                digests[member.name] = member.copy_to(self.folder / member.name)
        self._compare(digests, claimed)

    def _checked(self, head: Any) -> dict[str, Any]:
        known = {"format": int, "revision": str, "home": str, "files": bool, "made_at": str}
        if not isinstance(head, dict) or any(type(head.get(key)) is not kind for key, kind in known.items()):
            raise BadInput(f"{self.name} is a tar, but no backup of Speculoos.")
        if head["format"] > archive.FORMAT:
            raise Unavailable(f"{self.name} was made by a newer Speculoos; update this one, then restore.")
        revisions.check(head["revision"], self.name)
        return head

    def _compare(self, digests: dict[str, str], claimed: str) -> None:
        if not self.end:
            raise BadInput(f"{self.name} is cut off: its end is missing; nothing was restored.")
        sums = {name: digest for digest, name in (line.split("  ", 1) for line in claimed.splitlines())}
        wrong = [name for name, digest in sums.items() if name != archive.HEAD and digests.get(name) != digest]
        if wrong:
            raise BadInput(f"{self.name} is damaged: {wrong[0]} is not as it was written; nothing was restored.")
        for name in digests.keys() - sums.keys():  # read while it changed, and read again under another name
            (self.folder / name).unlink()

    def rows(self, table: str) -> Iterator[dict[str, Any]]:
        for piece in sorted((self.folder / archive.ROWS / table).glob("*.jsonl")):
            with piece.open(encoding="utf-8") as lines:
                yield from (json.loads(line) for line in lines)


def _fill(settings: Settings, unpacked: _UnpackedArchive, say: Say) -> RestoreReport:
    revision, old = unpacked.head["revision"], unpacked.head["home"]
    places = _places(settings.home, unpacked.folder / archive.HOME)
    (unpacked.folder / FILLING).write_text("\0".join(str(place) for _, place in places))
    _remove_tables(settings)
    db.upgrade(settings, revision)
    count = going_on = 0
    with db.connection(settings) as connection:
        for table in rows.tables(connection):
            mend = _Mend(table.name, old, str(settings.home))
            count += rows.write_rows(connection, table, map(mend, filter(mend.wants, unpacked.rows(table.name))))
            going_on += mend.going_on
    db.upgrade(settings)
    say(f"{count:,} rows")
    _place(places)
    said = {key: list(unpacked.end.get(key, [])) for key in ("wrong", "outside")}
    made_at = datetime.fromisoformat(unpacked.head["made_at"])
    return RestoreReport(made_at, revision, count, len(places), going_on, **said)


class _Mend:
    """What a row must say in its new home: other paths, and nothing going on that went on elsewhere."""

    def __init__(self, table: str, old: str, new: str):
        self.table, self.old, self.new = table, old, new
        self.going_on = 0

    def wants(self, row: dict[str, Any]) -> bool:
        """Heartbeats and leases were those of processes that are not here."""
        return self.table not in PASSING and not str(row.get("key", "")).startswith("process:")

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        if self.table in PATHS:
            row = {key: self._moved(value) for key, value in row.items()}
        if self.table == "jobs":
            return self._waiting(row)
        if self.table == "runs" and row["state"] in ("QUEUED", "RUNNING"):
            return {**row, "state": "FAILED", "error": CUT_OFF, "finished_at": row["finished_at"] or now().isoformat()}
        return row

    def _moved(self, value: Any) -> Any:
        if isinstance(value, str) and (value == self.old or value.startswith(self.old + os.sep)):
            return self.new + value.removeprefix(self.old)
        if isinstance(value, dict):
            return {key: self._moved(item) for key, item in value.items()}
        return [self._moved(item) for item in value] if isinstance(value, list) else value

    def _waiting(self, row: dict[str, Any]) -> dict[str, Any]:
        """A job that ran is interrupted without counting as an attempt; its process is another machine's, not ours to
        end. One that waits is sent to this home's broker."""
        row = {**row, "child": {}, "owner": "", "lease_until": None}
        if row["state"] == "RUNNING":
            self.going_on += 1
            cap = {"attempt_cap": row["attempt_cap"] + 1, "progress_note": AGAIN, "eta_seconds": None}
            row = {**row, **cap, "state": "INTERRUPTED"}
        return {**row, "published_at": None} if row["state"] in ("QUEUED", "INTERRUPTED") else row


def _places(home: Path, unpacked: Path) -> list[tuple[Path, Path]]:
    """(unpacked file, its place) of all files; settings and secrets of one's own that are there already stay."""
    files = sorted(path for path in unpacked.rglob("*") if path.is_file())
    placed = [(path, home / path.relative_to(unpacked)) for path in files]
    return [(path, place) for path, place in placed if not place.exists()]


def _place(places: list[tuple[Path, Path]]) -> None:
    for path, place in places:
        place.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if place.parent.name == "secrets" else 0o777)
        path.rename(place)


def _remove_broken(settings: Settings) -> None:
    """Take back what a restore that did not come to its end has put into this home, which was empty before."""
    busy = settings.home / BUSY
    if not busy.exists():
        return
    if (busy / FILLING).exists():
        _remove_tables(settings)
        for place in map(Path, filter(None, (busy / FILLING).read_text().split("\0"))):
            place.unlink(missing_ok=True)
            _remove_empty(place.parent, settings.home)
    shutil.rmtree(busy)


def _remove_empty(folder: Path, home: Path) -> None:
    while folder != home and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent


def _remove_tables(settings: Settings) -> None:
    """An empty database, whatever revision it had. (It was checked to hold nothing.)"""
    if db.revision(settings):
        db.downgrade(settings, "base")

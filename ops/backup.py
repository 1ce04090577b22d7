"""Backup of a home into one tar archive while the workbench runs: rows of one database snapshot, then their files.

    speculoos-backup.json        format, revision of the tables, home, time
    rows/TABLE/00000.jsonl …     rows, in parts of a few MB
    home/…                       files by their path in the home
    sums.txt                     sha256 of each of the above, for `sha256sum -c`
    end.json                     the last member; an archive without it was cut off

A member may occur twice (its file changed while it was read): the last one is used. A member missing in sums.txt is
ignored. Of unfinished outputs of running jobs, the complete parts (shards, training states) are included.
"""

import hashlib
import io
import json
import os
import tarfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any

from sqlalchemy import select
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from ops import rows
from ops.storage import STATE, rows_with_files, uploads_of
from speculoos.errors import BadInput, Conflict, Unavailable
from speculoos.faults import disk_full
from speculoos.files import new_private_file
from speculoos.settings import Settings
from speculoos.store import hide_credentials, read_key
from tracking import db, revisions, stored
from tracking.tables import Job, now

FORMAT = 1
HEAD, SUMS, END = "speculoos-backup.json", "sums.txt", "end.json"
ROWS, HOME = "rows", "home"
GZIP, XZ = {"mode": "w:gz", "compresslevel": 4}, {"mode": "w:xz", "preset": 1}
ENDINGS: dict[str, Any] = {".tar": {"mode": "w:"}, ".tar.gz": GZIP, ".tgz": GZIP, ".tar.xz": XZ, ".txz": XZ}
CHUNK = 1 << 20
SECRET_TABLES, SKIPPED_TABLES = ("logins",), ("device_leases",)
TRIES, PAUSE = 4, 0.25
OnProgress = Callable[[str], None]


@dataclass
class BackupReport:
    """Content of a backup. `wrong`: files that were damaged or missing before; `outside`: models outside the home and
    files that only the store has, which are not in the archive."""

    revision: str
    rows: int = 0
    files: int = 0
    things: int = 0
    bytes: int = 0
    secrets: bool = False
    wrong: list[str] = field(default_factory=list)
    outside: list[str] = field(default_factory=list)


def back_up(
    settings: Settings, target: Path, *, on_progress: OnProgress = lambda _: None, **options: bool
) -> BackupReport:
    """Write a backup to a file of mode 0600 that appears complete or not at all; `options` as for `stream`. Raises
    BadInput for an ending that is not in ENDINGS, Conflict for an existing file, Unavailable for a full disk."""
    compression = next((how for ending, how in ENDINGS.items() if target.name.endswith(ending)), None)
    if compression is None:
        raise BadInput(f"{target.name}: the name of a backup ends with one of {', '.join(ENDINGS)}.")
    if target.exists():
        raise Conflict(f"{target} already exists; choose another name, such as one with the date.")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        with new_private_file(target) as out, tarfile.open(fileobj=out, copybufsize=CHUNK, **compression) as tar:
            report = _write(settings, tar, on_progress, **options)
    except OSError as error:
        if not disk_full(error):
            raise
        raise Unavailable(f"The disk of {target.parent} is full, so {target.name} was not written.") from None
    report.bytes = target.stat().st_size
    return report


def stream(
    settings: Settings, out: IO[bytes], *, on_progress: OnProgress = lambda _: None, **options: bool
) -> BackupReport:
    """Write an uncompressed backup to an open file or pipe. Options: `secrets` (default false) includes tokens, keys
    and logins; without `files` (default true) it holds only the database."""
    with tarfile.open(fileobj=out, mode="w|", copybufsize=CHUNK) as tar:
        return _write(settings, tar, on_progress, **options)


def _write(
    settings: Settings, tar: tarfile.TarFile, on_progress: OnProgress, secrets: bool = False, files: bool = True
) -> BackupReport:
    writer = _Writer(tar, settings.home)
    with db.snapshot(settings) as connection:
        report = BackupReport(revisions.current(connection), secrets=secrets)
        head = {"format": FORMAT, "revision": report.revision, "home": str(settings.home), "files": files}
        head |= {"made_at": now().isoformat(), "database": db.engine(settings).dialect.name, "secrets": secrets}
        writer.data(HEAD, json.dumps(head).encode())
        report.rows = _write_rows(writer, connection, secrets)
        on_progress(f"{report.rows:,} rows")
        session = Session(connection)
        items = [(kind, row, _in_store(session, settings, row)) for kind, row in rows_with_files(session) if files]
        single = [settings.home / "logs" / f"{job_id}.log" for job_id in session.scalars(select(Job.id))]
        single += [settings.home / "settings.toml", settings.home / "starter-head", *uploads_of(session, settings.home)]
    for kind, row, in_store in items:
        on_progress(f"{kind}: {row.name}")
        report.things += 1
        if kind == "models" and row.path and not Path(row.path).is_relative_to(settings.home):
            report.outside.append(f"{row.name} ({row.path})")
        if in_store:
            report.outside.append(f"{row.name} (in the store {hide_credentials(settings.store)})")
        elif problem := writer.item(kind, row):
            report.wrong.append(f"{kind[:-1]} “{row.name}”: {problem}")
    if secrets:
        single += sorted(path for path in (settings.home / "secrets").glob("[!.]*") if path.is_file())
    for path in single if files else ():
        writer.files([path])
    report.files = sum(name.startswith(HOME) for name in writer.sums)
    writer.data(SUMS, "".join(f"{digest}  {name}\n" for name, digest in writer.sums.items()).encode())
    end = {"rows": report.rows, "files": report.files, "wrong": report.wrong, "outside": report.outside}
    writer.data(END, json.dumps(end).encode())
    return report


def _write_rows(writer: "_Writer", connection: Connection, secrets: bool) -> int:
    count = 0
    for table in rows.tables(connection):
        if table.name in SKIPPED_TABLES or (table.name in SECRET_TABLES and not secrets):
            continue
        for number, part in enumerate(rows.parts(rows.read_rows(connection, table))):
            writer.data(f"{ROWS}/{table.name}/{number:05d}.jsonl", part)
            count += part.count(b"\n")
    return count


def _in_store(session: Session, settings: Settings, row: Any) -> bool:
    """Whether only the store has the row's current files."""
    entry = stored.stored_entry(session, row.id) if settings.store and row.state == "ready" else None
    return entry is not None and (not Path(row.path).exists() or read_key(Path(row.path)) not in ("", entry.key))


class _Writer:
    """Writes members of the archive; `sums` holds their sha256 by name."""

    def __init__(self, tar: tarfile.TarFile, home: Path):
        self.tar, self.home = tar, home
        self.sums: dict[str, str] = {}

    def data(self, name: str, content: bytes) -> None:
        self._add(name, io.BytesIO(content), len(content), time.time())

    def item(self, kind: str, row: Any) -> str:
        """Copy a row's files; returns a problem with them, "" for none. Retries while they change."""
        own_folder, named_folder = self.home / kind / row.id, Path(row.path or "")
        is_elsewhere = named_folder.is_relative_to(self.home / kind) and not named_folder.is_relative_to(own_folder)
        for attempt in range(TRIES):
            if attempt:
                time.sleep(PAUSE)
            before = len(self.sums)
            is_complete = all(
                [self._folder(folder) for folder in ([own_folder, named_folder] if is_elsewhere else [own_folder])]
            )
            copied = dict(islice(self.sums.items(), before, None))
            if not (problem := self._problem(row, copied, is_complete)) or attempt == TRIES - 1:
                break
            for name in copied:
                del self.sums[name]
        return problem

    def files(self, paths: Sequence[Path]) -> bool:
        """Copy files, all of them opened before the first is read. False if one is missing or became shorter."""
        with ExitStack() as stack:
            try:
                handles = [(path, stack.enter_context(path.open("rb"))) for path in paths]
            except OSError:
                return False
            stats = [os.fstat(handle.fileno()) for _, handle in handles]
            added = zip(handles, stats, strict=True)
            return all([self._add(self._name(path), file, stat.st_size, stat.st_mtime) for (path, file), stat in added])

    def _folder(self, folder: Path) -> bool:
        """Copy a folder without names that begin with a dot (incomplete). A training state is copied completely, even
        if it is deleted meanwhile, or not at all."""
        is_complete = True
        for parent, folders, names in os.walk(folder):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            paths = [Path(parent, name) for name in sorted(names) if not name.startswith(".")]
            if not Path(parent).name.startswith(STATE):
                is_complete = all([self.files([path]) for path in paths]) and is_complete
            elif not self.files(paths):
                for path in paths:
                    self.sums.pop(self._name(path), None)
        return is_complete

    def _problem(self, row: Any, copied: dict[str, str], is_complete: bool) -> str:
        """A problem with the copied files of a row that is ready, by its sha256 and its SHA256SUMS; "" for none."""
        if row.state != "ready" or (row.path and not Path(row.path).is_relative_to(self.home)):
            return ""
        root = f"{self._name(Path(row.path))}/" if row.path else ""
        if not root or not any(name.startswith(root) for name in copied):
            return "its files are missing"
        if not is_complete:
            return "its files changed while they were read"
        sha256 = getattr(row, "sha256", "")
        if sha256 and copied.get(f"{root}model.safetensors") != sha256:
            return "model.safetensors differs from the sha256 of its row"
        for claim in [name for name in copied if name.endswith("/SHA256SUMS")]:
            lines = (self.home / claim.removeprefix(f"{HOME}/")).read_text(encoding="utf-8", errors="replace")
            for digest, name in (line.split(maxsplit=1) for line in lines.splitlines() if " " in line.strip()):
                if copied.get(f"{claim.removesuffix('SHA256SUMS')}{name.strip().lstrip('*')}") != digest:
                    return f"{name} differs from SHA256SUMS"
        return ""

    def _add(self, name: str, handle: IO[bytes], size: int, changed: float) -> bool:
        info = tarfile.TarInfo(name)
        info.size, info.mtime, info.mode = size, int(changed), 0o600
        reader = _Reader(handle)
        self.tar.addfile(info, reader)  # type: ignore[arg-type] - only read() is called
        self.tar.members.clear()  # tarfile would remember each one
        self.sums.pop(name, None)
        self.sums[name] = reader.digest.hexdigest()
        return not reader.short

    def _name(self, path: Path) -> str:
        return f"{HOME}/{path.relative_to(self.home).as_posix()}"


class _Reader:
    """Reads as many bytes as requested: a file that became shorter meanwhile is filled up with zeros and is `short`."""

    def __init__(self, handle: IO[bytes]):
        self._handle, self.digest, self.short = handle, hashlib.sha256(), False

    def read(self, size: int) -> bytes:
        content = self._handle.read(size)
        self.short |= len(content) < size
        content += bytes(size - len(content))
        self.digest.update(content)
        return content

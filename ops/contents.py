"""What of a home goes into a backup: folders that rows name, logs, uploads that jobs still need, settings, secrets.

Half-made things have names that begin with a dot; they stay out. A folder of a row that is ready must be whole: its
sums are checked as it is copied, and it is copied again when it was changed meanwhile.
"""

import os
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from sqlalchemy import select
from sqlalchemy.orm import Session

from ops.archive import HOME, ArchiveWriter
from speculoos.settings import Settings
from speculoos.store import read_key
from tracking import stored
from tracking.states import FINISHED
from tracking.tables import Base, Checkpoint, Dataset, Job

TRIES, PAUSE = 4, 0.25
STATE = "state-"
"""Beginning of the name of a training state's folder; it is copied whole or not at all."""


@dataclass(frozen=True)
class BackupItem:
    """A row's files. `path` is what its row names, `ready` whether the row says that they are whole."""

    kind: str
    id: str
    name: str
    path: Path | None
    ready: bool
    done: int | None
    """How far the job that makes it was by its row, while it goes on."""
    in_store: bool
    """Whether the store alone has its files as the row means them."""
    rows: int
    sha256: str


@dataclass(frozen=True)
class Contents:
    """What the rows of a snapshot name."""

    things: list[BackupItem]
    logs: list[str]
    uploads: list[Path]


def contents(session: Session, settings: Settings) -> Contents:
    """Everything that is to be copied, as the snapshot behind `session` has it."""
    active = select(Job.id, Job.done).where(Job.state.not_in(FINISHED))
    going_on = {job_id: done for job_id, done in session.execute(active)}
    things = []
    for table, kind in stored.KINDS.items():
        for row in session.scalars(select(table).order_by(table.created_at)):
            path = (settings.home / row.path) if row.path else None
            facts = {"rows": getattr(row, "rows", 0), "sha256": getattr(row, "sha256", "")}
            in_store = bool(settings.store) and _in_store_alone(session, row)
            done = going_on.get(row.job_id)
            things.append(BackupItem(kind, row.id, row.name, path, row.state == "ready", done, in_store, **facts))
    uploads = uploads_of(session, settings.home)
    return Contents(things, list(session.scalars(select(Job.id).order_by(Job.created_at))), uploads)


def _in_store_alone(session: Session, row: Base | Dataset | Checkpoint) -> bool:
    kept = stored.stored_entry(session, row.id)
    if kept is None or row.state != "ready":
        return False
    path = Path(row.path)
    return not path.exists() or read_key(path) not in ("", kept.key)


def uploads_of(session: Session, home: Path) -> list[Path]:
    """Uploaded files that jobs which are not over need: the file a request names, or those of the folder it names."""
    requests = session.scalars(select(Job.request).where(Job.state.not_in(FINISHED)))
    named = [request.get(key) for request in requests for key in ("path", "location")]
    places = [home / path for path in named if isinstance(path, str) and path]
    own = [path for path in places if path.is_relative_to(home / "uploads")]
    return [file for path in own for file in (sorted(path.glob("*")) if path.is_dir() else [path])]


def folders(thing: BackupItem, home: Path) -> list[Path]:
    """The thing's folder in the home, and the one its row names where that is another one of the home."""
    own = home / thing.kind / thing.id
    named = thing.path
    other = named is not None and named.is_relative_to(home / thing.kind) and not named.is_relative_to(own)
    return [own, named] if other and named else [own]


def is_outside(thing: BackupItem, home: Path) -> bool:
    """Whether its files lie elsewhere (a model in a folder of one's own, what came with the installation)."""
    return thing.path is not None and not thing.path.is_relative_to(home)


def copy_thing(writer: ArchiveWriter, thing: BackupItem, home: Path) -> str:
    """Copy a thing's files; returns what is wrong with them, "" for nothing. Tries again while they change."""
    problem = ""
    for attempt in range(TRIES):
        copy = _Copy(writer, home, _too_new(home / thing.kind / thing.id, thing.done))
        for folder in folders(thing, home):
            copy.folder(folder)
        problem = copy.problem(thing) if thing.ready and not is_outside(thing, home) else ""
        if not problem or attempt == TRIES - 1:
            return problem
        for folder in folders(thing, home):
            writer.forget(f"{_member(folder, home)}/")
        time.sleep(PAUSE)
    return problem


def _too_new(folder: Path, done: int | None) -> frozenset[Path]:
    """Training states that were made after the rows were read, where an older one is there: a training that went on
    from such a one would lack the figures of the steps between. Where all are newer, the oldest is nearest."""
    if done is None:
        return frozenset()
    numbers = {path: path.name.removeprefix(STATE) for path in folder.glob(f"attempt-*/{STATE}*")}
    steps = {path: int(number) for path, number in numbers.items() if number.isdigit()}
    newest_kept = max((step for step in steps.values() if step <= done), default=min(steps.values(), default=0))
    return frozenset(path for path, step in steps.items() if step > newest_kept)


def copy_file(writer: ArchiveWriter, path: Path, home: Path) -> None:
    """Copy one file, if there is one."""
    with suppress(OSError), path.open("rb") as handle:
        writer.file(_member(path, home), handle)


class _Copy:
    """One pass over the folders of a thing."""

    def __init__(self, writer: ArchiveWriter, home: Path, left_out: frozenset[Path]):
        self.writer, self.home, self.left_out = writer, home, left_out
        self.changed = False
        self.sums: dict[str, str] = {}
        self.lines: Counter[Path] = Counter()
        self.claims: list[Path] = []

    def folder(self, folder: Path) -> None:
        for place, files in walk(folder):
            if place.name.startswith(STATE):
                self._together(files if place not in self.left_out else [])
            else:
                for path in files:
                    self._one(path)
                self.claims += [path for path in files if path.name == "SHA256SUMS"]

    def problem(self, thing: BackupItem) -> str:
        """What is wrong with what was copied, against its row and its own sums."""
        root = _member(thing.path, self.home) if thing.path else ""
        if not any(name.startswith(f"{root}/") for name in self.sums):
            return "its files are gone"
        if self.changed:
            return "its files changed while they were read"
        if thing.sha256 and self.sums.get(f"{root}/model.safetensors") != thing.sha256:
            return "model.safetensors is not what its row says"
        for claim in self.claims:
            if wrong := self._differs(claim):
                return f"{wrong} differs from SHA256SUMS"
        rows = sum(count for path, count in self.lines.items() if thing.path in path.parents)
        if rows < thing.rows:  # more of them, where a job goes on with what was stopped
            return f"{rows} of {thing.rows} rows are there"
        return ""

    def _differs(self, claim: Path) -> str:
        try:
            lines = claim.read_text().splitlines()
        except OSError:
            return claim.name
        pairs = (line.split(maxsplit=1) for line in lines if line.strip())
        place = _member(claim.parent, self.home)
        return next((name for digest, name in pairs if self.sums.get(f"{place}/{name.lstrip('*')}") != digest), "")

    def _one(self, path: Path) -> None:
        try:
            with path.open("rb") as handle:
                self._write(path, handle)
        except FileNotFoundError:
            self.changed = True

    def _together(self, files: list[Path]) -> None:
        """All of them are open before the first is copied: a state that is removed meanwhile is still read whole."""
        with ExitStack() as stack:
            try:
                opened = [(path, stack.enter_context(path.open("rb"))) for path in files]
            except FileNotFoundError:
                return
            for path, handle in opened:
                self._write(path, handle)

    def _write(self, path: Path, handle: IO[bytes]) -> None:
        name = _member(path, self.home)
        copied = self.writer.file(name, handle)
        self.changed |= copied.short
        self.sums[name] = self.writer.sums[name]
        if path.name.startswith("shard-"):
            self.lines[path] = copied.lines


def walk(folder: Path) -> Iterator[tuple[Path, list[Path]]]:
    """Each folder with its files in order, without those whose name begins with a dot."""
    for place, inner, names in os.walk(folder):
        inner[:] = sorted(name for name in inner if not name.startswith("."))
        yield Path(place), [Path(place, name) for name in sorted(names) if not name.startswith(".")]


def _member(path: Path, home: Path) -> str:
    return f"{HOME}/{path.relative_to(home).as_posix()}"

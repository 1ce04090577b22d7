"""Is every model, checkpoint and data set of a home still what it was? `verify` takes all sums anew, `doctor` only
those of files whose size or time changed. Reads rows and files, changes neither. No torch.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import archive
from models.damage import Known, base_damage, dataset_damage
from models.starter import installed
from speculoos.errors import NotFound
from speculoos.settings import Settings
from speculoos.store import read_key
from speculoos.sums import ChecksumCache
from tracking import queries, stored
from tracking.db import reading
from tracking.names import KIND_NAMES
from tracking.stored import RowFiles
from tracking.tables import Base, Checkpoint, Dataset

Thing = Base | Checkpoint | Dataset
MENDS = {
    "starter": "Remove that folder and run `make install`, which makes it again.",
    "folder": "Put its original files back, or add the changed folder under another name (`speculoos models add`).",
    "hub": "Bring it here again under another name (`speculoos models add`), or put its original files back.",
    "gguf": "Convert it again under another name (`speculoos models add`), or put its original files back.",
    "checkpoints": "Train it again, or put the files back from a copy.",
    "datasets": "Make it again, or put the files back from a copy.",
}


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at. `damage` is {file, or part: what is wrong with it}, empty when it is whole."""

    kind: str
    name: str
    id: str
    path: str
    damage: dict[str, str]
    mend: str = ""

    def sentence(self) -> str:
        """What is damaged, and what to do."""
        wrong = "; ".join(f"{name} {what}" for name, what in self.damage.items())
        where = f" in {self.path}" if self.path else ""
        return f"{self.kind} {self.name}{where}: {wrong}. {self.mend}"

    def to_json(self) -> dict[str, Any]:
        fields = {"kind": self.kind, "name": self.name, "id": self.id, "path": self.path, "ok": not self.damage}
        return {**fields, "damage": self.damage, "mend": self.mend} if self.damage else fields


def check(settings: Settings, references: Sequence[str] = (), anew: bool = True) -> list[Finding]:
    """Everything that is ready, or what `references` name: a model (with its checkpoints), MODEL@CHECKPOINT, a data
    set. Raises NotFound for a name of neither."""
    sums = ChecksumCache.of(settings, anew)
    with reading(settings) as session:
        chosen = _named(session, references) if references else _all(session)
        named = [(thing, _name(session, thing), _is_here(session, settings, thing)) for thing in chosen]
    return [_look(thing, name, sums if here else None) for thing, name, here in named]


def _all(session: Session) -> list[Thing]:
    return [
        *queries.bases(session, True),
        *queries.checkpoints(session, ready_only=True),
        *queries.datasets(session, "", True),
    ]


def _named(session: Session, references: Iterable[str]) -> list[Thing]:
    by_id: dict[str, Thing] = {}
    for reference in references:
        things = [*_model(session, reference), *_dataset(session, reference)]
        if not things:
            raise NotFound(f"There is no model, checkpoint or data set {reference!r}.")
        for thing in things:
            queries.must_be_ready(thing)
            by_id[thing.id] = thing
    return list(by_id.values())


def _model(session: Session, reference: str) -> list[Thing]:
    try:
        base, checkpoint = queries.find_model(session, reference)
    except NotFound:
        return []
    return [checkpoint] if checkpoint else [base, *queries.checkpoints(session, base.id, ready_only=True)]


def _dataset(session: Session, reference: str) -> list[Thing]:
    query = select(Dataset).where((Dataset.id == reference) | (Dataset.name == reference))
    return list(session.scalars(query))


def _name(session: Session, thing: Thing) -> str:
    return queries.model_name(session, thing.base_id, thing.id) if isinstance(thing, Checkpoint) else thing.name


def _is_here(session: Session, settings: Settings, thing: Thing) -> bool:
    """Whether its files are to be looked at here: what only the store has is checked by who fetches it."""
    if not settings.store or (kept := stored.stored_entry(session, thing.id)) is None:
        return True
    files = RowFiles(settings, installed)
    return files.path(thing).exists() and read_key(files.path(thing)) in ("", kept.key)


def _look(thing: Thing, name: str, sums: ChecksumCache | None) -> Finding:
    """Without `sums` its files are in the store alone."""
    kind = KIND_NAMES[thing.__tablename__]
    if sums is None:
        return Finding(kind, name, thing.id, "the store", {})
    damage = _damage(thing, sums)
    mend = MENDS.get(thing.source if isinstance(thing, Base) else thing.__tablename__, "")
    return Finding(kind, name, thing.id, thing.path, damage, mend if damage else "")


def _damage(thing: Thing, sums: ChecksumCache) -> dict[str, str]:
    if isinstance(thing, Base):
        return base_damage(thing.path, Known.of(thing.weights_sha256, thing.tokenizer_sha256, thing.card), sums)
    if isinstance(thing, Checkpoint):
        return archive.damage(thing.path, thing.sha256, sums)
    if not any(Path(thing.path).glob("shard-*.jsonl")):
        return {"shard-00000.jsonl": "is missing"}
    return dataset_damage(thing.path, sums, thing.rows)

"""`speculoos verify`: compares the files of models, checkpoints and datasets with their checksums. No torch.

`verify` hashes every file again, `doctor` only those whose size or time changed.
"""

from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models import archive
from models.damage import BaseChecksums, base_problems, dataset_problems
from models.starter import installed
from speculoos.checksums import ChecksumCache
from speculoos.errors import NotFound
from speculoos.settings import Settings
from speculoos.store import read_key
from tracking import queries, stored
from tracking.db import reading
from tracking.names import KIND_NAMES
from tracking.stored import RowFiles
from tracking.tables import Base, Checkpoint, Dataset

StoredRow = Base | Checkpoint | Dataset
REPAIRS = {
    "starter": "Remove that folder and run `make install`, which creates it again.",
    "folder": "Restore its original files, or add the changed folder under another name (`speculoos models add`).",
    "hub": "Add it again under another name (`speculoos models add`), or restore its original files.",
    "gguf": "Convert it again under another name (`speculoos models add`), or restore its original files.",
    "checkpoints": "Train it again, or restore the files from a backup.",
    "datasets": "Create it again, or restore the files from a backup.",
}


@dataclass(frozen=True)
class Finding:
    """Result for one row. `damage`: {file or part: problem}, empty if there is none; `repair`: how to repair it."""

    kind: str
    name: str
    id: str
    path: str
    damage: dict[str, str]
    repair: str = ""

    def sentence(self) -> str:
        problems = "; ".join(f"{name} {what}" for name, what in self.damage.items())
        where = f" in {self.path}" if self.path else ""
        return f"{self.kind} {self.name}{where}: {problems}. {self.repair}"

    def to_json(self) -> dict[str, Any]:
        fields = {"kind": self.kind, "name": self.name, "id": self.id, "path": self.path, "ok": not self.damage}
        return {**fields, "damage": self.damage, "repair": self.repair} if self.damage else fields


def check(settings: Settings, references: Sequence[str] = (), anew: bool = True) -> list[Finding]:
    """Check all rows that are ready, or those that `references` name: a model (with its checkpoints), MODEL@DRAFT
    or a dataset. `anew` hashes unchanged files too. Raises NotFound for an unknown name."""
    checksum_cache = ChecksumCache.of(settings, anew)
    with reading(settings) as session:
        ready = (queries.bases(session, True), queries.checkpoints(session, ready_only=True))
        chosen = _named(session, references) if references else [*chain(*ready, queries.datasets(session, "", True))]
        named = [(row, _name(session, row), _is_here(session, settings, row)) for row in chosen]
    return [_check(row, name, checksum_cache, here) for row, name, here in named]


def _named(session: Session, references: Iterable[str]) -> list[StoredRow]:
    by_id: dict[str, StoredRow] = {}
    for reference in references:
        query = select(Dataset).where((Dataset.id == reference) | (Dataset.name == reference))
        rows: list[StoredRow] = list(session.scalars(query))
        with suppress(NotFound):
            base, checkpoint = queries.find_model(session, reference)
            heads = [] if checkpoint else queries.checkpoints(session, base.id, ready_only=True)
            rows = [checkpoint or base, *heads, *rows]
        if not rows:
            raise NotFound(f"There is no model, draft or dataset {reference!r}.")
        for row in rows:
            queries.must_be_ready(row)
            by_id[row.id] = row
    return list(by_id.values())


def _name(session: Session, row: StoredRow) -> str:
    return queries.model_name(session, row.base_id, row.id) if isinstance(row, Checkpoint) else row.name


def _is_here(session: Session, settings: Settings, row: StoredRow) -> bool:
    """False for files that only the store has; they are checked when they are fetched."""
    if not settings.store or (entry := stored.stored_entry(session, row.id)) is None:
        return True
    files = RowFiles(settings, installed)
    return files.path(row).exists() and read_key(files.path(row)) in ("", entry.key)


def _check(row: StoredRow, name: str, checksum_cache: ChecksumCache, here: bool) -> Finding:
    kind = KIND_NAMES[row.__tablename__]
    if not here:
        return Finding(kind, name, row.id, "the store", {})
    damage = _damage(row, checksum_cache)
    repair = REPAIRS.get(row.source if isinstance(row, Base) else row.__tablename__, "") if damage else ""
    return Finding(kind, name, row.id, row.path, damage, repair)


def _damage(row: StoredRow, checksum_cache: ChecksumCache) -> dict[str, str]:
    if isinstance(row, Base):
        return base_problems(
            row.path, BaseChecksums.of(row.weights_sha256, row.tokenizer_sha256, row.card), checksum_cache
        )
    if isinstance(row, Checkpoint):
        return archive.checkpoint_problems(row.path, row.sha256, checksum_cache)
    if not any(Path(row.path).glob("shard-*.jsonl")):
        return {"shard-00000.jsonl": "is missing"}
    return dataset_problems(row.path, checksum_cache, row.rows)

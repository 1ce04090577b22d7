"""Models that requests can name: rows in state ready, as `base` or `base@checkpoint`. Does not import torch."""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.damage import BaseChecksums
from models.starter import installed
from serving.errors import ApiError
from speculoos.errors import Conflict, NotFound
from speculoos.settings import Settings
from tracking import queries
from tracking.db import reading
from tracking.names import split_model
from tracking.stored import RowFiles
from tracking.tables import Base, Checkpoint


@dataclass(frozen=True)
class ModelRef:
    """Paths and checksums of a model's files. A changed sha256 forces a reload."""

    name: str
    base_path: str
    base_sha256: str
    checkpoint_path: str = ""
    checkpoint_sha256: str = ""
    base_checksums: BaseChecksums = BaseChecksums()  # checksums to verify the base model's files against before loading

    @property
    def base_name(self) -> str:
        """Name of the base model."""
        return split_model(self.name)[0]

    @property
    def base_key(self) -> tuple[str, str]:
        return self.base_path, self.base_sha256

    @property
    def draft_key(self) -> tuple[str, str] | None:
        """None for a base model without a draft."""
        return (self.checkpoint_path, self.checkpoint_sha256) if self.checkpoint_path else None


def local_model(settings: Settings, name: str) -> ModelRef:
    """The model named `name`, with its files on this machine. Raises a 404 ApiError, or Unavailable."""
    with reading(settings) as session:
        base, checkpoint = _rows(session, name)
    files = RowFiles(settings, installed)
    base_checksums = BaseChecksums.of(base.weights_sha256, base.tokenizer_sha256, base.card)
    ref = ModelRef(base.name, files.local(base), base.weights_sha256, base_checksums=base_checksums)
    if checkpoint is None:
        return ref
    name = f"{base.name}@{checkpoint.name}"
    return replace(ref, name=name, checkpoint_path=files.local(checkpoint), checkpoint_sha256=checkpoint.sha256)


def list_models(session: Session) -> list[dict[str, Any]]:
    """OpenAI model objects: every ready base model, each followed by its ready checkpoints."""
    bases = session.scalars(select(Base).where(Base.state == "ready").order_by(Base.created_at)).all()
    ready = select(Checkpoint).where(Checkpoint.state == "ready").order_by(Checkpoint.created_at)
    checkpoints = session.scalars(ready).all()
    entries = []
    for base in bases:
        entries.append(_entry(base.name, base))
        entries += [_entry(f"{base.name}@{c.name}", base, c) for c in checkpoints if c.base_id == base.id]
    return entries


def model_entry(session: Session, name: str) -> dict[str, Any]:
    """The OpenAI model object of one model. Raises a 404 ApiError `model_not_found`."""
    return _entry(name, *_rows(session, name))


def _rows(session: Session, name: str) -> tuple[Base, Checkpoint | None]:
    try:
        base, checkpoint = queries.find_model(session, name)
        for row in (base, checkpoint) if checkpoint else (base,):
            queries.must_be_ready(row)
    except (NotFound, Conflict) as error:
        raise ApiError(404, f"{error} GET /v1/models lists the available models.", "model_not_found", "model") from None
    return base, checkpoint


def _entry(name: str, base: Base, checkpoint: Checkpoint | None = None) -> dict[str, Any]:
    entry = {"id": name, "object": "model", "owned_by": "speculoos", "root": base.name}
    created = (checkpoint or base).created_at
    return {**entry, "created": int(created.timestamp()), "method": checkpoint.method if checkpoint else None}

"""Which models can be asked for: rows in state ready, named `base` or `base@checkpoint`. No torch."""

from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.damage import Known
from serving.errors import ApiError
from tracking.tables import Base, Checkpoint


@dataclass(frozen=True)
class ModelRef:
    """Where a named model's files are, and what identifies them (a changed sha256 means: load again)."""

    name: str
    base_id: str
    base_path: str
    base_sha256: str
    checkpoint_id: str = ""
    checkpoint_path: str = ""
    checkpoint_sha256: str = ""
    method: str = ""
    base_known: Known = Known()
    """Sums the base's files are compared with before they are loaded."""

    @property
    def base_name(self) -> str:
        """The base's own name: a checkpoint's name has no @."""
        return self.name.rpartition("@")[0] if self.checkpoint_id else self.name

    @property
    def base_key(self) -> tuple[str, str]:
        return self.base_path, self.base_sha256

    @property
    def draft_key(self) -> tuple[str, str] | None:
        """None for a base alone."""
        return (self.checkpoint_path, self.checkpoint_sha256) if self.checkpoint_id else None


def find_model(session: Session, name: str) -> ModelRef:
    """The model called `name`. Raises a 404 ApiError `model_not_found` that says what is missing."""
    if base := _base(session, name):
        return _ref(name, base)
    base_name, at, checkpoint_name = name.rpartition("@")
    base = _base(session, base_name) if at else None
    if not base:
        raise _missing(f"The model {name!r} does not exist or is not ready; GET /v1/models lists those that are.")
    query = select(Checkpoint).where(Checkpoint.base_id == base.id, Checkpoint.name == checkpoint_name)
    if not (checkpoint := session.scalar(query.where(Checkpoint.state == "ready"))):
        raise _missing(f"The base {base_name!r} has no ready checkpoint {checkpoint_name!r}.")
    return _ref(name, base, checkpoint)


def list_models(session: Session) -> list[dict[str, Any]]:
    """OpenAI model objects: every ready base, then its ready checkpoints."""
    bases = session.scalars(select(Base).where(Base.state == "ready").order_by(Base.created_at)).all()
    ready = select(Checkpoint).where(Checkpoint.state == "ready").order_by(Checkpoint.created_at)
    checkpoints = session.scalars(ready).all()
    found = []
    for base in bases:
        found.append(_entry(base.name, base))
        found += [_entry(f"{base.name}@{c.name}", base, c) for c in checkpoints if c.base_id == base.id]
    return found


def model_entry(session: Session, name: str) -> dict[str, Any]:
    """The OpenAI model object of one model; 404 when there is none."""
    ref = find_model(session, name)
    base, checkpoint = session.get(Base, ref.base_id), session.get(Checkpoint, ref.checkpoint_id or "")
    assert base is not None
    return _entry(name, base, checkpoint)


def _base(session: Session, name: str) -> Base | None:
    return session.scalar(select(Base).where(Base.name == name, Base.state == "ready"))


def _ref(name: str, base: Base, checkpoint: Checkpoint | None = None) -> ModelRef:
    known = Known.of(base.weights_sha256, base.tokenizer_sha256, base.card)
    ref = ModelRef(name, base.id, base.path, base.weights_sha256, base_known=known)
    if (c := checkpoint) is None:
        return ref
    return replace(ref, checkpoint_id=c.id, checkpoint_path=c.path, checkpoint_sha256=c.sha256, method=c.method)


def _entry(name: str, base: Base, checkpoint: Checkpoint | None = None) -> dict[str, Any]:
    made = {"id": name, "object": "model", "owned_by": "speculoos", "root": base.name}
    created = (checkpoint or base).created_at
    return {**made, "created": int(created.timestamp()), "method": checkpoint.method if checkpoint else None}


def _missing(message: str) -> ApiError:
    return ApiError(404, message, "model_not_found", "model")

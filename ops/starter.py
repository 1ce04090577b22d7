"""Rows of the starter model and its head: the model `starter` and the checkpoint `starter@starter`.

Their files are part of the installation, so deleting a row deletes no file. A file of the home records which head was
added, so a head that someone deleted is not added again until a newer one is shipped.
"""

import json
from pathlib import Path
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from models.archive import WEIGHTS
from models.starter import STARTER_HEAD, starter_path
from speculoos.checksums import read_checksums
from speculoos.settings import Settings
from tracking.names import STARTER
from tracking.tables import Base, Checkpoint, now

NOTED = "starter-head"


def ensure_starter(session: Session, settings: Settings) -> Base | None:
    """Create or update the rows of the starter and its head from the card in its folder; returns the model's row.

    Changes nothing when the starter is not installed (`make install` does it) or its name is used by another model.
    """
    folder = starter_path()
    card = _read_card(folder / "card.json")
    base = session.scalar(select(Base).where(Base.name == STARTER))
    if not card or (base and base.source != STARTER):
        return base
    base = base or Base(name=STARTER, source=STARTER, location=STARTER, created_at=now())
    base.path, base.state, base.card = str(folder), "ready", card
    base.weights_sha256, base.tokenizer_sha256 = card.get("weights_sha256", ""), card.get("tokenizer_sha256", "")
    session.add(base)
    session.flush()
    _ensure_head(session, settings, base)
    return base


def _ensure_head(session: Session, settings: Settings, base: Base) -> None:
    """Add the shipped head, once per home. Nothing happens for other base weights than it was trained on, or if another
    checkpoint has its name."""
    if not (STARTER_HEAD / "config.json").is_file():
        return
    config = json.loads((STARTER_HEAD / "config.json").read_text(encoding="utf-8"))
    if config["base_sha256"] != base.weights_sha256:
        return
    row = session.scalar(select(Checkpoint).where(Checkpoint.base_id == base.id, Checkpoint.name == STARTER))
    noted, sha256 = settings.home / NOTED, read_checksums(STARTER_HEAD)[WEIGHTS]
    if row is None and (not noted.exists() or noted.read_text().strip() != sha256):
        row = Checkpoint(name=STARTER, base_id=base.id, created_at=now(), path=str(STARTER_HEAD))
    training = config["training"]
    config_row = {**training["settings"], "data": (training.get("dataset") or {}).get("dataset", "")}
    if row is not None and row.sha256 == sha256 and row.config != config_row:
        row.config = config_row  # a home of an earlier version, which did not note the data
    if row is None or Path(row.path).name != STARTER_HEAD.name:
        return
    if row.sha256 == sha256 and row.path == str(STARTER_HEAD):
        return
    row.method, row.state, row.path = config["speculoos_method"], "ready", str(STARTER_HEAD)
    row.base_sha256, row.sha256, row.size_bytes = config["base_sha256"], sha256, (STARTER_HEAD / WEIGHTS).stat().st_size
    row.config, row.figures, row.step = config_row, training["figures"], training["figures"]["step"]
    row.note = "Comes with the starter model."
    session.add(row)
    session.flush()
    noted.parent.mkdir(parents=True, exist_ok=True)  # with an external database, nothing has created the home yet
    noted.write_text(sha256 + "\n", encoding="utf-8")


def _read_card(path: Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}

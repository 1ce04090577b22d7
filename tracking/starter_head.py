"""The head that comes with the starter model, in the list as checkpoint `starter` of model `starter`.

Its files lie in the installation; the row names them there, so deleting the row deletes no file. Which head a home has
been given is noted in it, so that a head someone deleted stays away until a newer one is shipped.
"""

import json
from pathlib import Path

from sqlalchemy import select
from sqlalchemy.orm import Session

from speculoos.settings import Settings
from tracking.tables import Base, Checkpoint, now

FOLDER = Path(__file__).resolve().parent.parent / "models" / "starter_head"
NAME = "starter"
GIVEN = "starter-head"
WEIGHTS = "model.safetensors"


def ensure_starter_head(session: Session, settings: Settings, base: Base) -> None:
    """Put the shipped head into the list, once for each home and shipped head. Nothing happens for other base weights
    than it was trained on, or where a checkpoint of one's own has its name."""
    if not (FOLDER / "config.json").is_file():
        return
    config = json.loads((FOLDER / "config.json").read_text(encoding="utf-8"))
    if config["base_sha256"] != base.weights_sha256:
        return
    row = session.scalar(select(Checkpoint).where(Checkpoint.base_id == base.id, Checkpoint.name == NAME))
    given, sha256 = settings.home / GIVEN, _sha256()
    if row is None and (not given.exists() or given.read_text().strip() != sha256):
        row = Checkpoint(name=NAME, base_id=base.id, created_at=now(), path=str(FOLDER))
    if row is None or Path(row.path).name != FOLDER.name or (row.sha256 == sha256 and row.path == str(FOLDER)):
        return
    training = config["training"]
    row.method, row.state, row.path = config["speculoos_method"], "ready", str(FOLDER)
    row.base_sha256, row.sha256, row.size_bytes = config["base_sha256"], sha256, (FOLDER / WEIGHTS).stat().st_size
    row.config, row.figures, row.step = training["settings"], training["figures"], training["figures"]["step"]
    row.note = "Comes with the starter model."
    session.add(row)
    session.flush()
    given.parent.mkdir(parents=True, exist_ok=True)  # with a database elsewhere nothing has made the home yet
    given.write_text(sha256 + "\n", encoding="utf-8")


def _sha256() -> str:
    """Of the weights, as the folder's own sums say."""
    lines = (FOLDER / "SHA256SUMS").read_text(encoding="utf-8").splitlines()
    return next(line.split()[0] for line in lines if line.endswith(WEIGHTS))

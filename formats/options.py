"""Which formats can take a checkpoint, and why the others cannot: what `speculoos export --list` and a page show. No
torch."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from formats import FORMATS, OWN
from formats.checkpoint import CheckpointFiles
from formats.record import Format
from models.archive import WEIGHTS


@dataclass(frozen=True)
class Option:
    """One format for one checkpoint. `servers` is called `for` in JSON."""

    name: str
    title: str
    servers: str
    possible: bool
    reason: str
    bytes: int = 0
    """About, of its tensors; 0 where it is not possible."""

    def to_json(self) -> dict[str, Any]:
        return {"for" if name == "servers" else name: value for name, value in asdict(self).items()}


def options(checkpoint: str | Path, base: str | Path) -> list[Option]:
    """Every format, for the checkpoint and the base in these folders. Raises what Checkpoint.read does."""
    draft = CheckpointFiles.read(checkpoint, base)
    choices = []
    for record in FORMATS.values():
        reason = record.reason(draft)
        size = 0 if reason else _bytes(record, draft)
        choices.append(Option(record.name, record.title, record.servers(draft.method), not reason, reason, size))
    return choices


def _bytes(record: Format, draft: CheckpointFiles) -> int:
    """The checkpoint's own weights as they are, those of another format by its table."""
    if record.name == OWN:
        return (draft.path / WEIGHTS).stat().st_size
    return record.load("table", draft.method)(draft).size

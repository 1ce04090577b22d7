"""The formats that support a checkpoint, and the reasons why others do not, for `speculoos export --list` and the
Checkpoints page. No torch."""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from formats import FORMATS, OWN
from formats.checkpoint import CheckpointFiles
from formats.facts import CardFacts
from formats.servers import Format
from models.archive import WEIGHTS


@dataclass(frozen=True)
class FormatOption:
    """One format for one checkpoint. The JSON key of `servers` is `for`."""

    name: str
    title: str
    servers: str
    possible: bool
    reason: str
    bytes: int = 0
    """Approximate size of its tensors; 0 if the export is not possible."""

    def to_json(self) -> dict[str, Any]:
        return {"for" if name == "servers" else name: value for name, value in asdict(self).items()}


def export_options(checkpoint: str | Path, base: str | Path) -> list[FormatOption]:
    """Every format, for the folders of a checkpoint and its base; 8-bit formats only if their server supports the
    checkpoint. Raises the errors of CheckpointFiles.read."""
    draft = CheckpointFiles.read(checkpoint, base)
    choices = []
    for record in FORMATS.values():
        if record.scheme and FORMATS[record.unquantized].reason(draft):
            continue  # for the same reason
        reason = record.reason(draft)
        size = 0 if reason else _bytes(record, draft)
        choices.append(FormatOption(record.name, record.title, record.servers(draft.method), not reason, reason, size))
    return choices


def _bytes(record: Format, draft: CheckpointFiles) -> int:
    if record.name == OWN:
        return (draft.path / WEIGHTS).stat().st_size
    return record.plan(draft, None, CardFacts("", "")).size

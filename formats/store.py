"""Exports that were made, on disk: `exports/<checkpoint id>/<format>.zip`, and beside each what its check found.

An export belongs to the checkpoint as it was: when that changes (tuned, trained again) its old exports are no longer
offered, and the next one takes their place. No torch.
"""

import json
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from models.archive import write_zip
from speculoos.files import write_json
from speculoos.sums import SUMS

FOLDER = "exports"


@dataclass(frozen=True)
class Stored:
    """A zip that is ready. `report` is what `formats.report.Report.to_json` gives."""

    path: Path
    bytes: int
    report: dict[str, Any]


def exports_folder(home: Path, checkpoint_id: str) -> Path:
    """Where a checkpoint's exports lie."""
    return home / FOLDER / checkpoint_id


def source_of(checkpoint: str | Path) -> str:
    """What tells this state of a checkpoint's folder from others: the sha256 of its SHA256SUMS; "" without one."""
    try:
        return sha256((Path(checkpoint) / SUMS).read_bytes()).hexdigest()
    except OSError:
        return ""


def stored(folder: Path, source: str) -> dict[str, Stored]:
    """{format: zip} of what was made from the checkpoint as `source` has it."""
    found = {}
    for path in sorted(folder.glob("*.json")):
        kept, archive = _read(path), path.with_suffix(".zip")
        if source and kept.get("source") == source and archive.is_file():
            found[path.stem] = Stored(archive, archive.stat().st_size, kept.get("report", {}))
    return found


def store(folder: Path, name: str, built: Path, source: str, report: dict[str, Any]) -> Stored:
    """Zip the export in `built` as `name` and keep its report; an older one gives way."""
    note, archive = folder / f"{name}.json", folder / f"{name}.zip"
    note.unlink(missing_ok=True)  # a zip without its note is not offered, so a new one never has an old report
    write_zip(built, archive)
    write_json(note, {"source": source, "report": report})
    return Stored(archive, archive.stat().st_size, report)


def _read(path: Path) -> dict[str, Any]:
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return kept if isinstance(kept, dict) else {}

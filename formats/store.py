"""Exports that were made, on disk: `exports/<checkpoint id>/<format>.zip`, and beside each what its check found.

An export belongs to the checkpoint as it was: when that changes (tuned, trained again) its old exports are no longer
offered, and the next one takes their place. No torch.
"""

import json
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from models.identity import read_json
from speculoos.errors import BadInput
from speculoos.files import write_json
from speculoos.store import Store
from speculoos.sums import SUMS

FOLDER = "exports"


@dataclass(frozen=True)
class StoredExport:
    """A zip that is ready. `report` is what `formats.report.ExportReport.to_json` gives, empty for our own format."""

    path: Path
    bytes: int
    report: dict[str, Any]


def exports_folder(home: Path, checkpoint_id: str) -> Path:
    """Where a checkpoint's exports lie."""
    return home / FOLDER / checkpoint_id


def source_of(checkpoint: str | Path) -> str:
    """What tells this state of a checkpoint's folder from others: the sha256 of its SHA256SUMS; of a folder without
    one, of its files' names, sizes and times."""
    folder = Path(checkpoint)
    with suppress(OSError):
        return sha256((folder / SUMS).read_bytes()).hexdigest()
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.glob("[!.]*"))
    return sha256(repr(files).encode()).hexdigest()


def stored_exports(folder: Path, source: str) -> dict[str, StoredExport]:
    """{format: zip} of what was made from the checkpoint as `source` has it."""
    exports = {}
    for path in sorted(folder.glob("[!.]*.json")):
        note, archive = _read(path), path.with_suffix(".zip")
        if note.get("source") == source and archive.is_file():
            exports[path.stem] = StoredExport(archive, archive.stat().st_size, note.get("report", {}))
    return exports


def store_export(file: Path, archive: Path, source: str, report: dict[str, Any]) -> StoredExport:
    """Offer the zip `file`, which is whole and lies on the same disk, as `archive`: the older one stays until now.

    Its note goes first and comes last: a zip without one is not offered, so that none has another's report.
    """
    note = archive.with_suffix(".json")
    note.unlink(missing_ok=True)
    file.replace(archive)
    write_json(note, {"source": source, "report": report})
    return StoredExport(archive, archive.stat().st_size, report)


def deliver_export(store: Store, checkpoint_id: str, source: str, export: StoredExport) -> None:
    """Put an export where other machines find it, its note last."""
    at = _shelf(checkpoint_id, source)
    store.put_file(f"{at}/{export.path.name}", export.path)
    store.put_file(f"{at}/{export.path.stem}.json", export.path.with_suffix(".json"))


def fetch_export(store: Store, folder: Path, checkpoint_id: str, source: str, name: str) -> StoredExport | None:
    """An export that another machine made of the checkpoint as `source` has it, brought to `folder`; None where there
    is none."""
    at = _shelf(checkpoint_id, source)
    note = json.loads(store.read(f"{at}/{name}.json") or b"null")
    if not isinstance(note, dict):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    coming = folder / f".{name}.zip"
    store.get_file(f"{at}/{name}.zip", coming)
    return store_export(coming, folder / f"{name}.zip", source, note.get("report", {}))


def _shelf(checkpoint_id: str, source: str) -> str:
    return f"{FOLDER}/{checkpoint_id}/{source[:16]}"


def _read(path: Path) -> dict[str, Any]:
    with suppress(BadInput):
        return read_json(path)
    return {}

"""Stored exports: `exports/<checkpoint id>/<format>.zip`, each with a JSON file with its validation report.

An export belongs to one state of its checkpoint: when the checkpoint changes (tuning, further training), its old
exports are no longer offered, and the next export replaces them. No torch."""

import json
import secrets
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from models.identity import read_json
from speculoos.checksums import CHECKSUM_FILE
from speculoos.errors import BadInput
from speculoos.files import write_json
from speculoos.store import Store

FOLDER = "exports"


@dataclass(frozen=True)
class StoredExport:
    """A complete zip. `report` is `formats.report.ExportReport.to_json()`; it is empty for the workbench's format."""

    path: Path
    bytes: int
    report: dict[str, Any]


def exports_folder(home: Path, checkpoint_id: str) -> Path:
    return home / FOLDER / checkpoint_id


def checkpoint_state(checkpoint: str | Path) -> str:
    """A key for the present state of a checkpoint's folder: the sha256 of its SHA256SUMS or, without that file, of its
    files' names, sizes and modification times."""
    folder = Path(checkpoint)
    with suppress(OSError):
        return sha256((folder / CHECKSUM_FILE).read_bytes()).hexdigest()
    files = sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in folder.glob("[!.]*"))
    return sha256(repr(files).encode()).hexdigest()


def stored_exports(folder: Path, source: str) -> dict[str, StoredExport]:
    """{format: zip} of the exports of the checkpoint's state `source`."""
    exports = {}
    for path in sorted(folder.glob("[!.]*.json")):
        note, archive = {}, path.with_suffix(".zip")
        with suppress(BadInput):
            note = read_json(path)
        if note.get("source") == source and archive.is_file():
            exports[path.stem] = StoredExport(archive, archive.stat().st_size, note.get("report", {}))
    return exports


def store_export(file: Path, archive: Path, source: str, report: dict[str, Any]) -> StoredExport:
    """Move the complete zip `file`, on the same disk, to `archive`, replacing an older export. The old note is deleted
    first and the new one is written last: a zip without a note is not offered, so no zip is shown with the report of
    another."""
    note = archive.with_suffix(".json")
    note.unlink(missing_ok=True)
    file.replace(archive)
    write_json(note, {"source": source, "report": report})
    return StoredExport(archive, archive.stat().st_size, report)


def upload_export(store: Store, checkpoint_id: str, source: str, export: StoredExport) -> None:
    """Copy an export to the shared store, its note last."""
    prefix = _prefix(checkpoint_id, source)
    store.put_file(f"{prefix}/{export.path.name}", export.path)
    store.put_file(f"{prefix}/{export.path.stem}.json", export.path.with_suffix(".json"))


def fetch_export(store: Store, folder: Path, checkpoint_id: str, source: str, name: str) -> StoredExport | None:
    """Copy another machine's export of the checkpoint's state `source` to `folder`; None if there is none."""
    prefix = _prefix(checkpoint_id, source)
    note = json.loads(store.read(f"{prefix}/{name}.json") or b"null")
    if not isinstance(note, dict):
        return None
    folder.mkdir(parents=True, exist_ok=True)
    temporary = folder / f".{name}.{secrets.token_hex(4)}.zip"
    store.get_file(f"{prefix}/{name}.zip", temporary)
    return store_export(temporary, folder / f"{name}.zip", source, note.get("report", {}))


def _prefix(checkpoint_id: str, source: str) -> str:
    return f"{FOLDER}/{checkpoint_id}/{source[:16]}"

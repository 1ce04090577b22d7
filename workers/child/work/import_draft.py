"""Job `import_draft`: imports a published draft as a checkpoint of a base."""

import shutil
from pathlib import Path
from typing import Any

from formats.facts import CardFacts
from formats.imports.run import TargetBase, import_draft
from tracking.tables import Base
from workers.child.context import JobContext
from workers.jobs.requests import ImportDraft


def run(request: ImportDraft, context: JobContext) -> dict[str, Any]:
    """Download and convert the draft, write the checkpoint, and fill its row."""
    base = context.input_with_files(Base, request.base_id)
    folder = context.checkpoint_folder(request.checkpoint_id)
    refused = (base.card or {}).get("methods") or {}
    target = TargetBase(Path(base.path), base.name, base.weights_sha256, refused, CardFacts.of(base).hub_id)
    token, source = context.settings.hf_token, "hub" if request.source == "hub" else "folder"
    location = request.location if source == "hub" else context.files.download_path(request.location)
    report = import_draft(source, location, target, folder, context, token, request.layout)
    publish(request, context, report, folder)
    if request.source == "upload":
        remove_upload(Path(request.location), context.settings.home / "uploads")
    if source == "folder":
        context.files.forget_path(request.location, location)
    return {"checkpoint_id": request.checkpoint_id, **{key: report[key] for key in ("method", "format", "notices")}}


def remove_upload(folder: Path, uploads: Path) -> None:
    """Delete the parent of an uploaded folder, if it lies in `uploads`."""
    if folder.parent.parent == uploads:
        shutil.rmtree(folder.parent, ignore_errors=True)


def publish(request: ImportDraft, context: JobContext, report: dict[str, Any], folder: Path) -> None:
    """Fill the checkpoint's row, fenced; its config records the origin."""
    imported = {key: report[key] for key in ("format", "title", "origin", "licence", "notices")}
    facts = {key: report[key] for key in ("method", "base_sha256", "figures")}
    config = {**request.to_json(), "imported": imported}
    context.publish_checkpoint(request.checkpoint_id, folder, config=config, **facts)

"""Job `import_draft`: a published draft becomes a checkpoint of a base that is here."""

import shutil
from pathlib import Path
from typing import Any

from formats.facts import CardFacts
from formats.imports.run import TargetBase, import_draft
from tracking.tables import Base
from workers.child.context import JobContext
from workers.jobs.requests import ImportDraft


def run(request: ImportDraft, context: JobContext) -> dict[str, Any]:
    """Fetch, read, write the checkpoint, and fill its row."""
    base = context.usable(Base, request.base_id)
    folder = context.checkpoint_folder(request.checkpoint_id)
    refused = (base.card or {}).get("methods") or {}
    matched = TargetBase(Path(base.path), base.name, base.weights_sha256, refused, CardFacts.of(base).hub_id)
    token, source = context.settings.hf_token, "hub" if request.source == "hub" else "folder"
    location = request.location if source == "hub" else context.files.bring_path(request.location)
    report = import_draft(source, location, matched, folder, context, token, request.layout)
    publish(request, context, report, folder)
    if request.source == "upload":
        remove_upload(Path(request.location), context.settings.home / "uploads")
    if source == "folder":
        context.files.forget_path(request.location, location)
    return {"checkpoint_id": request.checkpoint_id, **{key: report[key] for key in ("method", "format", "notices")}}


def remove_upload(folder: Path, uploads: Path) -> None:
    """The folder in which a page gathered what was uploaded, which lies in one of its own."""
    if folder.parent.parent == uploads:
        shutil.rmtree(folder.parent, ignore_errors=True)


def publish(request: ImportDraft, context: JobContext, report: dict[str, Any], folder: Path) -> None:
    """Fill the checkpoint's row, fenced. Its config says where it came from and what there is to know about that."""
    told = {key: report[key] for key in ("format", "title", "origin", "licence", "notices")}
    facts = {key: report[key] for key in ("method", "base_sha256", "figures")}
    config = {**request.to_json(), "imported": told}
    context.publish_checkpoint(request.checkpoint_id, folder, config=config, **facts)

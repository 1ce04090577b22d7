"""Jobs `fetch_model`, `quantize`, `import_draft` and `export`: the files of base models and drafts."""

import shutil
from pathlib import Path
from typing import Any

from formats.export import build_export, check_export
from formats.facts import CardFacts
from formats.imports.run import TargetBase, import_draft
from formats.store import checkpoint_state, exports_folder, store_export
from models import archive
from models.base import DTYPES, load_base
from models.card import make_card
from models.fetch import CARD, fetch_base
from speculoos.files import new_folder, write_json
from tracking import queries
from tracking.evaluations import card_figures
from tracking.tables import Base, Checkpoint
from workers.child.context import JobContext
from workers.jobs.requests import Export, FetchModel, ImportDraft, Quantize
from workers.jobs.transfers import NO_PATH


def run_fetch_model(request: FetchModel, context: JobContext) -> dict[str, Any]:
    """Download and hash a base model, and fill its row. The folder is renamed when it is complete."""
    folder = context.settings.home / "models" / request.base_id
    folder.parent.mkdir(parents=True, exist_ok=True)
    is_path = request.source not in NO_PATH
    location = context.files.download_path(request.location, folder) if is_path else request.location
    token, cache = context.settings.hf_token, context.checksum_cache
    path, card = fetch_base(request.source, location, folder, context, token, cache)
    checksums = {key: card.get(key, "") for key in ("weights_sha256", "tokenizer_sha256")}
    context.update_output(Base, request.base_id, state="ready", path=str(path), card=card, **checksums)
    if is_path:
        context.files.delete_uploaded_input(request.location, location)
    return {"base_id": request.base_id, "path": str(path), "weights_sha256": checksums["weights_sha256"]}


def run_quantize(request: Quantize, context: JobContext) -> dict[str, Any]:
    """Write a base with quantized weights, and fill its row. The folder is renamed when it is complete."""
    from models.quantize import quantize_folder

    base = context.input_with_files(Base, request.base_id)
    folder = context.settings.home / "models" / request.quantized_id
    known, cache = context.base_checksums(base), context.checksum_cache
    dtype = base.card["dtype"] if base.card["dtype"] in DTYPES else "float32"
    with new_folder(folder, replace=True) as building:
        quantize_folder(Path(base.path), building, request.scheme, dtype, context, known, cache)
        card = make_card(building, licence=base.card.get("licence") or "")
        write_json(building / CARD, card)
    checksums = {key: card[key] for key in ("weights_sha256", "tokenizer_sha256")}
    context.update_output(Base, request.quantized_id, state="ready", path=str(folder), card=card, **checksums)
    return {"base_id": request.quantized_id, "path": str(folder), "bytes": card["size_bytes"], **checksums}


def run_import_draft(request: ImportDraft, context: JobContext) -> dict[str, Any]:
    """Download and convert a published draft, write the checkpoint, and fill its row, whose config has the origin."""
    base = context.input_with_files(Base, request.base_id)
    folder = context.checkpoint_folder(request.checkpoint_id)
    refused = (base.card or {}).get("methods") or {}
    target = TargetBase(Path(base.path), base.name, base.weights_sha256, refused, CardFacts.of(base).hub_id)
    token, source = context.settings.hf_token, "hub" if request.source == "hub" else "folder"
    location = request.location if source == "hub" else context.files.download_path(request.location)
    report = import_draft(source, location, target, folder, context, token, request.layout)
    imported = {key: report[key] for key in ("format", "title", "origin", "licence", "notices")}
    facts = {key: report[key] for key in ("method", "base_sha256", "figures")}
    config = {**request.to_json(), "imported": imported}
    context.update_checkpoint_row(request.checkpoint_id, folder, config=config, **facts)
    if request.source == "upload":
        remove_upload(Path(request.location), context.settings.home / "uploads")
    if source == "folder":
        context.files.delete_uploaded_input(request.location, location)
    return {"checkpoint_id": request.checkpoint_id, **{key: report[key] for key in ("method", "format", "notices")}}


def remove_upload(folder: Path, uploads: Path) -> None:
    """Delete the parent of an uploaded folder, if it lies in `uploads`."""
    if folder.parent.parent == uploads:
        shutil.rmtree(folder.parent, ignore_errors=True)


def run_export(request: Export, context: JobContext) -> dict[str, Any]:
    """Write a checkpoint in a server's format, validate and zip it under exports/, on the CPU."""
    row = context.input_with_files(Checkpoint, request.checkpoint_id)
    base_row = context.input_with_files(Base, row.base_id)
    check_export(row.path, base_row.path, request.format)
    archive.check_checkpoint_files(row.path, row.name, row.sha256, context.checksum_cache)
    source, folder = checkpoint_state(row.path), exports_folder(context.settings.home, row.id)
    base = load_base(base_row.path, "float32", "cpu", context.base_checksums(base_row), context.checksum_cache)
    temporary = folder / f".{context.job_id}"
    shutil.rmtree(temporary, ignore_errors=True)  # left by a killed attempt
    try:
        # the folder in the zip has the name of the downloaded file
        name = archive.archive_name(base_row.name, row.name).removesuffix(".zip")
        zipped = temporary / f"{name}-{request.format}.zip"
        with context.session() as session:
            facts = CardFacts.of(base_row, row.name, **card_figures(queries.evaluations(session, row.id)))
        report = build_export(row.path, base, request.format, zipped, context, facts)
        stored = store_export(zipped, folder / f"{request.format}.zip", source, report.to_json())
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    result = {"checkpoint_id": row.id, "format": request.format, "bytes": stored.bytes, "figures": report.figures}
    if not context.files.upload_export(row.id, source, stored):
        return result
    return {**result, "source": source, "report": report.to_json()}  # for pages on machines without the zip

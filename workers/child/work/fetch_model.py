"""Job `fetch_model`: downloads a base model and creates its card."""

from typing import Any

from models.fetch import fetch_base
from tracking.tables import Base
from workers.child.context import JobContext
from workers.jobs.fetch_model import NO_PATH, FetchModel


def run(request: FetchModel, context: JobContext) -> dict[str, Any]:
    """Download, hash, and fill the base's row with path, checksums and card."""
    folder = context.model_folder(request.base_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    location = given(request, context)
    path, card = fetch_base(request.source, location, folder, context, context.settings.hf_token, context.sums)
    context.publish(
        Base,
        request.base_id,
        state="ready",
        path=str(path),
        card=card,
        weights_sha256=card.get("weights_sha256", ""),
        tokenizer_sha256=card.get("tokenizer_sha256", ""),
    )
    if request.source not in NO_PATH:
        context.files.forget_path(request.location, location)
    return {"base_id": request.base_id, "path": str(path), "weights_sha256": card.get("weights_sha256", "")}


def given(request: FetchModel, context: JobContext) -> str:
    """The location on this machine; a folder of another machine is downloaded to the model's folder."""
    if request.source in NO_PATH:
        return request.location
    return context.files.bring_path(request.location, context.model_folder(request.base_id))

"""Job `fetch_model`: downloads a base model and creates its card."""

from typing import Any

from models.fetch import fetch_base
from tracking.tables import Base
from workers.child.context import JobContext
from workers.jobs.fetch_model import NO_PATH, FetchModel


def run(request: FetchModel, context: JobContext) -> dict[str, Any]:
    """Download, hash, and fill the base's row with path, checksums and card. A folder of another machine is downloaded
    to the model's folder, which is renamed when it is complete."""
    folder = context.settings.home / "models" / request.base_id
    folder.parent.mkdir(parents=True, exist_ok=True)
    is_path = request.source not in NO_PATH
    location = context.files.download_path(request.location, folder) if is_path else request.location
    path, card = fetch_base(request.source, location, folder, context, context.settings.hf_token, context.sums)
    sums = {key: card.get(key, "") for key in ("weights_sha256", "tokenizer_sha256")}
    context.publish(Base, request.base_id, state="ready", path=str(path), card=card, **sums)
    if is_path:
        context.files.forget_path(request.location, location)
    return {"base_id": request.base_id, "path": str(path), "weights_sha256": sums["weights_sha256"]}

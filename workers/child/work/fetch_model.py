"""Job `fetch_model`: a base model is brought here and its card made."""

from typing import Any

from models.fetch import fetch_base
from tracking.tables import Base
from workers.ask.requests import FetchModel
from workers.child.context import Context


def run(request: FetchModel, context: Context) -> dict[str, Any]:
    """Fetch, hash, and fill the base's row with its path, identity and card."""
    folder = context.model_folder(request.base_id)
    folder.parent.mkdir(parents=True, exist_ok=True)
    path, card = fetch_base(request.source, request.location, folder, context, context.settings.hf_token, context.sums)
    context.publish(
        Base,
        request.base_id,
        state="ready",
        path=str(path),
        card=card,
        weights_sha256=card.get("weights_sha256", ""),
        tokenizer_sha256=card.get("tokenizer_sha256", ""),
    )
    return {"base_id": request.base_id, "path": str(path), "weights_sha256": card.get("weights_sha256", "")}

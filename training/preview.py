"""Rendered conversations cut into pieces in and out of the loss: what the Data page shows. Run by an io job."""

from pathlib import Path
from typing import Any

from speculoos.errors import BadInput
from training.masks import MaskedTokens, mask_conversation


def preview(folder: str | Path, base_path: str | Path, limit: int = 20) -> list[dict[str, Any]]:
    """The first `limit` rows as {"id", "pieces": [{"text", "in_loss"}…], "tokens", "loss_tokens", "mask_source",
    "problem"}. `problem` says why a row would not be trained on, "" when it would."""
    from models.base import load_tokenizer, read_eos_ids
    from training.batches import read_rows

    tokenizer, records = load_tokenizer(base_path), []
    eos_ids = read_eos_ids(base_path, tokenizer)
    for row in read_rows(folder):
        if len(records) >= limit:
            break
        records.append(_record(row, tokenizer, eos_ids))
    return records


def text_spans(masked: MaskedTokens, tokenizer: Any) -> list[dict[str, Any]]:
    """Neighbouring tokens of one kind as one piece of text, special tokens shown."""
    spans, start = [], 0
    for i in range(1, len(masked.mask) + 1):
        if i == len(masked.mask) or masked.mask[i] != masked.mask[start]:
            text = tokenizer.decode(masked.token_ids[start:i], skip_special_tokens=False)
            spans.append({"text": text, "in_loss": masked.mask[start]})
            start = i
    return spans


def _record(row: dict[str, Any], tokenizer: Any, eos_ids: frozenset[int]) -> dict[str, Any]:
    record = {"id": str(row.get("id", "")), "pieces": [], "tokens": 0, "loss_tokens": 0, "mask_source": ""}
    try:
        masked = mask_conversation(row, tokenizer, eos_ids)
    except BadInput as error:
        text = "\n".join(f"{m.get('role')}: {m.get('content')}" for m in row.get("messages") or [])
        return {**record, "pieces": [{"text": text, "in_loss": False}], "problem": str(error)}
    problem = "" if any(masked.mask) and not all(masked.mask) else "the mask is all ones or all zeros"
    return {
        **record,
        "pieces": text_spans(masked, tokenizer),
        "tokens": len(masked.mask),
        "loss_tokens": sum(masked.mask),
        "mask_source": masked.source,
        "problem": problem,
    }

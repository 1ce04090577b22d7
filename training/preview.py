"""Rendered conversations split into text inside and outside the loss, for the Data page. Run by an io job."""

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.masks import MaskedTokens

if TYPE_CHECKING:
    from training.token_files import TokenFile


def preview(folder: str | Path, base_path: str | Path, limit: int = 20) -> list[dict[str, Any]]:
    """The first `limit` rows as {"id", "pieces": [{"text", "in_loss"}…], "tokens", "loss_tokens", "mask_source",
    "problem"}. `problem` is the reason why a row is not trained on, or "". Tokens come from the same cache that the
    training uses, which is filled if necessary."""
    from models.tokenizer import load_tokenizer, read_eos_ids
    from training.tokenising import tokenise_dataset

    tokenizer = load_tokenizer(base_path)
    result = tokenise_dataset(folder, tokenizer, read_eos_ids(base_path, tokenizer), rows=limit)
    records = (
        _record(json.loads(line), number, tokens, tokenizer)
        for piece, tokens in zip(result.pieces, result.read(), strict=True)
        for number, line in enumerate(piece.lines())
    )
    return list(islice(records, limit))


def text_spans(masked: MaskedTokens, tokenizer: Any) -> list[dict[str, Any]]:
    """Text of each run of tokens inside or outside the loss, special tokens included."""
    spans, start = [], 0
    for i in range(1, len(masked.mask) + 1):
        if i == len(masked.mask) or masked.mask[i] != masked.mask[start]:
            text = tokenizer.decode(masked.token_ids[start:i], skip_special_tokens=False)
            spans.append({"text": text, "in_loss": masked.mask[start]})
            start = i
    return spans


def _record(row: dict[str, Any], number: int, stored: "TokenFile", tokenizer: Any) -> dict[str, Any]:
    record = {"id": str(row.get("id", "")), "pieces": [], "tokens": 0, "loss_tokens": 0, "mask_source": ""}
    if problem := stored.dropped.get(number):
        text = "\n".join(f"{m.get('role')}: {m.get('content')}" for m in row.get("messages") or [])
        return {**record, "pieces": [{"text": text, "in_loss": False}], "problem": problem}
    index = stored.numbers[number]
    ids, mask = (values.tolist() for values in stored.row(index))
    masked = MaskedTokens(ids, mask, stored.source(index))
    problem = "" if any(masked.mask) and not all(masked.mask) else "the mask is all ones or all zeros"
    return {
        **record,
        "pieces": text_spans(masked, tokenizer),
        "tokens": len(masked.mask),
        "loss_tokens": sum(masked.mask),
        "mask_source": masked.source,
        "problem": problem,
    }

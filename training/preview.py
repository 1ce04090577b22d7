"""Rendered conversations cut into pieces in and out of the loss: what the Data page shows. Run by an io job."""

import json
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from training.masks import MaskedTokens

if TYPE_CHECKING:
    from training.token_files import Tokens


def preview(folder: str | Path, base_path: str | Path, limit: int = 20) -> list[dict[str, Any]]:
    """The first `limit` rows as {"id", "pieces": [{"text", "in_loss"}…], "tokens", "loss_tokens", "mask_source",
    "problem"}. `problem` says why a row would not be trained on, "" when it would. What they are as tokens is read
    from where training will read it, and made there if need be."""
    from models.tokenizer import load_tokenizer, read_eos_ids
    from training.tokenising import tokenised

    tokenizer = load_tokenizer(base_path)
    made = tokenised(folder, tokenizer, read_eos_ids(base_path, tokenizer), rows=limit)
    found = (
        _record(json.loads(line), number, tokens, tokenizer)
        for piece, tokens in zip(made.pieces, made.read(), strict=True)
        for number, line in enumerate(piece.lines())
    )
    return list(islice(found, limit))


def text_spans(masked: MaskedTokens, tokenizer: Any) -> list[dict[str, Any]]:
    """Neighbouring tokens of one kind as one piece of text, special tokens shown."""
    spans, start = [], 0
    for i in range(1, len(masked.mask) + 1):
        if i == len(masked.mask) or masked.mask[i] != masked.mask[start]:
            text = tokenizer.decode(masked.token_ids[start:i], skip_special_tokens=False)
            spans.append({"text": text, "in_loss": masked.mask[start]})
            start = i
    return spans


def _record(row: dict[str, Any], number: int, kept: "Tokens", tokenizer: Any) -> dict[str, Any]:
    record = {"id": str(row.get("id", "")), "pieces": [], "tokens": 0, "loss_tokens": 0, "mask_source": ""}
    if problem := kept.dropped.get(number):
        text = "\n".join(f"{m.get('role')}: {m.get('content')}" for m in row.get("messages") or [])
        return {**record, "pieces": [{"text": text, "in_loss": False}], "problem": problem}
    index = kept.numbers[number]
    ids, mask = (values.tolist() for values in kept.row(index))
    masked = MaskedTokens(ids, mask, kept.source(index))
    problem = "" if any(masked.mask) and not all(masked.mask) else "the mask is all ones or all zeros"
    return {
        **record,
        "pieces": text_spans(masked, tokenizer),
        "tokens": len(masked.mask),
        "loss_tokens": sum(masked.mask),
        "mask_source": masked.source,
        "problem": problem,
    }

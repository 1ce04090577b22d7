"""Rendered conversations split into text inside and outside the loss, for the Data page. Run by an io job."""

import json
from itertools import groupby, islice
from pathlib import Path
from typing import Any

from models.tokenizer import load_tokenizer, read_eos_ids
from training.token_files import TokenFile
from training.tokenising import tokenise_dataset


def preview(folder: str | Path, base_path: str | Path, limit: int = 20) -> list[dict[str, Any]]:
    """The first `limit` rows as {"id", "pieces": [{"text", "in_loss"}…], "tokens", "loss_tokens", "mask_source",
    "problem"}. `problem` is the reason why a row is not trained on, or "". Tokens come from the same cache that the
    training uses, which is filled if necessary."""
    tokenizer = load_tokenizer(base_path)
    result = tokenise_dataset(folder, tokenizer, read_eos_ids(base_path, tokenizer), rows=limit)
    records = (
        _record(json.loads(line), number, tokens, tokenizer)
        for piece, tokens in zip(result.pieces, result.read(), strict=True)
        for number, (_, line) in enumerate(piece.lines())
    )
    return list(islice(records, limit))


def _record(row: dict[str, Any], number: int, file: TokenFile, tokenizer: Any) -> dict[str, Any]:
    record = {"id": str(row.get("id", "")), "pieces": [], "tokens": 0, "loss_tokens": 0, "mask_source": ""}
    if problem := file.dropped.get(number):
        text = "\n".join(f"{m.get('role')}: {m.get('content')}" for m in row.get("messages") or [])
        return {**record, "pieces": [{"text": text, "in_loss": False}], "problem": problem}
    index = next(index for index, info in enumerate(file.rows) if info["number"] == number)
    ids, mask = (values.tolist() for values in file.tokens(index))
    runs = groupby(zip(ids, mask, strict=True), key=lambda pair: pair[1])
    return {
        **record,
        "pieces": [
            {"text": tokenizer.decode([token for token, _ in run], skip_special_tokens=False), "in_loss": in_loss}
            for in_loss, run in runs
        ],
        "tokens": len(mask),
        "loss_tokens": sum(mask),
        "mask_source": file.rows[index]["mask_source"],
        "problem": "" if any(mask) and not all(mask) else "the mask is all ones or all zeros",
    }

"""Tokenise the rows of one piece of a shard, and the cache key of the result. Does not import torch."""

import hashlib
import json
import sys
from collections.abc import Iterable
from functools import lru_cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

from speculoos.errors import BadInput
from training.masks import mask_conversation
from training.token_files import Piece, TokenWriter

RULES = 2
"""Version of the tokenisation in `training.masks` and `training.token_files`; increase it to invalidate caches."""


def token_cache_key(tokenizer: Any, eos_ids: Iterable[int]) -> str:
    """Cache key of tokens, besides the shard's sha256: tokenizer, chat template, EOS ids, RULES and the versions of the
    libraries that render and tokenise."""
    versions = [version(name) for name in ("transformers", "tokenizers", "jinja2")]
    template, eos_id = getattr(tokenizer, "chat_template", None), tokenizer.eos_token_id
    parts = [_vocabulary(tokenizer), template, eos_id, sorted(eos_ids), RULES, versions]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _vocabulary(tokenizer: Any) -> Any:
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    return {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("truncation", "padding")}


def tokenise_piece(piece: Piece, tokenizer: Any, eos_ids: Iterable[int], file: Path) -> int:
    """Write the piece's tokens to `file`; returns their number. Raises BadInput that names the line for broken JSON;
    rows that the template rejects are recorded in the file with the reason."""
    writer, eos = TokenWriter(), tuple(eos_ids)
    for number, (offset, line) in enumerate(piece.lines()):
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("no object")
        except ValueError as error:
            number = _line_number(piece.shard, offset)
            raise BadInput(
                f"{piece.shard} line {number}: broken JSON ({error}); generate or import the data set again."
            ) from None
        try:
            writer.add(number, row, mask_conversation(row, tokenizer, eos))
        except BadInput as error:
            writer.dropped.append((number, str(error)))
    writer.write(file)
    return len(writer.ids)


def tokenise_in_child(
    shard: str, digest: str, start: int, end: int, model: str, eos_ids: list[int], key: str, file: str
) -> int | None:
    """For child processes: write the tokens of a piece to `file`. Returns their number, or None when the tokenizer in
    `model` has another cache key than `key`."""
    tokenizer, own_key = _tokenizer_in_child(model, tuple(eos_ids))
    return (
        tokenise_piece(Piece(Path(shard), digest, start, end), tokenizer, eos_ids, Path(file))
        if own_key == key
        else None
    )


@lru_cache(maxsize=1)
def _tokenizer_in_child(model: str, eos_ids: tuple[int, ...]) -> tuple[Any, str]:
    sys.modules.setdefault("torch", None)  # type: ignore[arg-type]  # tokenizers do not need it
    from models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(model)
    return tokenizer, token_cache_key(tokenizer, eos_ids)


def _line_number(shard: Path, offset: int) -> int:
    with open(shard, "rb") as handle:
        return handle.read(offset).count(b"\n") + 1

"""Tokenise the rows of one piece of a shard, and the cache key of the result. Does not import torch."""

import hashlib
import json
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

from speculoos.errors import BadInput
from training.masks import mask_conversation
from training.token_files import Piece, TokenWriter

RULES = 1
"""Version of the tokenisation in `training.masks` and `training.token_files`; increase it to invalidate caches."""


def token_cache_key(tokenizer: Any, eos_ids: Iterable[int]) -> str:
    """Cache key of tokens, besides the shard's sha256: tokenizer, chat template, EOS ids, RULES and the versions of the
    libraries that render and tokenise."""
    versions = [version(name) for name in ("transformers", "tokenizers", "jinja2")]
    template, eos_id = getattr(tokenizer, "chat_template", None), tokenizer.eos_token_id
    parts = [_vocabulary(tokenizer), template, eos_id, sorted(eos_ids), RULES, versions]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def _vocabulary(tokenizer: Any) -> Any:
    """Everything that determines how a text is tokenised."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    return {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("truncation", "padding")}


def tokenise_piece(piece: Piece, tokenizer: Any, eos_ids: Iterable[int], file: Path) -> int:
    """Write the piece's tokens to `file`; returns their number. Raises BadInput that names the line for broken JSON;
    rows that the template rejects are recorded in the file with the reason."""
    writer, eos = TokenWriter(), tuple(eos_ids)
    for number, line in enumerate(piece.lines()):
        row = _parsed(piece, number, line)
        try:
            writer.add(number, row, mask_conversation(row, tokenizer, eos))
        except BadInput as error:
            writer.drop(number, str(error))
    writer.write(file)
    return len(writer.ids)


def _parsed(piece: Piece, number: int, line: bytes) -> dict[str, Any]:
    try:
        row = json.loads(line)
    except ValueError as error:
        raise BadInput(
            f"{_line_number(piece, number)}: broken JSON ({error}); generate or import the data set again."
        ) from None
    if not isinstance(row, dict):
        raise BadInput(f"{_line_number(piece, number)}: expected an object; make the data set again.")
    return row


def _line_number(piece: Piece, number: int) -> str:
    """Path and 1-based line number in the shard."""
    with open(piece.shard, "rb") as handle:
        before, offset = 0, 0
        while offset < piece.start and (line := handle.readline()):
            before, offset = before + 1, offset + len(line)
        while number >= 0 and (line := handle.readline()):
            before, number = before + 1, number - bool(line.strip())
    return f"{piece.shard} line {before}"

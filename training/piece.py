"""The rows of a piece of a shard as tokens, and what they depend on. No torch."""

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
"""Grows when `training.masks` or `training.token_files` changes what a row becomes: tokens are then made anew."""


def key_of(tokenizer: Any, eos_ids: Iterable[int]) -> str:
    """By what tokens are known beside the shard's own sum: tokenizer, chat template, ends of turns, our rules and the
    versions of what renders and tokenises."""
    versions = [version(name) for name in ("transformers", "tokenizers", "jinja2")]
    template, end = getattr(tokenizer, "chat_template", None), tokenizer.eos_token_id
    means = [_vocabulary(tokenizer), template, end, sorted(eos_ids), RULES, versions]
    return hashlib.sha256(json.dumps(means, sort_keys=True).encode()).hexdigest()[:32]


def _vocabulary(tokenizer: Any) -> Any:
    """All that decides into which tokens a text is cut."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        return [type(tokenizer).__name__, sorted(tokenizer.get_vocab().items())]
    return {k: v for k, v in json.loads(backend.to_str()).items() if k not in ("truncation", "padding")}


def tokenise_piece(piece: Piece, tokenizer: Any, eos_ids: Iterable[int], file: Path) -> int:
    """Write the piece's tokens to `file`; returns how many there are. Raises BadInput, naming the line, for a broken
    one; rows that the template refuses are kept in the file with the reason."""
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
            f"{_place(piece, number)}: broken JSON ({error}); generate or import the data set again."
        ) from None
    if not isinstance(row, dict):
        raise BadInput(f"{_place(piece, number)}: expected an object; make the data set again.")
    return row


def _place(piece: Piece, number: int) -> str:
    """File and line, as people count them."""
    with open(piece.shard, "rb") as handle:
        before, at = 0, 0
        while at < piece.start and (line := handle.readline()):
            before, at = before + 1, at + len(line)
        while number >= 0 and (line := handle.readline()):
            before, number = before + 1, number - bool(line.strip())
    return f"{piece.shard} line {before}"

"""Runs in the child processes of `training.tokenising`: tokenises one piece of a shard per call. It blocks the import
of torch, which tokenizers do not need, so it must not be imported in other processes."""

import sys
import time
from pathlib import Path
from typing import Any

assert "torch" not in sys.modules, "this is for a child process"
sys.modules["torch"] = None  # type: ignore[assignment]

from models.tokenizer import load_tokenizer  # noqa: E402
from training.token_files import Piece  # noqa: E402
from training.tokenise_shard import token_cache_key, tokenise_piece  # noqa: E402

_tokenizers: dict[str, tuple[Any, str]] = {}


def tokenise(shard: str, digest: str, start: int, end: int, model: str, eos_ids: list[int], key: str, file: str) -> Any:
    """Write the tokens of a piece to `file`. Returns `[tokens, CPU seconds]`, or None when the tokenizer in `model` has
    another cache key than `key`."""
    if model not in _tokenizers:
        tokenizer = load_tokenizer(model)
        _tokenizers[model] = tokenizer, token_cache_key(tokenizer, eos_ids)
    tokenizer, own_key = _tokenizers[model]
    if own_key != key:
        return None
    started = time.process_time()
    tokens = tokenise_piece(Piece(Path(shard), digest, start, end), tokenizer, eos_ids, Path(file))
    return [tokens, time.process_time() - started]

"""What a child tokenises (`training.tokenising` starts one for each core): one piece of a shard at a time. Never
imported elsewhere: it keeps torch, which tokenizers do not need, out of its process."""

import sys
import time
from pathlib import Path
from typing import Any

assert "torch" not in sys.modules, "this is for a child process"
sys.modules["torch"] = None  # type: ignore[assignment]

from models.tokenizer import load_tokenizer  # noqa: E402
from training.piece import key_of, tokenise_piece  # noqa: E402
from training.token_files import Piece  # noqa: E402

_tokenizers: dict[str, tuple[Any, str]] = {}


def tokenise(shard: str, digest: str, start: int, end: int, model: str, eos_ids: list[int], key: str, file: str) -> Any:
    """Write the tokens of a piece to `file`; `[tokens, seconds of the processor]`, or None where the tokenizer in
    `model` is not the one that `key` means."""
    if model not in _tokenizers:
        tokenizer = load_tokenizer(model)
        _tokenizers[model] = tokenizer, key_of(tokenizer, eos_ids)
    tokenizer, here = _tokenizers[model]
    if here != key:
        return None
    began = time.process_time()
    tokens = tokenise_piece(Piece(Path(shard), digest, start, end), tokenizer, eos_ids, Path(file))
    return [tokens, time.process_time() - began]

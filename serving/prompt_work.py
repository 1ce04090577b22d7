"""Code of the limited child process of serving/prompts.py: untrusted chat templates and tokenizers of all base models.

Import it in that child only, because it blocks the import of torch: tokenizers do not need torch, and with it the child
would be three times as large and as slow to start.
"""

import os
import sys
from functools import lru_cache
from typing import Any

assert "torch" not in sys.modules, "import this module in a child process only"
sys.modules["torch"] = None  # type: ignore[assignment]
os.environ["TRANSFORMERS_NO_ADVISORY_WARNINGS"] = "1"  # it warns that torch is missing

from transformers import AutoTokenizer, PreTrainedTokenizerFast  # noqa: E402, F401 (imported before forking)

from models.chat import to_ids, to_text  # noqa: E402
from models.tokenizer import load_tokenizer  # noqa: E402

MAX_TOKENIZERS = 8
WARM_UP_TEXT = "Write a long story about a lighthouse keeper who learns to sail."


@lru_cache(MAX_TOKENIZERS)
def _tokenizer(path: str, sha256: str) -> Any:
    tokenizer = load_tokenizer(path)
    tokenizer.decode([*tokenizer(WARM_UP_TEXT)["input_ids"], *tokenizer.encode("a", add_special_tokens=False)])
    return tokenizer


def load(path: str, sha256: str) -> None:
    """Load and warm up the tokenizer of the base model in `path`."""
    _tokenizer(path, sha256)


def write(path: str, sha256: str, messages: list[dict[str, str]]) -> tuple[str, bool]:
    """See `models.chat.to_text`."""
    return to_text(_tokenizer(path, sha256), messages)


def encode(path: str, sha256: str, text: str, templated: bool) -> list[int]:
    """See `models.chat.to_ids`."""
    return to_ids(_tokenizer(path, sha256), text, templated)
